"""Models on this machine or on the Hugging Face hub, and data sets of the hub, at a revision that
the user may name."""

import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import fsspec
import huggingface_hub
from huggingface_hub import constants, errors
from tqdm import TqdmWarning

from ringbase.errors import InputError, one_line
from ringbase.files import read_json

INNER = re.compile(r"\w+")  # a folder right inside
COMMIT = re.compile(r"[0-9a-f]{40}")
PUBLISHED_PREFIX = "bert_model.ckpt"
# what the hub's errors mean, the narrowest kind first: their own messages are paragraphs
REASONS = {
    errors.GatedRepoError: "its owner must admit you: ask on its page, then run `hf auth login`",
    errors.RepositoryNotFoundError: (
        "the hub has no such public repository; for a private one run `hf auth login`"
    ),
    errors.RevisionNotFoundError: "it has no such revision",
    errors.LocalEntryNotFoundError: "the hub does not answer, and HF_HOME lacks it",
}
FILES = ["*.json", "vocab.txt", "*.model", "model.safetensors", "model-*.safetensors"]
# of sentence-transformers; versions before 2.0 kept the model itself in a folder inside
MODULES = "modules.json"
FILES += ["0_*/vocab.txt", "0_*/model.safetensors"]


def find(name_or_path: str, revision: str | None = None, downloads: bool = True) -> Path:
    """The folder or checkpoint prefix that `--model` or `--init_checkpoint` names; downloads a
    model of the hub, at the commit, tag or branch `revision`, or takes what its cache has. Raises
    InputError when there is none."""
    path = Path(name_or_path).expanduser()
    if revision is not None and path.exists():
        raise InputError(
            f"--model_revision {revision}: {name_or_path} is a folder; only the hub has revisions"
        )
    is_published = (path / f"{PUBLISHED_PREFIX}.index").is_file()
    if is_published and not (path / "model.safetensors").is_file():
        return path / PUBLISHED_PREFIX  # a folder unzipped from Google's archive
    if path.exists() or is_tf_checkpoint(path):
        return inner_folder(path)
    looks_local = name_or_path.startswith(("/", ".", "~")) or "ckpt" in name_or_path
    if looks_local or name_or_path.count("/") > 1:
        raise InputError(
            f"{name_or_path}: no such folder or checkpoint (--model, --init_checkpoint)"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TqdmWarning)  # of notebooks without ipywidgets
            folder = huggingface_hub.snapshot_download(
                name_or_path,
                revision=revision,
                allow_patterns=FILES,
                local_files_only=not downloads,
            )
            return inner_folder(Path(folder))
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        if not downloads:
            reason = "the cache of the hub lacks it, and nothing is downloaded here"
        elif constants.HF_HUB_OFFLINE:
            command = f"hf download {name_or_path}"
            if revision:
                command += f" --revision {revision}"
            reason = f"HF_HUB_OFFLINE is set and HF_HOME lacks it; run `{command}` with a network"
        flags = f"--model {name_or_path}"
        if revision:
            flags += f" --model_revision {revision}"
        raise InputError(
            f"{flags}: there is no such folder, and it cannot be downloaded from the hub: {reason}"
        ) from error


def inner_folder(folder: Path) -> Path:
    """The folder of the model itself: of one of sentence-transformers the first module's, such as
    0_Transformer; else the folder."""
    file = folder / MODULES
    modules = read_json(file) if file.is_file() else []
    first = modules[0] if isinstance(modules, list) and modules else {}
    name = first.get("path") if isinstance(first, dict) else None
    # a folder that was downloaded must not make us read others
    inner = folder / name if isinstance(name, str) and INNER.fullmatch(name) else folder
    return inner if inner.is_dir() else folder


def reason_of(error: Exception) -> str:
    """Why the hub did not give what was asked for, in one line."""
    known = (reason for kind, reason in REASONS.items() if isinstance(error, kind))
    return next(known, one_line(error))


def is_tf_checkpoint(path: Path) -> bool:
    return Path(f"{path}.index").is_file() or (path / "checkpoint").is_file()


def commit_of(folder: Path) -> str | None:
    """The commit of a folder of the hub's cache, `…/snapshots/COMMIT`; None for another folder."""
    for place in (folder, folder.parent):
        if place.parent.name == "snapshots" and COMMIT.fullmatch(place.name):
            return place.name
    return None


def load_data_set(
    name: str,
    config: str | None,
    split: str,
    where: str,
    revision: str | None = None,
    default: str | None = None,
) -> Any:
    """A split of a hub data set, or of a folder that `datasets` can load, as a `datasets.Dataset`.

    `where` is the flags that named it. `default` is the revision to load if the user names none.
    Raises InputError if it cannot be loaded, or not at this revision, or if the disk lacks the room
    for its rows.
    """
    import datasets

    commit = None
    where += f" ({split})"
    if revision:
        where += f" --dataset_revision {revision}"
        if Path(name).expanduser().exists():
            raise InputError(f"{where}: {name} is a folder; only the hub has revisions")
    try:
        if revision:
            if constants.HF_HUB_OFFLINE or COMMIT.fullmatch(revision):
                commit = cached_commit(name, revision)
            commit = commit or huggingface_hub.HfApi().dataset_info(name, revision=revision).sha
        used = commit or default
        _check_room(datasets.load_dataset_builder(name, config, revision=used), where)
        table = datasets.load_dataset(name, config, split=split, revision=used)
    except InputError:
        raise
    except Exception as error:  # the hub's errors have no common class
        raise InputError(f"{where}: {reason_of(error)}") from error
    # `datasets` takes the newest copy of its cache, of whatever revision, when it does not reach
    # the hub.
    found = {Path(file["filename"]).parent.name for file in table.cache_files}
    if commit is not None and found != {commit}:
        raise InputError(
            f"{where} is commit {commit}, but the hub does not answer and the newest copy in the"
            f" cache is of {', '.join(sorted(found)) or 'an unknown commit'}"
        )
    return table


def _check_room(builder: Any, where: str) -> None:
    """Raises InputError if `datasets` would fill the disk with this data set's rows, all splits."""
    folder = Path(builder.cache_dir)
    if folder.is_dir():  # they are there
        return
    needed = builder.info.size_in_bytes  # what its page says
    if needed is None:
        files = [file for files in (builder.config.data_files or {}).values() for file in files]
        needed = sum(map(_size_of, files))
    place = next(parent for parent in folder.parents if parent.is_dir())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise InputError(
            f"{where}: its rows need about {needed:,} bytes in {place}, where {free:,} are free:"
            " set HF_HOME to a folder with more room, or take a part of its files (--input_file)"
        )


def _size_of(file: str) -> int:
    """The bytes of a data file, unpacked if it says how many these are."""
    system, path = fsspec.url_to_fs(file)
    if not (system.protocol == ("file", "local") and path.endswith(".parquet")):
        return system.size(path) or 0
    from pyarrow import parquet

    metadata = parquet.read_metadata(path)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(group.total_byte_size for group in groups)


def cached_commit(name: str, revision: str | None) -> str | None:
    """The commit that the hub's cache notes for a revision of a data set; None if it has no
    note."""
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    folder_name = "--".join(["datasets", *name.split("/")])
    folder = Path(constants.HF_HUB_CACHE, folder_name)
    note = folder / "refs" / (revision or "main")
    return note.read_text().strip() if note.is_file() else None
