"""Remote files, by URLs of fsspec (s3://, gs://, hdfs://): inputs are copied into the cache, and a
run's folder is uploaded after each checkpoint and at its end. Most stores need a package of theirs
(s3fs, gcsfs).
"""

import contextlib
import glob
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from distributed.found import CHECKPOINTS
from distributed.world import World
from ringbase import manifest
from ringbase.errors import InputError, Unavailable, one_line
from ringbase.files import build_folder, cache_folder, digest, read_json, write_json
from ringbase.settings import Field
from tasks.runs.environment import writing_cache

T = TypeVar("T")
# what says that the others are complete
LAST = (manifest.NAME, "result.json", "predict_result.json")
# The files that the store has had, and what it said of their content (`ukey`): those that it lacks
# now were removed there.
UPLOADED = ".uploaded"
WAITS_S = (1.0, 4.0, 15.0)  # before another try of what a store has refused
# errors that another try would meet again
LASTING = (FileNotFoundError, PermissionError, NotADirectoryError, ImportError, ValueError)
SMALL_BYTES = 1 << 20  # a file of so many bytes is fetched again even if its size is the same


@contextlib.contextmanager
def store_of(flag: str, url: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL, and the path in it. What goes wrong in the `with` block is an
    InputError, Unavailable if another try may go well."""
    from fsspec.core import url_to_fs  # takes 0.1 s, and few runs need it

    try:
        yield url_to_fs(url)
    except Exception as error:  # each store has its own
        kind = InputError if isinstance(error, LASTING) else Unavailable
        raise kind(f"--{flag} {url}: {one_line(error)}") from error


def again(call: Callable[..., T], *arguments: Any) -> T:
    """What the call returns. A store that is not available (503, no connection) is asked again some
    times."""
    for wait_s in WAITS_S:
        try:
            return call(*arguments)
        except Unavailable:
            time.sleep(wait_s)
    return call(*arguments)


def is_remote(value: object) -> bool:
    return isinstance(value, str) and "://" in value


def local_inputs(fields: Sequence[Field], values: Mapping, world: World) -> dict[str, str]:
    """The paths, on every rank, of the local copies of the remote inputs among the values of flags;
    the copies are where a rank reads them. Raises InputError."""
    copies = {}
    for each in fields:
        value = values.get(each.name)
        if each.reads and is_remote(value):
            call = world.on_first if each.reads == "first" else world.on_each_machine
            copies[each.name] = call(again, fetched, each.name, value)
    return copies


def fetched(flag: str, url: str) -> str:
    """The path of the local copy of a remote file or folder, or for a remote pattern the local one.
    What the store says of names, sizes and versions is the key of the copy."""
    with store_of(flag, url) as (store, path):
        find = store.glob if glob.has_magic(path) else store.find
        names = sorted(find(path))
        versions = [(name, store.size(name), store.ukey(name)) for name in names]
        folder = cache_folder() / "remote" / digest(url, versions)
        is_folder = store.isdir(path)
        base = PurePosixPath(path) if is_folder else PurePosixPath(path).parent

        def fill(into):
            copies = [into / PurePosixPath(name).relative_to(base) for name in names]
            get(store, names, copies)

        if not names:
            raise InputError("no such file")
        with writing_cache():
            build_folder(folder, fill)
    return str(folder if is_folder else folder / PurePosixPath(path).name)


def fetched_model(url: str) -> str:
    """The local copy of a remote model; of a run's folder only its `model/`, once that is there."""
    with store_of("model", url) as (store, path):
        if store.exists(f"{path}/model/config.json"):
            url = f"{url.rstrip('/')}/model"
    return again(fetched, "model", url)


def get(store: Any, names: Sequence[str], copies: Sequence[Path]) -> None:
    """Copies files of a store, into folders that it need not make itself (file://)."""
    for folder in {copy.parent for copy in copies}:
        folder.mkdir(parents=True, exist_ok=True)
    store.get([*names], [*map(str, copies)])


def local_folder(url: str) -> Path:
    """The local folder of a run; for a remote one in the cache."""
    if not is_remote(url):
        return Path(url).expanduser()
    folder = cache_folder() / "runs" / digest(url)
    with writing_cache():
        folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass
class Mirror:
    """The remote folder of a run, `url`, and its local one. On rank 0."""

    url: str
    # size and time of what is the same there
    _versions: dict[str, tuple[int, int]] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)  # what the store says of its content

    def download(self, folder: Path) -> list[str]:
        """Makes the local folder like the remote one, which another machine may have written.
        Returns the names of the checkpoints that only this machine has, because an upload had
        failed: they are kept."""
        return again(self._download, folder)

    def _download(self, folder: Path) -> list[str]:
        with store_of("output_dir", self.url) as (store, path):
            sizes = {}
            self._keys = {}
            for remote, facts in store.find(path, detail=True).items():
                name = str(PurePosixPath(remote).relative_to(path))
                sizes[name] = facts["size"]
                self._keys[name] = store.ukey(remote)
            files = visible_files(folder)
            changed = sizes.copy()
            record = folder / UPLOADED
            uploaded = read_json(record) if record.is_file() else {}
            if isinstance(uploaded, list):  # of an earlier version, which asked for no keys
                uploaded = dict.fromkeys(uploaded)
            kept = []
            for name, file in files.items():
                if name not in sizes:
                    parent = PurePosixPath(name).parent
                    if parent.parent.name == CHECKPOINTS and name not in uploaded:
                        kept.append(str(parent))
                    else:
                        file.unlink()
                    continue
                is_large = file.stat().st_size == sizes[name] >= SMALL_BYTES
                if is_large and uploaded.get(name) == self._keys[name]:
                    del changed[name]
            sources = [f"{path}/{name}" for name in changed]
            get(store, sources, [folder / name for name in changed])
            self._versions = {name: version_of(folder / name) for name in sizes}
            if sizes or record.is_file():
                write_json(record, self._keys)
            for checkpoint in folder.rglob(f"{CHECKPOINTS}/*"):
                if not any(checkpoint.iterdir()):
                    checkpoint.rmdir()
            return list(dict.fromkeys(kept))

    def upload(self, folder: Path) -> None:
        """Uploads what has changed in the local folder, those files last that say that others are
        complete, and removes what is gone. Raises InputError."""
        again(self._upload, folder)

    def _upload(self, folder: Path) -> None:
        with store_of("output_dir", self.url) as (store, path):
            files = visible_files(folder)
            # first what says that others are complete, which they are not while they are removed
            for name in self._versions.keys() - files.keys():
                if PurePosixPath(name).name in LAST:
                    store.rm_file(f"{path}/{name}")
                    del self._versions[name]
            for name in sorted(files, key=lambda name: (files[name].name in LAST, name)):
                file = files[name]
                version = version_of(file)
                if self._versions.get(name) != version:
                    store.makedirs(str(PurePosixPath(path, name).parent), exist_ok=True)
                    store.put_file(str(file), f"{path}/{name}")
                    self._versions[name] = version
                    self._keys[name] = store.ukey(f"{path}/{name}")
            for name in self._versions.keys() - files.keys():
                store.rm_file(f"{path}/{name}")
                del self._versions[name]
            keys = {name: self._keys[name] for name in self._versions}
            write_json(folder / UPLOADED, keys)


def visible_files(folder: Path) -> dict[str, Path]:
    """The files in a folder by their relative names, without those that are being written, or the
    job's lock."""
    files = {}
    for file in folder.rglob("*"):
        name = str(file.relative_to(folder))
        if file.is_file() and "/." not in f"/{name}":
            files[name] = file
    return files


def version_of(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns
