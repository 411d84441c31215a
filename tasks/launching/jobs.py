"""What `ringbert.launch` runs: the programs' flags as keyword arguments."""

import inspect
import os
import re
import textwrap
from collections.abc import Mapping
from typing import Any, ClassVar

from ringbase.errors import InputError
from ringbase.settings import GROUPS, Field, Settings, fields_of, flat, from_text, made, of_type
from tasks import old_flags
from tasks.classifier.settings import ClassifierConfig
from tasks.flags import nearest
from tasks.pretraining.settings import PretrainingConfig
from tasks.squad.settings import SquadConfig

FIRST = (  # in the documentation
    *("model", "train_file", "dev_file", "predict_file", "input_file", "eval_input_file", "output_dir"),
    *("train_batch_size", "global_batch_size", "learning_rate", "num_train_epochs", "num_train_steps"),
    *("max_seq_length", "task_name", "data_dir", "dataset_name"),
)
FLAG = re.compile(r"--(?:no_?)?([a-z]\w*)")

Values = Mapping[str, Any]


class LaunchedJob:
    """A program with its arguments, which are its flags; each is an attribute too.

    The constructor takes paths, NumPy's numbers and the flags' other names, checks types, and names the nearest
    argument to an unknown one. All that is wrong raises InputError.
    """

    program: ClassVar[str]  # the command, for messages
    module: ClassVar[str]  # what `python -m` runs
    settings: ClassVar[type[Settings]]

    @staticmethod
    def implied(given: Values) -> dict[str, bool]:
        """The arguments that are given -> `do_train` and the like, which are used unless one of them is given."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        named = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field))
            for field in _ordered(cls)
        ]
        cls.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        cls.__doc__ = f"{inspect.getdoc(cls)}\n\nArgs:\n{_documentation(cls)}"

    def __init__(self, /, *unnamed: Any, **arguments: Any) -> None:
        if unnamed:
            raise InputError(_without_name(unnamed[0], type(self)))
        values = _checked(type(self), arguments)
        values |= _implied(type(self), values)
        try:
            self.values = flat(made(self.settings, values))
        except ValueError as error:
            raise InputError(without_dashes(str(error), type(self))) from None

    def __getattr__(self, name: str) -> Any:
        if name != "values" and name in self.values:
            return self.values[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.values == other.values

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.changed().items())
        return f"{type(self).__name__}({arguments})"

    def changed(self) -> dict[str, Any]:
        """The arguments that differ from the defaults."""
        defaults = {field.name: field.default for field in fields_of(self.settings)}
        return {name: value for name, value in self.values.items() if value != defaults[name]}

    def argv(self) -> list[str]:
        """The flags of the program's command line that give the same configuration."""
        types = {field.name: field.type for field in fields_of(self.settings)}
        flags = []
        for name, value in self.changed().items():
            text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            if from_text(text, types[name]) != value:
                raise InputError(f"{name} cannot be {value!r}: on a command line it has another meaning")
            flags.append(f"--{name}={text}")
        return flags


def _checked(job_class: type[LaunchedJob], arguments: Values) -> dict[str, Any]:
    """The arguments by the names of their fields, with their types. Raises InputError."""
    fields = fields_of(job_class.settings)
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


def _implied(job_class: type[LaunchedJob], values: Values) -> dict[str, bool]:
    """Which parts of the work are done, if no argument says it. Raises InputError if there is nothing to do."""
    implied = job_class.implied(values)
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


def without_dashes(message: str, job_class: type[LaunchedJob]) -> str:
    """A program's message with its flags written as arguments."""
    names = {name for field in fields_of(job_class.settings) for name in field.names}
    return FLAG.sub(lambda match: match[1] if match[1] in names else match[0], message)


def _without_name(value: object, job_class: type[LaunchedJob]) -> str:
    """The message about a positional argument."""
    name = next(field.name for field in _ordered(job_class) if field.name in ("train_file", "input_file"))
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    return f"{job_class.__name__} takes arguments by name, such as {name}=…; {value!r:.80} came without one"


def _ordered(job_class: type[LaunchedJob]) -> list[Field]:
    """The arguments, those of nearly every job first, those of the machine last."""

    def place(field: Field) -> tuple[int, int]:
        return FIRST.index(field.name) if field.name in FIRST else len(FIRST), GROUPS.index(field.group)

    return sorted(fields_of(job_class.settings), key=place)


def _default(field: Field) -> Any:
    return inspect.Parameter.empty if field.is_required else field.default


def _documentation(job_class: type[LaunchedJob]) -> str:
    """One paragraph for each argument."""
    paragraphs = []
    for field in _ordered(job_class):
        default = field.shown_default or ("required" if field.is_required else repr(field.default))
        text = without_dashes(f"{field.name}: {field.help} ({default})", job_class)
        paragraphs.append(
            textwrap.fill(text, 110, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        )
    return "\n".join(paragraphs)


class Squad(LaunchedJob):
    """Fine-tunes BERT on SQuAD, answers questions and scores the answers, as the program bert-squad does.

    Trains if `train_file` is given and predicts if `predict_file` is given, unless `do_train` or `do_predict` says
    what to do.
    """

    program, module, settings = "bert-squad", "tasks.squad", SquadConfig

    @staticmethod
    def implied(given: Values) -> dict[str, bool]:
        return {
            "do_train": bool(given.get("train_file") or given.get("dataset_name")),
            "do_predict": bool(given.get("predict_file") or given.get("dataset_name")),
        }


class Classification(LaunchedJob):
    """Fine-tunes BERT to label texts or pairs of texts, as the program bert-classifier does.

    Trains if `train_file` is given, evaluates if `dev_file` is, and predicts if `predict_file` is, unless
    `do_train`, `do_eval` or `do_predict` says what to do. With `task_name` it trains and evaluates.
    """

    program, module, settings = "bert-classifier", "tasks.classifier", ClassifierConfig

    @staticmethod
    def implied(given: Values) -> dict[str, bool]:
        return {
            "do_train": bool(given.get("train_file") or given.get("task_name")),
            "do_eval": bool(given.get("dev_file") or given.get("task_name")),
            "do_predict": bool(given.get("predict_file")),
        }


class Pretraining(LaunchedJob):
    """Pretrains BERT on the shards of a corpus, as the program bert-pretraining does.

    Trains on `input_file`, and evaluates if `eval_input_file` is given, unless `do_train` or `do_eval` says what
    to do.
    """

    program, module, settings = "bert-pretraining", "tasks.pretraining", PretrainingConfig

    @staticmethod
    def implied(given: Values) -> dict[str, bool]:
        return {"do_train": "input_file" in given, "do_eval": bool(given.get("eval_input_file"))}


Job = Squad | Classification | Pretraining
