"""What `--help` prints: the flags under the headings of their groups, wrapped to the terminal."""

import shutil
import textwrap
from collections.abc import Mapping, Sequence

from ringbase.settings import GROUPS, Field, alternatives
from tasks.old_flags import IGNORED, REDUCED_PRECISIONS

MAX_WIDTH = 100
GENERAL = {
    "-h, --help": "print this help and exit",
    "--version": "print the version and exit",
    "--config FILE.toml": "read flags from the lines `flag = value` of a file; the command line wins over it",
    "--flagfile FILE": "read flags from the lines `--flag=value` of a file, as if they stood on the command line",
}
PLACEHOLDERS = {int: "N", float: "X", str: "TEXT"}
EPILOG = """Booleans are set by --flag, --flag=true or --flag true, and cleared by --noflag, --flag=false or --flag
false. Flags may have one dash or two, and "-" for "_". The last value of a flag counts. --flag=null unsets a flag
that may be unset."""


def of_program(fields: Sequence[Field], prog: str, description: str) -> str:
    """Usage, description, the flags by group (those without one first, required ones at the top), and notes."""
    groups = {"": [_entry(flag, text) for flag, text in GENERAL.items()]}
    for field in sorted(fields, key=lambda field: not field.is_required):
        groups.setdefault(field.group, []).append(_entry(_left_side(field), _text(field)))
    order = ("", *GROUPS, *groups)
    words = " ".join([prog, *(name_of(field) for field in fields if field.is_positional)])
    parts = [f"usage: {words} [--config FILE.toml] [--flag=value ...]", _wrapped(description)]
    for group in sorted(groups, key=order.index):
        parts.append("\n".join([f"{group}:", *groups[group]] if group else groups[group]))
    has_precision = any(field.name == "precision" for field in fields)
    shortcuts = [f"--{name} is --precision {name}." for name in REDUCED_PRECISIONS if has_precision]
    ignored = f"Accepted from old command lines and ignored: {' '.join(IGNORED)}."
    parts.append(_wrapped(" ".join([EPILOG, *shortcuts, ignored])))
    return "\n\n".join(parts)


def of_commands(commands: Mapping[str, type], prog: str, description: str) -> str:
    """Usage, description and the commands, each with the docstring of its settings."""
    entries = [_entry(name, str(settings_class.__doc__)) for name, settings_class in commands.items()]
    parts = [f"usage: {prog} COMMAND [--flag=value ...]", description.rstrip(), "\n".join(["commands:", *entries])]
    return "\n\n".join(parts)


def name_of(field: Field) -> str:
    """A field as a user gives it: "FOLDER" for a positional one, "--folder" for others."""
    return field.name.upper() if field.is_positional else f"--{field.name}"


def _left_side(field: Field) -> str:
    """Such as "--[no]do_train", "--eval_steps N|auto", "--model TEXT, --model_name_or_path TEXT"; for a positional
    field "FOLDER, --folder TEXT"."""
    if field.is_boolean:
        return ", ".join(f"--[no]{name}" for name in field.names)
    choices = [choice for choice in alternatives(field.type) if choice is not None]
    value = "|".join(PLACEHOLDERS[choice] if isinstance(choice, type) else str(choice) for choice in choices)
    words = [field.name.upper()] if field.is_positional else []
    return ", ".join([*words, *(f"--{name} {value}" for name in field.names)])


def _text(field: Field) -> str:
    if field.is_required:
        return f"{field.help} (required)"
    default = str(field.default).lower() if isinstance(field.default, bool) else field.default
    shown = field.shown_default or default
    return field.help if shown in (None, "") else f"{field.help} (default: {shown})"


def _entry(left_side: str, text: str) -> str:
    return f"  {left_side}\n{_wrapped(text, indent=' ' * 8)}"


def _wrapped(text: str, indent: str = "") -> str:
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
    wrapper = textwrap.TextWrapper(width, indent, indent, break_on_hyphens=False, break_long_words=False)
    return wrapper.fill(" ".join(text.split()))
