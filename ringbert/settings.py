"""Settings dataclasses: fields with a default, a sentence of help, aliases and a type, and checks of ranges.

A dataclass of settings stands beside the component that uses it. A program's configuration inherits those of its
components, and `tasks/flags.py` reads it from the command line and a TOML file.

A field is a bool, int, float, str, Literal, or a union of these and None.
"""

import contextlib
import dataclasses
import json
import math
import sys
import types
import typing
from typing import Any, Literal

GROUPS = (  # headings of --help, in this order
    "data", "output", "model", "examples", "masks", "training", "evaluation", "prediction", "machine",
)  # fmt: skip


class Settings:
    """Base of all settings dataclasses, which are `@dataclass(frozen=True, kw_only=True)`.

    A class that checks its values extends `__post_init__`, calls `super().__post_init__()` and raises ValueError;
    so a configuration that inherits from several of them runs all their checks.
    """

    def __post_init__(self) -> None:
        pass


def setting(
    default: Any = dataclasses.MISSING,
    help: str = "",
    group: str = "",
    *,
    aliases: tuple[str, ...] = (),
    shown_default: str | None = None,
) -> Any:
    """A field of a frozen, keyword-only dataclass of settings.

    Args:
      default: leave it out for a required field.
      help: one sentence, with the unit of a number.
      group: the heading under which `--help` lists it.
      aliases: other names of the flag, without dashes.
      shown_default: the text that `--help` shows for a default of None, which stands for a value computed later.
    """
    metadata = {"help": help, "group": group, "aliases": aliases, "shown_default": shown_default}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a dataclass of settings, with the arguments of `setting`."""

    name: str
    type: Any
    help: str = ""
    group: str = ""
    aliases: tuple[str, ...] = ()
    default: Any = None
    shown_default: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def is_boolean(self) -> bool:
        return bool in alternatives(self.type)

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING


def fields_of(settings_class: Any) -> list[Field]:
    """The fields of a dataclass of settings that its constructor takes, in order."""
    annotations = typing.get_type_hints(settings_class)
    return [
        Field(field.name, annotations[field.name], default=field.default, **field.metadata)
        for field in dataclasses.fields(settings_class)
        if field.init
    ]


def check_at_least(settings: object, lowest: float, *names: str) -> None:
    """Raises ValueError for the first of these numbers below `lowest` or not finite. None and strings pass."""
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, int | float) and (value < lowest or not math.isfinite(value)):
            raise ValueError(f"--{name} must be at least {lowest}, got {value}")


def check_share(settings: object, *names: str) -> None:
    """Raises ValueError for the first of these numbers that is not between 0 and 1. None passes."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"--{name} must be between 0 and 1, got {value}")


# -- types --------------------------------------------------------------------------------------------------------

BOOLEAN_WORDS = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
_KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The types and single values that a field allows: `int | Literal["auto"] | None` is (int, "auto", None)."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(choice for part in typing.get_args(annotation) for choice in alternatives(part))
    if typing.get_origin(annotation) is Literal:
        return typing.get_args(annotation)
    return (None,) if annotation is types.NoneType else (annotation,)


def of_type(value: Any, annotation: Any) -> Any:
    """Returns `value`, converted to float if the type is float.

    Raises ValueError unless the type matches exactly: True is not an integer, "3" is not a number, and infinity is
    not allowed.
    """
    for choice in alternatives(annotation):
        if choice is float:
            if type(value) in (int, float) and abs(value) <= sys.float_info.max:
                return float(value)
        elif type(value) is choice or (type(value) is type(choice) and value == choice):
            return value
    raise _refusal(value, annotation)


def from_text(text: str, annotation: Any) -> Any:
    """The value that `text` stands for: "null" is None if the type allows it. Raises ValueError."""
    choices = alternatives(annotation)
    for choice in choices:
        if not isinstance(choice, type) and text == ("null" if choice is None else str(choice)):
            return choice
    for choice in choices:
        if choice is bool and text.lower() in BOOLEAN_WORDS:
            return BOOLEAN_WORDS[text.lower()]
        if choice in (int, float, str):
            with contextlib.suppress(ValueError):
                return of_type(choice(text), choice)
    raise _refusal(text, annotation)


def _refusal(value: Any, annotation: Any) -> ValueError:
    """An error such as `must be an integer or auto, got "often"`."""
    choices = [choice for choice in alternatives(annotation) if choice is not None]
    words = [_KINDS[choice] if isinstance(choice, type) else str(choice) for choice in choices]
    expected = " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
    return ValueError(f"must be {expected}, got {json.dumps(value, default=str, ensure_ascii=False)}")
