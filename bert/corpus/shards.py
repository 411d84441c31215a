"""Finds and opens the shards of a corpus, and checks them against their manifest.

`bert-corpus build` writes them. An Arrow shard has the columns
  input_ids           large_list<uint16, or int32 above 65,536 entries>: [CLS] A [SEP] B [SEP], without padding
  sentence_a_tokens   int32: the number of leading tokens of type 0
  is_random_next      int8: 1 when B does not follow A; absent without next-sentence prediction
and with static masks, which are already applied to input_ids,
  masked_lm_positions large_list<int32>, sorted
  masked_lm_ids       large_list of the type of input_ids: the original ids
"""

import fnmatch
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from bert.corpus.inputs import find_files
from bert.corpus.manifest import MANIFEST, WORK, read_manifest
from bert.corpus.shard_reader import Shard, differences, share_record
from ringbase.errors import InputError
from ringbase.hashing import sha256

TOKENIZER = "tokenizer"


def find_shards(patterns: str, flag: str = "--input_file") -> tuple[str, str]:
    """The format and the shards that comma-separated globs and folders name.

    Returns ("arrow", the unchanged patterns) or ("tfrecord", the files), for TFRecord files of any origin. In a
    folder with a manifest, only the files that it names are used. Raises InputError: nothing matches, or both
    formats do.
    """
    formats: dict[str, list[str]] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        folder = Path(pattern).expanduser()
        is_corpus = folder.is_dir() and any((folder / name).exists() for name in (MANIFEST, WORK))
        files = [Path(name) for name in find_files(f"{pattern.rstrip('/')}/*" if is_corpus else pattern, flag)]
        manifests = {
            parent: read_manifest(parent, flag)
            for parent in dict.fromkeys(path.parent for path in files)
            if (parent / MANIFEST).is_file() or parent == folder
        }
        entries = {
            folder / shard["file"]: shard for folder, manifest in manifests.items() for shard in manifest["shards"]
        }
        for path in files:
            if path.parent not in manifests:
                formats.setdefault("arrow" if path.suffix == ".arrow" else "tfrecord", []).append(str(path))
            elif path in entries:
                _check_size(path, entries[path], flag)
                formats.setdefault(manifests[path.parent]["format"], []).append(str(path))
    if len(formats) != 1:
        both = " and ".join(formats)
        reason = f"{both} shards match, but they must be of one format" if formats else "no shard matches"
        raise InputError(f"{flag} {patterns}: {reason}")
    ((kind, names),) = formats.items()
    return kind, patterns if kind == "arrow" else ",".join(names)


def open_shards(
    patterns: str, cache_dir: Path | None = None, flag: str = "--input_file"
) -> tuple[list[Shard], dict[str, Any]]:
    """All Arrow shards that comma-separated globs match, and their manifest. Their content is not read yet.

    A folder stands for all shards of its manifest. Shards of several folders must have the same settings; then
    `shards` of the returned manifest lists those of all folders, and `counts` are the first folder's. `cache_dir`
    keeps the record of what was checked.

    Raises InputError: nothing matches; there is no manifest; a shard that the manifest names and a glob covers is
    missing; a shard is empty, truncated or not in its folder's manifest; the shards' settings differ.
    """
    files = _shard_files(patterns, flag)
    manifests = {folder: read_manifest(folder, flag) for folder in dict.fromkeys(path.parent for path in files)}
    first_folder, first = next(iter(manifests.items()))
    for folder, manifest in manifests.items():
        for name in ("format", "settings", "tokenizer_digest"):
            if different := differences(first[name], manifest[name]):
                raise InputError(f"{flag}: {first_folder} and {folder} differ in {name}: {different}")
    if first["format"] != "arrow":
        raise InputError(f"{flag}: {first_folder} has {first['format']} shards, expected arrow")
    shards = []
    for path in files:
        entries = {shard["file"]: shard for shard in manifests[path.parent]["shards"]}
        if path.name not in entries:
            raise InputError(f"{flag}: {path} is not in the manifest of its folder")
        _check_size(path, entries[path.name], flag)
        shards.append(Shard(path, entries[path.name], manifests[path.parent]["settings"], flag))
    if cache_dir is not None:
        share_record(shards, cache_dir / "corpora")
    return shards, first | {"shards": [shard.facts for shard in shards]}


