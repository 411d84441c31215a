"""Settings dataclasses: fields with a default, a sentence of help, aliases and a type, and checks
of ranges.

They stand beside the components that use them; a program's configuration holds those of its
components as parts. Its flags, TOML files and run.json are flat. A field is a part, or a bool, int,
float, str, Literal, or a union of these and None.
"""

import contextlib
import dataclasses
import re
import sys
import types
import typing
from collections.abc import Container, Iterator, Mapping
from typing import Any, Literal, TypeVar

T = TypeVar("T")

# Limits beyond which a setting is a mistake: it would fill the memory, or never end, before the
# first step.
MOST_SEED = (1 << 32) - 1
MOST_ROWS = 1 << 20  # of a step or of a batch of predictions
LONGEST_ROW = 1 << 16  # tokens
MOST_STEPS = 1_000_000_000
MOST = (1 << 63) - 1  # of any number
TEXTS = tuple[str, ...]  # the type of a field that takes every value it is given
LONGEST_SHOWN = 80  # characters of a value in a message
# What a training depends on: which examples it reads, how they become rows, how the model is
# trained. None: it does not depend on it (what is evaluated or predicted, logging, the machine).
Changes = Literal["data", "rows", "training"]
# Who reads the file or folder that a setting names, which is fetched there if it is remote: the
# first rank, or one on each machine.
ReadBy = Literal["first", "machine"]
Described = Literal["model", "data"]  # of which part of a run it tells people most
# half of a pair: not UTF-8, but JSON or an argument may hold it
SURROGATE = re.compile("[\ud800-\udfff]")


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
class Settings:
    """Base of all settings, whose classes it makes dataclasses, frozen and with keywords only.
    Making one checks every value and raises ValueError; a class extends `check` for what concerns
    several values."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            least = field.metadata.get("at_least", -MOST)
            most = field.metadata.get("at_most", MOST)
            if isinstance(value, int | float) and not least <= value <= most:
                limit = f"at most {most:,}" if value > most else f"at least {least}"
                raise ValueError(f"--{field.name} must be {limit}, got {value:,}")
            if isinstance(value, str) and ("\0" in value or SURROGATE.search(value)):
                raise ValueError(
                    f"--{field.name} must be UTF-8 text without NUL characters, got {shown(value)}"
                )
        self.check()

    def check(self) -> None:
        """Raises ValueError if the values contradict each other."""

    def check_settled(self) -> None:
        """Raises ValueError if values contradict each other of which a trained model may give some
        (`Field.is_saved`). Called when they are known, so not where the settings are made."""

    def void(self) -> Mapping[str, str]:
        """The flags that the other values make void, if there are any, each with the reason."""
        return {}

    @property
    def given(self) -> frozenset[str]:
        """The names of the flat values that `made` got; the others are defaults."""
        return vars(self).get("_given", frozenset(flat(self)))


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a dataclass of settings, with the arguments of `setting`."""

    name: str
    type: Any
    help: str = ""  # one sentence, with the unit of a number
    group: str = ""  # the heading under which `--help` lists it
    aliases: tuple[str, ...] = ()  # other names of the flag, without dashes
    default: Any = None
    # what `--help` shows for a default of None, a value computed later
    shown_default: str | None = None
    # set, in order, by the words of a command line that belong to no flag; TEXTS takes all
    is_positional: bool = False
    at_least: float = -MOST  # of a number
    at_most: float = MOST
    # a trained model is saved with it, and predictions with the model take it by default
    is_saved: bool = False
    needs: tuple[str, ...] = ()  # they take it only with one of these flags
    is_list: bool = False  # values with commas between them, in Python also a list
    changes: Changes | None = None
    reads: ReadBy | None = None
    is_table: bool = False  # a file of rows: in Python also rows in memory
    is_mapping: bool = False  # may be a JSON object, in Python a dict and in TOML a table
    describes: Described | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def is_boolean(self) -> bool:
        return bool in alternatives(self.type)

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING


def setting(
    default: Any = dataclasses.MISSING,
    help: str = "",
    group: str = "",
    *,
    aliases: tuple[str, ...] = (),
    shown_default: str | None = None,
    is_positional: bool = False,
    at_least: float = -MOST,
    at_most: float = MOST,
    is_saved: bool = False,
    needs: tuple[str, ...] = (),
    is_list: bool = False,
    changes: Changes | None = None,
    reads: ReadBy | None = None,
    is_table: bool = False,
    is_mapping: bool = False,
    describes: Described | None = None,
) -> Any:
    """A field of a dataclass of settings, without a default if it is required. The other arguments
    are those of `Field`."""
    arguments = {name: value for name, value in locals().items() if name != "default"}
    return dataclasses.field(default=default, metadata=arguments)


