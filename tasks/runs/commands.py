"""What a console command is, before its flags are read. Nothing else is imported for `--help`."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def command_of(program: str) -> str:
    """The name of the command that a process was started as, by the first of its arguments: that of
    `bert-squad` or `python -m tasks.squad`, or of a script."""
    path = Path(program)
    if path.stem == "__main__":
        return f"bert-{path.parent.name}"
    return path.stem


@dataclass(frozen=True)
class Command:
    """A console command `bert-NAME`, whose modules are in the package `tasks.NAME`."""

    name: str
    config: type  # its flags
    # for Python: each part of the work, and the flags that imply it unless a job names parts itself
    implied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def package(self) -> str:
        return self.name.replace("bert-", "tasks.")

    @property
    def program(self) -> Any:
        """The `tasks.runs.resolve.command.Program` of a command that trains."""
        return importlib.import_module(f"{self.package}.definition").PROGRAM