def open_table(patterns: str, flag: str = "--input_file") -> tuple[pa.Table, dict[str, Any]]:
    """The rows of all shards that `open_shards` finds as one table, mapped into memory, all of it checked, and the
    manifest. Raises InputError as `open_shards` does, and if a byte differs from the manifest."""
    shards, manifest = open_shards(patterns, None, flag)
    return pa.Table.from_batches([batch for shard in shards for batch in shard.batches()]), manifest


def tokenizer_folder(patterns: str, flag: str = "--input_file") -> Path:
    """The folder of the tokenizer that the shards were built with; it is beside the first shard."""
    return _shard_files(patterns, flag)[0].parent / TOKENIZER


def _shard_files(patterns: str, flag: str) -> list[Path]:
    files: dict[Path, None] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        folder = Path(pattern).expanduser()
        if folder.is_dir():
            files.update(dict.fromkeys(folder / shard["file"] for shard in read_manifest(folder, flag)["shards"]))
            pattern = f"{pattern.rstrip('/')}/*"
        matches = [Path(name) for name in find_files(pattern, flag)]
        for parent in dict.fromkeys(path.parent for path in matches):
            if (parent / MANIFEST).is_file():
                # Add the shards that the manifest names, so that a missing one is noticed.
                named = [parent / shard["file"] for shard in read_manifest(parent, flag)["shards"]]
                matches += [path for path in named if fnmatch.fnmatch(str(path), os.path.expanduser(pattern))]
        files.update(dict.fromkeys(sorted(path for path in matches if path.name.startswith("shard-"))))
    if not files:
        raise InputError(f"{flag} {patterns}: no shard of a corpus matches (shard-*.arrow)")
    return list(files)


def _check_size(path: Path, facts: Mapping[str, Any], flag: str) -> None:
    if problem := _wrong_size(path, facts):
        raise InputError(f"{flag}: {problem}: copy it again, or build the corpus again")


def _wrong_size(path: Path, facts: Mapping[str, Any]) -> str:
    if not path.is_file():
        return f"{path} is missing, but the manifest names it"
    size = path.stat().st_size
    if size == 0:
        return f"{path} is empty, its manifest says {facts['bytes']:,} bytes"
    if size != facts["bytes"]:
        return f"{path} has {size:,} bytes, its manifest says {facts['bytes']:,}"
    return ""


def verify(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Compares a corpus with its manifest: sizes, SHA-256, numbers of examples, ids within the vocabulary.

    Returns the manifest and one line for each shard that is missing, damaged or not in the manifest. Raises
    InputError: no readable manifest.
    """
    manifest = read_manifest(folder, "--input_dir")
    problems = []
    for facts in manifest["shards"]:
        path = folder / facts["file"]
        if problem := _wrong_size(path, facts) or _wrong_content(path, facts, manifest):
            problems.append(problem)
    named = {shard["file"] for shard in manifest["shards"]}
    stray = sorted(path.name for path in folder.glob("shard-*") if path.name not in named)
    problems += [f"{folder / name} is not in the manifest" for name in stray]
    return manifest, problems


def _wrong_content(path: Path, facts: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    actual = sha256(path)
    if actual != facts["sha256"]:
        return f"{path} is damaged: its SHA-256 is {actual[:16]}…, the manifest says {facts['sha256'][:16]}…"
    if manifest["format"] != "arrow":
        return ""
    try:
        return _wrong_ids(Shard(path, facts, manifest["settings"], "--input_dir"), manifest["vocab_size"])
    except InputError as error:  # the manifest's checksums of pieces are wrong
        return str(error)


def _wrong_ids(shard: Shard, vocab_size: int) -> str:
    for batch in shard.batches():
        for name in [name for name in ("input_ids", "masked_lm_ids") if name in batch.schema.names]:
            values = batch.column(name).values.to_numpy()
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) < vocab_size:
                highest = int(values.max())
                return f"{shard.path}: {name} contains {highest}, but the vocabulary has {vocab_size} entries"
    return ""
