"""The cache of prepared data: folders that are checked before they are used, and built again when damaged."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ringbase import manifest
from ringbase.errors import InputError
from ringbase.files import build_folder, remove_folder

if TYPE_CHECKING:
    from distributed.run import Run


def holds(folder: Path, run: "Run") -> bool:
    """Whether the cache has this folder, with the bytes that were written. A damaged one is removed and named."""
    if not folder.is_dir():
        return False
    try:
        manifest.check_intact(folder)
    except InputError as error:
        run.say(f"warning: {folder} in the cache is damaged ({error}): it is built again")
        remove_folder(folder)
        return False
    return True


def build(folder: Path, fill: Callable[[Path], None], run: "Run") -> bool:
    """Builds a folder of the cache with `fill(folder)` unless it holds it; returns whether this call built it."""

    def fill_and_seal(into: Path) -> None:
        fill(into)
        manifest.seal(into, 0)

    return not holds(folder, run) and build_folder(folder, fill_and_seal)
