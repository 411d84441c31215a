"""Fields of settings dataclasses: a default, one sentence of help, a unit, other names, checks of ranges.

A dataclass of settings stands beside the component that uses it. A program's configuration inherits those of its
components, and `tasks/flags.py` reads it from the command line and a TOML file.
"""

import dataclasses
import math
from typing import Any

GROUPS = ("data", "model", "training", "evaluation", "prediction", "machine")  # headings of --help, in this order


class Settings:
    """Base of all settings dataclasses, which are `@dataclass(frozen=True, kw_only=True)`.

    A class that checks its values extends `__post_init__`, calls `super().__post_init__()` and raises ValueError;
    so a configuration that inherits several of them makes all their checks.
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
      default: none for a field that must be given.
      help: one sentence, with the unit of a number.
      group: the heading under which `--help` lists it.
      aliases: other names of the flag, without dashes.
      shown_default: what `--help` says instead of the default, where None stands for a value found later.
    """
    metadata = {"help": help, "group": group, "aliases": aliases, "shown_default": shown_default}
    return dataclasses.field(default=default, metadata=metadata)


def check_at_least(settings: object, lowest: float, *names: str) -> None:
    """Raises ValueError for the first of these numbers below `lowest` or not finite. None and texts pass."""
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
