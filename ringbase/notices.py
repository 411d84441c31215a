"""TensorFlow's notices (oneDNN, the processor's features, "Compiled cluster using XLA!", the MLIR
reproducer), which say nothing to a user of ours.

Two places hide them. `hide_on_import`, which the packages of programs call, hides those of their
own process: a level, and a filter while TensorFlow is imported, for the one of oneDNN comes at any
level. bert-launch leaves them out of what its ranks print (`Stream`), because a script may import
TensorFlow before anything of ours. A user's own TF_CPP_MIN_LOG_LEVEL wins: at 0 all are shown.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# How the lines of notices begin, for grep and for Python: messages of level INFO, of which one has
# two lines, and a warning that others come before the log is ready.
INFO = r"I[0-9]{4} [0-9:.]+ +[0-9]+ [a-z0-9_]+\.(cc|h):[0-9]+\] "
EARLY = "WARNING: All log messages before absl::InitializeLog"
FEATURES = "To enable the following instructions: "
BEGINNING = f"({INFO}|{EARLY}|{FEATURES})"


def hide_on_import() -> None:
    """Hides the notices of a TensorFlow that this process imports from now on, whoever does."""
    if "tensorflow" not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def are_wanted() -> bool:
    """Whether the user asks for them."""
    return os.environ.get(LEVEL) == "0"


class _Finder(MetaPathFinder):
    """Finds TensorFlow as the others do."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec and spec.loader:
            spec.loader = _QuietLoader(spec.loader)
        return spec


class _QuietLoader(Loader):
    """Loads TensorFlow without its notices, by the loader that it had."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        # Where there is no GPU, TensorFlow's packages for GPUs log its absence as errors, once for
        # each library.
        has_driver = Path("/proc/driver/nvidia").exists()
        os.environ.setdefault(LEVEL, "2" if has_driver else "3")
        with contextlib.nullcontext() if are_wanted() else without_notices():
            self._loader.exec_module(module)


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Standard error without the notices. Another process filters it, which passes on why this one
    aborts; none where there is no grep."""
    folders = f"{os.environ.get('PATH', '')}:{os.defpath}"
    if shutil.which("grep", path=folders) is None:
        yield
        return
    command = ["grep", "-avE", f"^{BEGINNING}"]
    variables = {"PATH": folders, "LC_ALL": "C"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, env=variables) as filtering:
        assert filtering.stdin is not None
        kept = os.dup(2)
        os.dup2(filtering.stdin.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


class Stream:
    """Takes the notices out of a text that comes in pieces, in which each line may have a tag of
    mpirun's before it."""

    def __init__(self, tag: bytes):
        self._notice = re.compile(rb"^(?:%s)?%s[^\n]*\n" % (tag, BEGINNING.encode()), re.MULTILINE)
        self._tag = re.compile(tag)
        self._are_wanted = are_wanted()
        self._begun = b""  # a line that may become a notice

    def __call__(self, piece: bytes) -> bytes:
        """What there is to print by now."""
        if self._are_wanted:
            return piece
        text = self._notice.sub(b"", self._begun + piece)
        first = text.rfind(b"\n") + 1
        is_open = self._may_be_notice(text[first:])
        self._begun = text[first:] if is_open else b""
        return text[:first] if is_open else text

    def rest(self) -> bytes:
        """What is left at the end of the text."""
        rest, self._begun = self._begun, b""
        return rest

    def _may_be_notice(self, line: bytes) -> bool:
        tag = self._tag.match(line)
        own = line[tag.end() :] if tag else line
        beginnings = [b"I0000 ", EARLY.encode(), FEATURES.encode()]
        return line != b"" and any(
            own.startswith(beginning) or beginning.startswith(own) for beginning in beginnings
        )
