"""Keeps what XLA compiled in the cache folder, so that a later run of the same kind does not compile it again.

TensorFlow reads and writes compiled functions as files of a folder, and trusts them: a cut file ends the run, and
a changed one may compute something else. So each process has a folder of its own. It starts with copies of the
kept files whose digest, which is part of their name, is right; what the run adds is kept at its end.
"""

import contextlib
import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ringbase.errors import InputError
from ringbase.files import replacing
from ringbase.hashing import digest

if TYPE_CHECKING:
    from distributed.world import World

FLAG = "--tf_xla_persistent_cache_directory"
KEPT_BYTES = 2 << 30  # in all, for all kinds of runs; the files that were not used for the longest time go first
ROOM_BYTES = 1 << 30  # TensorFlow ends a run that cannot write its file, so there must be room


def own_folder() -> Path | None:
    """Names a folder for this process in TF_XLA_FLAGS, which TensorFlow reads when it is imported.

    Returns None if there is no room for it or the user's TF_XLA_FLAGS name one.
    """
    flags = os.environ.get("TF_XLA_FLAGS", "")
    folder = Path(tempfile.gettempdir()) / f"ringbert-xla-{uuid.uuid4().hex}"
    if FLAG in flags or shutil.disk_usage(folder.parent).free < ROOM_BYTES:
        return None
    os.environ["TF_XLA_FLAGS"] = f"{flags} {FLAG}={folder}".strip()
    return folder


@contextlib.contextmanager
def kept_in(cache: Path, own: Path | None, kind: str, say: Callable[[str], None]) -> Iterator[None]:
    """Fills the process's own folder from `cache`, and keeps what the block adds to it.

    Args:
      own: the folder that `own_folder` named, removed at the end.
      kind: code is only shared between runs of the same kind; see `kind_of_run`.
    Raises:
      InputError: the user's TF_XLA_FLAGS name a folder for compiled code.
    """
    if own is None:
        if FLAG in (flags := os.environ.get("TF_XLA_FLAGS", "")):
            raise InputError(f"TF_XLA_FLAGS={flags} names a folder for compiled code: remove it, or --xla_cache")
        say(f"--xla_cache: less than {ROOM_BYTES >> 30} GiB is free in {tempfile.gettempdir()}: nothing is kept")
        yield
        return
    own.mkdir(mode=0o700)
    store = cache / "xla" / kind
    found, damaged = _fetch(store, own)
    try:
        say(f"--xla_cache: {found} compiled functions of earlier runs" + f", {damaged} damaged" * (damaged > 0))
        yield
    finally:
        try:
            _keep(own, store)
            _limit(cache / "xla", KEPT_BYTES)
        except OSError as error:
            say(f"warning: --xla_cache: {error}")
        shutil.rmtree(own, ignore_errors=True)


def kind_of_run(world: "World") -> str:
    """A digest of all that compiled code depends on beside the function, whose own digest TensorFlow makes."""
    import tensorflow as tf
    from tensorflow.python.framework.config import is_op_determinism_enabled

    processor = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = "".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags"))))
    nvidia = {dist.name: dist.version for dist in metadata.distributions() if dist.name.startswith("nvidia-")}
    variables = {name: os.environ.get(name) for name in ("XLA_FLAGS", "LD_LIBRARY_PATH")}
    flags = [flag for flag in os.environ.get("TF_XLA_FLAGS", "").split() if not flag.startswith(FLAG)]
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    settings = (tf32, is_op_determinism_enabled(), world.threads)
    return digest(
        tf.version.GIT_VERSION, nvidia, platform.machine(), processor, str(world.gpu), variables, flags, settings
    )


def _fetch(store: Path, own: Path) -> tuple[int, int]:
    """Copies intact files. Returns how many there are, and how many damaged ones were removed."""
    found, damaged = 0, 0
    for path in store.glob("*.pb.*"):
        name, _, expected = path.name.rpartition(".")
        with contextlib.suppress(FileNotFoundError):  # another run removes it
            content = path.read_bytes()
            if sha256(content).hexdigest() == expected:
                (own / name).write_bytes(content)
                path.touch()
                found += 1
            else:
                path.unlink()
                damaged += 1
    return found, damaged


def _keep(own: Path, store: Path) -> None:
    for path in own.glob("*.pb"):
        if not any(store.glob(f"{path.name}.*")):
            store.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes()
            with replacing(store / f"{path.name}.{sha256(content).hexdigest()}", sync=False) as file:
                file.write(content)


def _limit(folder: Path, most_bytes: int) -> None:
    """Removes the files that were not used for the longest time, until the rest has at most this size."""
    files = []
    for path in folder.glob("*/*.pb.*"):
        with contextlib.suppress(FileNotFoundError):
            files.append((path.stat().st_mtime, path.stat().st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= most_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size
