"""A job: a program of RingBERT's, or of one's own, with its flags as arguments."""

import os
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, ClassVar

from ringbase.errors import InputError, as_arguments
from ringbase.settings import BOOLEAN_WORDS, Field, fields_of, flat
from tasks.runs import flags
from tasks.runs.commands import Command
from tasks.runs.resolve.plan import planned

PYTHON = (sys.executable, "-P", "-m")  # whatever lies in the working directory


class LaunchedJob:
    """A program with its flags as arguments, whose values are attributes. What is wrong raises
    InputError."""

    program: str  # the name of what runs
    argv: list[str]
    output_dir: str
    do_train: bool
    files: list[str]  # of data in memory
    call: str  # as Python writes it

    @property
    def command(self) -> list[str]:
        """What each rank runs."""
        raise NotImplementedError

    def plan(self, ranks: int = 1) -> list[dict[str, Any]]:
        """What each run of the job would do on so many ranks, as `--plan` prints it: `plan` has the
        steps of a training, or `plan_about`, of which the number of rows is an estimate. Nothing is
        trained, and no model is downloaded. Raises InputError as `launch` would.
        """
        raise NotImplementedError

    def _read(self, arguments: Mapping[str, Any], fields: Sequence[Field] | None) -> None:
        """Makes the arguments flags. The flags of a script are its own: `fields` is None."""
        known = {name: field for field in fields or () for name in field.names}
        tables = {name for name, field in known.items() if field.is_table}
        if fields is None:
            tables = {name for name, value in arguments.items() if _is_table(name, value)}
        values = dict(arguments)
        self.files = []
        for name, value in arguments.items():
            if name in tables and not isinstance(value, str | os.PathLike | None):
                from ringbert.in_memory import file_of  # pyarrow takes 0.3 s, and most have files

                values[name] = file_of(value, name)
                self.files.append(values[name])
        shown_values = ", ".join(f"{name}={value!r}" for name, value in values.items())
        self.call = f"ringbert.{type(self).__name__}({shown_values})"
        self.argv = flags.argv_of(values, fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {shlex.join([self.program, *self.argv])}"


class CommandJob(LaunchedJob):
    """One of RingBERT's programs."""

    of: ClassVar[Command]
    __signature__: ClassVar[Signature]

    def __init_subclass__(cls, of: Command) -> None:
        cls.of, cls.program = of, of.name
        fields = arguments_of(of.config)
        parts = [f"{part} by {' or '.join(names)}" for part, names in of.implied.items()]
        summary, _, example = str(cls.__doc__).partition("\n\n")
        text = (
            f"{summary} Unless a job names parts of its work, they are implied: {', '.join(parts)}."
        )
        cls.__doc__ = f"{flags.help_of(fields, of.name, text)}\n\n{example}"
        # for help and editors
        cls.__signature__ = Signature([*map(_parameter_of, fields)])

    def __init__(self, /, **arguments) -> None:
        fields = arguments_of(self.of.config)
        self._read(arguments, fields)
        try:
            given = flags.read_command_line(self.argv, fields)
            if not given.keys() & self.of.implied:
                for part, names in self.of.implied.items():
                    if any(map(given.get, names)):
                        self.argv.append(f"--{part}")
                        given[part] = True
            self._config: Any = flags.configured(self.of.config, given)
        except ValueError as error:
            raise InputError(as_arguments(str(error))) from None
        values = flat(self._config)
        vars(self).update((field.name, values[field.name]) for field in fields)

    @property
    def command(self) -> list[str]:
        return [*PYTHON, self.of.package, *self.argv]

    def plan(self, ranks: int = 1) -> list[dict[str, Any]]:
        try:
            return planned(self.of.program, self._config, ranks, _warn)
        except ValueError as error:
            raise InputError(as_arguments(str(error))) from None


def _is_table(name: str, value: object) -> bool:
    """Whether an argument of a script holds rows: those of a file's name, unless it is a list of
    names, or a number."""
    if not name.endswith("_file") or isinstance(value, int | float):
        return False
    return not (isinstance(value, list | tuple) and all(isinstance(each, str) for each in value))


def arguments_of(settings: Any) -> tuple[Field, ...]:
    """The flags that are arguments of a job: `--plan` is a method."""
    return tuple(field for field in fields_of(settings) if field.name != "plan")


def _warn(text: str) -> None:
    """Shows the warnings among what a plan says."""
    if text.startswith("warning: "):
        warnings.warn(as_arguments(text.removeprefix("warning: ")), stacklevel=2)


def _parameter_of(field):
    """A flag as a keyword of its job."""
    kind = field.type
    if field.is_list:
        kind |= list
    if field.is_mapping:
        kind |= dict
    if field.is_table:
        kind = Any  # a file, or data in memory
    default = Parameter.empty if field.is_required else field.default
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


class Script(LaunchedJob):
    """A program of one's own, whose task is a `ringbert.task.Task`:
    `Script("own_task.py", output_dir="stars", do_train=True, …)`. Its flags are keywords.

    >>> Script("own_task.py", output_dir="stars", do_train=True, train_file="reviews.csv")
    Script: own_task --output_dir=stars --do_train=True --train_file=reviews.csv
    """

    def __init__(self, path: str | os.PathLike[str], /, **arguments) -> None:
        self.path = Path(path).expanduser()
        if not self.path.is_file():
            raise InputError(f"{path}: no such file")
        if not isinstance(arguments.get("output_dir"), str | os.PathLike):
            raise InputError("output_dir must be given, the folder of the run")
        self.program = self.path.stem
        self._read(arguments, None)
        self.output_dir = os.fspath(arguments["output_dir"])
        value = arguments.get("do_train")
        self.do_train = BOOLEAN_WORDS.get(str(value).lower(), bool(value))

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-P", str(self.path), *self.argv]

    def plan(self, ranks: int = 1) -> list[dict[str, Any]]:
        raise InputError(f"only the script knows its task: run {self.path} with --plan")
