"""A program's configuration as a class with convenient keyword arguments."""

import dataclasses
import functools
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from ringbase.errors import InputError
from ringbase.settings import GROUPS, Field, fields_of, of_type
from tasks import old_flags
from tasks.fit import TrainingSettings
from tasks.flags import nearest

FIRST = (  # in the documentation
    *("model", "train_file", "dev_file", "predict_file", "input_file", "eval_input_file", "output_dir"),
    *("train_batch_size", "global_batch_size", "learning_rate", "num_train_epochs", "num_train_steps"),
    *("max_seq_length", "task_name", "data_dir", "dataset_name"),
)
FLAG = re.compile(r"--(?:no_?)?([a-z]\w*)")

Values = Mapping[str, Any]
JobClass = TypeVar("JobClass", bound=type[TrainingSettings])


def from_python(program: str, module: str, parts: Callable[[Values], dict[str, bool]]) -> Callable:
    """Makes the class of a program's configuration convenient from Python.

    Its constructor takes paths, NumPy's numbers and the flags' other names; checks types; and names the nearest
    argument to an unknown one. All that is wrong raises InputError. Its `repr` and documentation are those of
    arguments.

    Args:
      program: the command, for messages.
      module: what `python -m` runs.
      parts: the arguments that are given -> `do_train` and the like, which are used unless one of them is given.
    """

    def decorate(job_class: JobClass) -> JobClass:
        construct: Callable[..., None] = job_class.__init__

        @functools.wraps(construct)
        def initialize(self: Any, /, *unnamed: Any, **arguments: Any) -> None:
            if unnamed:
                raise InputError(_without_name(unnamed[0], type(self)))
            values = _checked(type(self), arguments)
            values |= _implied(type(self), values, parts)
            try:
                construct(self, **values)
            except ValueError as error:
                raise InputError(without_dashes(str(error), type(self))) from None

        setattr(job_class, "__init__", initialize)  # noqa: B010 (type checkers keep the dataclass's arguments)
        setattr(job_class, "program", program)  # noqa: B010
        setattr(job_class, "module", module)  # noqa: B010
        signature = inspect.signature(construct)
        parameters = [signature.parameters[field.name] for field in _ordered(job_class)]
        setattr(job_class, "__signature__", signature.replace(parameters=parameters))  # noqa: B010
        job_class.__doc__ = f"{inspect.getdoc(job_class)}\n\nArgs:\n{_documentation(job_class)}"
        return job_class

    return decorate


class FromPython:
    """What the classes of jobs have in common.

    `program` is the command that runs the job, for messages; `module` is what `python -m` runs.
    """

    program: ClassVar[str]
    module: ClassVar[str]

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in changed(self).items())
        return f"{type(self).__name__}({arguments})"


def changed(job: Any) -> dict[str, Any]:
    """The arguments that differ from the defaults."""
    values = {field.name: (getattr(job, field.name), field.default) for field in dataclasses.fields(job)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _checked(job_class: type, arguments: Values) -> dict[str, Any]:
    """The arguments by the names of their fields, with their types. Raises InputError."""
    fields = fields_of(job_class)
    by_name = {name: field for field in fields for name in field.names}
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        field = by_name.get(name)
        if field is None:
            raise InputError(f"{job_class.__name__} has no argument {name}; {_hint(name, by_name, job_class)}")
        if field.name in values:
            raise InputError(f"{name} gives {field.name} a second time")
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        elif type(value).__module__ == "numpy" and hasattr(value, "item"):
            value = value.item()
        try:
            values[field.name] = of_type(value, field.type)
        except ValueError as error:
            raise InputError(f"{name} {error}") from None
    if missing := [field.name for field in fields if field.is_required and field.name not in values]:
        raise InputError(f"{job_class.__name__} needs {' and '.join(missing)}")
    return values


def _implied(job_class: type, values: Values, parts: Callable[[Values], dict[str, bool]]) -> dict[str, bool]:
    """Which parts of the work are done, if no argument says it. Raises InputError if there is nothing to do."""
    implied = parts(values)
    if any(name in values for name in implied):
        return {}
    if not any(implied.values()):
        files = {"do_train": "train_file", "do_eval": "dev_file", "do_predict": "predict_file"}
        wanted = " or ".join(files[name] for name in implied)
        raise InputError(f"nothing to do: {job_class.__name__} needs {wanted}")
    return implied


def _hint(name: str, known: Mapping[str, Field], job_class: type) -> str:
    if name in old_flags.REDUCED_PRECISIONS:
        return f"write precision={name!r}"
    near = nearest(name, known)
    return f"did you mean {near}?" if near else f"help(ringbert.{job_class.__name__}) lists all arguments"


def without_dashes(message: str, job_class: type) -> str:
    """A program's message with its flags written as arguments."""
    names = {name for field in fields_of(job_class) for name in field.names}
    return FLAG.sub(lambda match: match[1] if match[1] in names else match[0], message)


def _without_name(value: object, job_class: type) -> str:
    """The message about a positional argument."""
    name = next(field.name for field in _ordered(job_class) if field.name in ("train_file", "input_file"))
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    return f"{job_class.__name__} takes arguments by name, such as {name}=…; {value!r:.80} came without one"


def _ordered(job_class: type) -> list[Field]:
    """The arguments, those of nearly every job first, those of the machine last."""

    def place(field: Field) -> tuple[int, int]:
        return FIRST.index(field.name) if field.name in FIRST else len(FIRST), GROUPS.index(field.group)

    return sorted(fields_of(job_class), key=place)


def _documentation(job_class: type) -> str:
    """One paragraph for each argument."""
    paragraphs = []
    for field in _ordered(job_class):
        default = field.shown_default or ("required" if field.is_required else repr(field.default))
        text = without_dashes(f"{field.name}: {field.help} ({default})", job_class)
        paragraphs.append(
            textwrap.fill(text, 110, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        )
    return "\n".join(paragraphs)
