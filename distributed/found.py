"""Checkpoints as a folder holds them: complete, intact, the newest. Without TensorFlow."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from distributed.plan import State
from ringbase import manifest
from ringbase.errors import InputError, Unreadable
from ringbase.files import read_object

CHECKPOINTS = "checkpoints"  # the folder of a run that has them
STATE_FILE = "state.json"  # of a checkpoint


class Found(NamedTuple):
    """An intact checkpoint and the state in it."""

    path: Path
    state: State


def folder_name(position: int) -> str:
    """The name of the checkpoint at a position, in rows of the stream."""
    return f"rows-{position:012d}"


def complete_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder whose files have the sizes in their manifests, in order of
    position."""
    return [path for path in checkpoints_in(folder) if manifest.position_of(path) is not None]


def checkpoints_in(folder: Path) -> list[Path]:
    """Those of a folder, intact or not, in order of position."""
    # A rewrite that was killed can have set one aside, as NAME.old, which a new one of this
    # position follows.
    return sorted(folder.glob("rows-*"), key=lambda path: (path.stem, not path.suffix))


def read_checkpoint(path: Path) -> State:
    """The state in a checkpoint. Raises InputError, with the reason, unless all bytes match the
    manifest and the state is one of this version, or of an earlier one that lacked what has a
    default."""
    try:
        manifest.check_intact(path)
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error
    file = path / STATE_FILE
    values = read_object(file)
    names = {field.name for field in fields(State)}
    needed = {field.name for field in fields(State) if field.name != "evaluated_by"}
    different = (values.keys() - names) | (needed - values.keys())
    if different:
        listed = ", ".join(sorted(different))
        raise InputError(f"{file} is of another version of RingBERT, which differs in {listed}")
    return State(**values)


def newest_intact(folder: Path, say: Callable[[str], None]) -> Found | None:
    """The newest checkpoint whose bytes match its manifest, and its state; None if there are no
    checkpoints. Calls `say` with a warning for each newer one. `folder` holds checkpoints, or is
    one. Raises InputError, with the reasons, if there are checkpoints but none is intact, and
    Unreadable for one that cannot be read: nothing is done without it, as it may be the best."""
    reasons: list = []
    for path in [folder] if (folder / manifest.NAME).exists() else reversed(checkpoints_in(folder)):
        try:
            state = read_checkpoint(path)
        except Unreadable:
            raise
        except InputError as error:
            reasons.append(str(error))
            continue
        for reason in reasons:
            say(f"warning: not used: {reason}")
        return Found(path, state)
    if reasons:
        text = "; ".join(reasons)
        raise InputError(f"{folder} has checkpoints, but none of them is intact ({text})")
    return None


def checkpoint_at(folder: Path, position: int) -> Found:
    """The best checkpoint, at a position, and its state. Raises InputError when it is missing or
    damaged."""
    path = folder / folder_name(position)
    if not path.is_dir():  # a kill has left the one that was being replaced
        path = path.with_name(f"{path.name}.old")
    if not path.is_dir():
        raise InputError(
            f"{folder}: the checkpoint at row {position}, the best one, no longer exists"
        )
    return Found(path, read_checkpoint(path))
