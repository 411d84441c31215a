"""What `ringbert.launch` runs: the programs' flags as keyword arguments."""

import inspect
import os
import re
import textwrap
from collections.abc import Mapping
from typing import Any, ClassVar

from ringbase.errors import InputError
from ringbase.settings import Settings, fields_of, flat, made, of_type
from tasks.classifier.settings import ClassifierConfig
from tasks.flags import nearest
from tasks.old_flags import REDUCED_PRECISIONS
from tasks.pretraining.settings import PretrainingConfig
from tasks.squad.settings import SquadConfig

FLAG = re.compile(r"--(?:no_?)?([a-z]\w*)")


class LaunchedJob:
    """A program with its arguments, which are its flags; each is an attribute too.

    The constructor takes paths, NumPy's numbers and the flags' other names, checks types, and names the nearest
    argument to an unknown one. All that is wrong raises InputError.
    """

    program: ClassVar[str]  # the command, for messages
    module: ClassVar[str]  # what `python -m` runs
    settings: ClassVar[type[Settings]]
    # Each part of the work and the arguments that imply it, unless the job says by such flags what is done.
    parts: ClassVar[Mapping[str, tuple[str, ...]]]
    output_dir: str
    do_train: bool

    def __init_subclass__(cls) -> None:
        parameters, paragraphs = [], []
        for field in sorted(fields_of(cls.settings), key=lambda field: not field.is_required):
            default = inspect.Parameter.empty if field.is_required else field.default
            parameters.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default))
            shown = field.shown_default or ("required" if field.is_required else repr(default))
            text = without_dashes(f"{field.name}: {field.help} ({shown})", cls)
            paragraphs.append(textwrap.indent(textwrap.fill(text, 110, subsequent_indent="  "), "  "))
        cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        cls.__doc__ = "\n".join([f"{inspect.getdoc(cls)}\n\nArgs:", *paragraphs])

    def __init__(self, /, *unnamed: Any, **arguments: Any) -> None:
        kind = type(self)
        if unnamed:
            raise InputError(
                f"{kind.__name__} takes arguments by name, such as output_dir=…, got {unnamed[0]!r:.80}"
            )
        self.given = _checked(kind, arguments)
        if not self.given.keys() & kind.parts:
            self.given |= {part: True for part, names in kind.parts.items() if any(map(self.given.get, names))}
        if not self.given.keys() & kind.parts:
            files = " or ".join(names[0] for names in kind.parts.values())
            raise InputError(f"nothing to do: {kind.__name__} needs {files}")
        try:
            vars(self).update(flat(made(kind.settings, self.given)))
        except ValueError as error:
            raise InputError(without_dashes(str(error), kind)) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"

    def argv(self) -> list[str]:
        """The flags of the program's command line that give the same configuration."""
        texts = {
            name: str(value).lower() if isinstance(value, bool) else value for name, value in self.given.items()
        }
        return [f"--{name}={'null' if text is None else text}" for name, text in texts.items()]


def _checked(kind: type[LaunchedJob], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by the names of their fields, with their types. Raises InputError."""
    fields = fields_of(kind.settings)
    by_name = {name: field for field in fields for name in field.names}
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in by_name:
            near = nearest(name, by_name)
            hint = f"did you mean {near}?" if near else f"help(ringbert.{kind.__name__}) lists all arguments"
            hint = f"write precision={name!r}" if name in REDUCED_PRECISIONS else hint
            raise InputError(f"{kind.__name__} has no argument {name}; {hint}")
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        elif type(value).__module__ == "numpy" and hasattr(value, "item"):
            value = value.item()
        try:
            values[by_name[name].name] = of_type(value, by_name[name].type)
        except ValueError as error:
            raise InputError(f"{name} {error}") from None
    if missing := [field.name for field in fields if field.is_required and field.name not in values]:
        raise InputError(f"{kind.__name__} needs {' and '.join(missing)}")
    return values


def without_dashes(message: str, kind: type[LaunchedJob]) -> str:
    """A program's message with its flags written as arguments."""
    names = {name for field in fields_of(kind.settings) for name in field.names}
    return FLAG.sub(lambda match: match[1] if match[1] in names else match[0], message)


class Squad(LaunchedJob):
    """Fine-tunes BERT on SQuAD, answers questions and scores the answers, as the program bert-squad does.

    Trains if `train_file` is given and predicts if `predict_file` is given, unless `do_train` or `do_predict` says
    what to do.
    """

    program, module, settings = "bert-squad", "tasks.squad", SquadConfig
    parts: ClassVar = {"do_train": ("train_file", "dataset_name"), "do_predict": ("predict_file", "dataset_name")}


class Classification(LaunchedJob):
    """Fine-tunes BERT to label texts or pairs of texts, as the program bert-classifier does.

    Trains if `train_file` is given, evaluates if `dev_file` is, and predicts if `predict_file` is, unless
    `do_train`, `do_eval` or `do_predict` says what to do. With `task_name` it trains and evaluates.
    """

    program, module, settings = "bert-classifier", "tasks.classifier", ClassifierConfig
    parts: ClassVar = {
        "do_train": ("train_file", "task_name"),
        "do_eval": ("dev_file", "task_name"),
        "do_predict": ("predict_file",),
    }


class Pretraining(LaunchedJob):
    """Pretrains BERT on the shards of a corpus, as the program bert-pretraining does.

    Trains on `input_file`, and evaluates if `eval_input_file` is given, unless `do_train` or `do_eval` says what
    to do.
    """

    program, module, settings = "bert-pretraining", "tasks.pretraining", PretrainingConfig
    parts: ClassVar = {"do_train": ("input_file",), "do_eval": ("eval_input_file",)}


Job = Squad | Classification | Pretraining
