"""A reader under attack: the files that it gets, how it is called, and what must hold for what it accepts.

A reader is called as the programs call it. It returns if it accepts its files, after checking what it read, or
raises InputError. Anything else is a fault. Their files and checks are in `model_files`, `data_files`, `run_files`
and `flag_files`, and the list of all is in `registry`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Reader:
    """A reader and its files.

    Attributes:
      files: name -> (content, kind of its changes). One of them is changed in a case.
      read: (folder, changed file) -> None; checks what it accepts with `assert`.
      share: of the cases.
      others: files that are never changed.
      before: prepares the folder after its files are written.
    """

    name: str
    files: Mapping[str, tuple[bytes, str]]
    read: Callable[[Path, str], None]
    share: float = 1.0
    others: Mapping[str, bytes] = field(default_factory=dict)
    before: Callable[[Path], None] = lambda folder: None
    takes_flags: bool = False


def to_json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode()


def rows(*values: object) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()