def fields_of(settings_class: Any) -> tuple[Field, ...]:
    """The fields of a dataclass of settings and of its parts, in order."""
    fields: list[Field] = []
    for field, annotation, is_part in _annotated(settings_class):
        if is_part:
            fields += fields_of(annotation)
        else:
            fields.append(Field(field.name, annotation, default=field.default, **field.metadata))
    return tuple(fields)


def made(settings_class: type[T], values: Mapping[str, Any]) -> T:
    """The settings with these flat values, each handed to the part that has a field of its name.
    Raises ValueError: a value is out of range, or contradicts another. TypeError: a name is
    unknown."""
    given, values = frozenset(values), dict(values)
    parts = {}
    for field, annotation, is_part in _annotated(settings_class):
        if is_part:
            names = values.keys() & {part.name for part in fields_of(annotation)}
            parts[field.name] = made(annotation, {name: values.pop(name) for name in names})
    settings = settings_class(**values, **parts)
    object.__setattr__(settings, "_given", given)  # no field: it says nothing about equality
    return settings


def check_settled(settings: Settings) -> None:
    """Raises ValueError if the values of settings or of their parts contradict each other."""
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        part = getattr(settings, field.name)
        if isinstance(part, Settings):
            check_settled(part)
    settings.check_settled()


def unheeded(settings: Settings, given: Container[str]) -> Iterator[str]:
    """What to say of flags that are `given` and change nothing, in settings and their parts: a line
    for each reason."""
    flags: dict[str, list[str]] = {}
    for name, reason in _void(settings).items():
        if name in given:
            flags.setdefault(reason, []).append(f"--{name}")
    for reason, names in flags.items():
        change = "change" if len(names) > 1 else "changes"
        yield f"note: {', '.join(names)} {change} nothing: {reason}"


def _void(settings: Settings) -> dict[str, str]:
    """The void flags of settings and their parts; of several reasons that of the whole."""
    reasons: dict[str, str] = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        part = getattr(settings, field.name)
        if isinstance(part, Settings):
            reasons |= _void(part)
    return reasons | dict(settings.void())


def flat(settings: Any) -> dict[str, Any]:
    """The values of settings and of their parts by name, as `made` takes them."""
    values: dict = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        values |= flat(value) if isinstance(value, Settings) else {field.name: value}
    return values


def changing(settings: Any, *what: Changes) -> dict[str, Any]:
    """The values of the settings that change one of these things, by name."""
    values = flat(settings)
    names = (field.name for field in fields_of(type(settings)) if field.changes in what)
    return {name: values[name] for name in names}


def _annotated(settings_class: Any) -> Iterator[tuple[dataclasses.Field, Any, bool]]:
    """Each field with its type, and whether it is a part."""
    annotations = typing.get_type_hints(settings_class)
    for field in dataclasses.fields(settings_class):
        kind = annotations[field.name]
        yield field, kind, isinstance(kind, type) and issubclass(kind, Settings)


BOOLEAN_WORDS = dict.fromkeys(("true", "t", "yes", "y", "1"), True)
BOOLEAN_WORDS |= dict.fromkeys(("false", "f", "no", "n", "0"), False)
_KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The types and single values that a field allows: `int | Literal["auto"] | None` is (int,
    "auto", None)."""
    origin = typing.get_origin(annotation)
    parts = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return tuple(choice for part in parts for choice in alternatives(part))
    if origin is Literal:
        return parts
    return (None,) if annotation is types.NoneType else (annotation,)


def of_type(value: Any, annotation: Any) -> Any:
    """Returns `value`, converted to float if the type is float. Raises ValueError unless the type
    matches exactly: True is not an integer, "3" is not a number, and infinity is not allowed."""
    choices = alternatives(annotation)
    for choice in choices:
        if choice is float:
            if type(value) in (int, float) and abs(value) <= sys.float_info.max:
                return float(value)
        elif type(value) is choice or (type(value) is type(choice) and value == choice):
            return value
    *others, last = (_KINDS.get(choice, choice) for choice in choices if choice is not None)
    expected = f"{', '.join(others)} or {last}" if others else last
    raise ValueError(f"must be {expected}, got {shown(value)}")


def from_text(text: str, annotation: Any) -> Any:
    """The value that `text` stands for: "null" is None if the type allows it. Raises ValueError."""
    if annotation == TEXTS:
        return (text,)
    for read in ({"null": None}.__getitem__, lambda text: BOOLEAN_WORDS[text.lower()], int, float):
        with contextlib.suppress(KeyError, ValueError):
            return of_type(read(text), annotation)
    return of_type(text, annotation)


def shown(value: Any) -> str:
    """A value as Python writes it, shortened, for a message."""
    text = " ".join(repr(value).splitlines())
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
