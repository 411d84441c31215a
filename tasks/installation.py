"""Whether the packages that Python imports are ours: Dask installs a `distributed` too, bert-tensorflow a `bert`.

`tasks/__init__.py` calls `check_packages` before anything of `distributed` or `bert` is imported. Standard library
only, for the same reason.
"""

import base64
import hashlib
import importlib.metadata
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("ringbase", "ringbert", "bert", "distributed", "tasks")
SITE = Path(__file__).resolve().parent.parent  # the folder that holds the four packages
ADVICE = "install ringbert in an environment of its own"


def check_packages() -> None:
    """Ends the process with a one-line error if another package hides ours or has put files among ours."""
    program = Path(sys.argv[0]).name
    prefix = f"{program}: " if program.startswith("bert-") else ""
    for problem in itertools.chain(_shadowed(), _mixed()):
        raise SystemExit(f"{prefix}error: {problem}")


def _shadowed() -> Iterator[str]:
    """Packages with the same names that come before ours on Python's path."""
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        folder = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if folder != SITE / name:
            yield (
                f"`import {name}` finds {folder or 'nothing'} instead of ringbert's package: {ADVICE}, or run "
                "from a folder without a module of this name"
            )


def _mixed() -> Iterator[str]:
    """Files of another package in our folders, and files of ours that it overwrote.

    Compares the installed files with pip's list of them. A checkout has no such list and is not checked.
    """
    installed = _installed_files()
    for path, digest in installed.items():
        if not path.is_file():
            yield f"{path} of ringbert is missing, perhaps removed with a package that overwrote it: {ADVICE}"
        elif _sha256(path) != digest and (owner := _owner(path)):  # without an owner it was edited on purpose
            yield f"the package {owner} has overwritten {path} of ringbert: {ADVICE}"
    for name in PACKAGES if installed else ():
        for path in sorted((SITE / name).rglob("*.py")):
            if path not in installed and (owner := _owner(path)):
                yield f"the package {owner} has put {path} among the files of ringbert: {ADVICE}"


def _installed_files() -> dict[Path, str]:
    """Our modules and their digests in the list of installed files; empty for a checkout."""
    try:
        distribution = importlib.metadata.distribution("ringbert")
    except importlib.metadata.PackageNotFoundError:
        return {}
    if Path(str(distribution.locate_file(""))).resolve() != SITE:
        return {}
    return {
        SITE / file: file.hash.value
        for file in distribution.files or ()
        if file.parts[0] in PACKAGES and file.suffix == ".py" and file.hash
    }


def _sha256(path: Path) -> str:
    """The digest of a file in the form of the list of installed files (PEP 376)."""
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()


def _owner(path: Path) -> str | None:
    """The name of another installed package that lists this file as its own."""
    entry = f"{path.relative_to(SITE).as_posix()},"
    for distribution in importlib.metadata.distributions():
        name, record = distribution.metadata["Name"], distribution.read_text("RECORD") or ""
        if name != "ringbert" and any(line.startswith(entry) for line in record.splitlines()):
            return name
    return None
