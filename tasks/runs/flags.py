"""A frozen dataclass of settings from a command line and a TOML file, and `--help`.

The syntax is that of absl, which read the flags of Google's scripts, with one dash or two and "-"
for "_". Output appears once per job. No TensorFlow, Keras or MPI here.
"""

import argparse
import contextlib
import datetime
import difflib
import fnmatch
import functools
import json
import os
import re
import socket
import sys
import time
import tomllib
import warnings
from collections import deque
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import ringbase
from distributed.launcher import FIRST_RANK_S, launched_rank
from distributed.records import tell_end, tell_error
from ringbase.errors import InputError, one_line
from ringbase.files import SMALL_BYTES, read_text
from ringbase.secrets import masked
from ringbase.settings import (
    BOOLEAN_WORDS,
    LONGEST_SHOWN,
    TEXTS,
    Field,
    Settings,
    alternatives,
    check_settled,
    fields_of,
    from_text,
    made,
    shown,
)
from tasks.runs.old_flags import IGNORED, INSTEAD, WITH_TEXT

Config = TypeVar("Config")

FILES = (
    Field(
        "config",
        str,
        "read flags from a TOML file's lines `flag = value`; the command line wins over it",
    ),
    Field(
        "flagfile",
        str,
        "read flags from a file's lines `--flag=value`, as if they stood on the command line",
    ),
)
UNLISTED = (
    Field("help", bool, aliases=("h",)),
    Field("version", bool),
    Field("undefok", str),
    *(Field(name, str if name in WITH_TEXT else bool) for name in IGNORED),
)
REDUCED_PRECISIONS = ("fp16", "bf16")  # each is also a flag, short for --precision
NAMED_FLAG = re.compile(r"--(\w+)")
FLAG = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
PLACEHOLDERS = {int: "N", float: "X", str: "TEXT", TEXTS: "TEXT"}
MOST_CHOICES = 60  # characters of the values beside a flag in `--help`
LISTED = "--help lists all flags"
VERSION = f"ringbert {ringbase.__version__}"
EPILOG = f"""Booleans are set by --flag, --flag=true or --flag true, and cleared by --noflag,
--flag=false or --flag false. The last value of a flag counts. Flags may have one dash or two, and
"-" for "_". --flag=null unsets a flag that may be unset. Where there is --precision, --fp16 and
--bf16 are short for it. Accepted from old command lines and ignored:
{" ".join(IGNORED)}."""


def parse(
    config_class: type[Config],
    argv: Sequence[str] | None = None,
    *,
    prog: str,
    description: str | None = None,
) -> Config:
    """Makes a `config_class` from `argv` (default: this process's) and the TOML file of its
    `--config`, over which the command line wins. `--help` shows the description, by default the
    class's docstring.

    Whatever is wrong, including a ValueError of the dataclass, exits with status 2 after exactly
    one line on stderr. Every rank reads the same flags, so only the first one prints.
    """
    fields = fields_of(config_class)
    try:
        given = read_command_line(sys.argv[1:] if argv is None else argv, fields)
        if "help" in given:
            stop(help_of(fields, prog, description or str(config_class.__doc__)), 0)
        if "version" in given:
            stop(VERSION, 0)
        config = configured(config_class, given)
    except (ValueError, OSError) as error:  # a path may be too long, or forbidden
        _refuse(prog, one_line(error))
    for name, reason in IGNORED.items():
        if name in given:
            print_on_first(f"--{name} is ignored: {reason}", sys.stderr)
    return config


def configured(config_class: type[Config], given: Mapping) -> Config:
    """The configuration of the flags that `read_command_line` gives; the others have their
    defaults. Raises ValueError."""
    if given.get("use_tpu"):
        raise InputError(
            "--use_tpu=True: TPUs are not supported; leave the flag out to run on GPUs or CPUs"
        )
    fields = fields_of(config_class)
    missing = []
    for field in fields:
        if field.is_required and field.name not in given:
            missing.append(field.name.upper() if field.is_positional else f"--{field.name}")
    if missing:
        raise InputError(f"{' and '.join(missing)} must be given")
    values = {field.name: given[field.name] for field in fields if field.name in given}
    config = made(config_class, values)
    # a command that does not train may have settings of its model, which are read later
    if given.get("do_train") and isinstance(config, Settings):
        check_settled(config)
    return config


def parse_command(
    commands: Mapping[str, type],
    argv: Sequence[str] | None = None,
    *,
    prog: str,
    description: str,
) -> tuple[str, Any]:
    """Like `parse`, for `PROG COMMAND [--flag=value ...]`. Returns the command and its
    configuration."""
    name, *argv = (sys.argv[1:] if argv is None else argv) or ["--help"]
    flag, _ = _split(name)
    if flag in ("h", "help"):
        usage = f"usage: {prog} COMMAND [--flag=value ...]\n\n{description.rstrip()}\n\ncommands:"
        for command, each in commands.items():
            usage += f"\n  {command:<10}{' '.join(str(each.__doc__).split())}"
        stop(usage, 0)
    if flag == "version":
        stop(VERSION, 0)
    if name not in commands:
        known = ", ".join(commands)
        _refuse(prog, f"unknown command {name[:LONGEST_SHOWN]}; the commands are {known}")
    return name, parse(commands[name], argv, prog=f"{prog} {name}")


def help_of(fields: Sequence[Field], prog: str, description: str) -> str:
    """Usage, description, the flags by group (required ones at the top of theirs), and notes."""
    command = prog
    for field in fields:
        if field.is_positional:
            name = field.name.upper()
            command += f" {name}" if field.is_required else f" [{name}]"
    parser = argparse.ArgumentParser(
        usage=f"{command} [--config FILE.toml] [--flag=value ...]",
        description=description,
        epilog=EPILOG,
        formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=8),
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    groups: dict = {"": parser}
    for field in fields:
        if field.group not in groups:
            groups[field.group] = parser.add_argument_group(field.group)
    for field in sorted((*FILES, *fields), key=lambda field: not field.is_required):
        default = field.shown_default or field.default
        if isinstance(default, bool):
            default = str(default).lower()
        text = field.help
        if field.is_required:
            text += " (required)"
        elif default not in (None, ""):
            text += f" (default: {default})"
        prefix, form = "--[no]", {"action": "store_true"}
        if not field.is_boolean:
            kinds = [kind for kind in alternatives(field.type) if kind is not None]
            values = "|".join(PLACEHOLDERS.get(kind, str(kind)) for kind in kinds)
            if len(values) > MOST_CHOICES:  # which the text names
                values = "NAME"
            prefix, form = "--", {"metavar": values}
        names = [prefix + name for name in field.names]
        groups[field.group].add_argument(*names, help=text.replace("%", "%%"), **form)
    return parser.format_help().rstrip()


def stop(text: str, status: int) -> NoReturn:
    """Prints once over all ranks, to standard error unless `status` is 0, and exits."""
    print_on_first(text, sys.stderr if status else sys.stdout)
    raise SystemExit(status)


# -- the command line ------------------------------------------------------------------------------


def read_command_line(argv: Sequence[str], fields: Sequence[Field]) -> dict:
    """The value of each flag on the command line, or else in the file of `--config`; the last value
    of a repeated flag. `--help` ends the reading.

    A word without a flag is the value of the next positional field. Raises InputError.
    """
    known = {name: field for field in (*UNLISTED, *FILES, *fields) for name in field.names}
    if "precision" in known:
        known |= {name: Field(name, bool) for name in REDUCED_PRECISIONS}
    negated = dict[str, Field]()
    for name, field in known.items():
        if field.is_boolean:
            negated |= {f"no{name}": field, f"no_{name}": field}
    positional = [field for field in fields if field.is_positional]
    tokens = deque(argv)
    values: dict = {}
    unknown = []
    files = []
    while tokens:
        token = tokens.popleft()
        name, text = _split(token)
        if name in known:
            field = known[name]
            if text is None:
                text = _taken_value(token, field, tokens, {*known, *negated})
        elif name in negated and text is None:
            field, text = negated[name], "false"
        elif not name and positional:
            field, text = positional[0], token
            if field.type != TEXTS:
                positional.pop(0)
        else:
            unknown.append(token)
            continue
        if field.name in ("help", "version"):
            return {field.name: True}
        try:
            value = from_text(text, field.type)
        except ValueError as error:
            several = "; bert-search takes several values" if "," in text else ""
            raise InputError(f"--{field.name} {error}{several}") from None
        if field.name == "flagfile":
            if value in files:
                raise InputError(f"--flagfile {value} is read a second time")
            files.append(value)
            tokens.extendleft(reversed(_lines_of(value)))
        elif field.name in REDUCED_PRECISIONS:
            if value or values.get("precision") == field.name:
                values["precision"] = field.name if value else "fp32"
        elif field.type == TEXTS:
            values[field.name] = (*values.get(field.name, ()), *value)
        else:
            values[field.name] = value
    _check_unknown(unknown, values.get("undefok", ""), known)
    if "config" in values:
        return _read_file(values["config"], fields) | values
    return values


def _taken_value(token: str, field: Field, tokens: deque, flags: Container[str]) -> str:
    """The value of a flag without "=", perhaps the next word, which is then taken from `tokens`.
    Raises InputError: there is none."""
    following = tokens[0] if tokens else "--"
    if field.is_boolean:
        return tokens.popleft() if following.lower() in BOOLEAN_WORDS else "true"
    # it may look like -1,-2 but not like a flag
    if following.startswith("--") or _split(following)[0] in flags:
        raise InputError(f"{token} needs a value: {token}=VALUE")
    return tokens.popleft()


def _check_unknown(tokens: Sequence[str], undefok: str, known: Mapping[str, Field]) -> None:
    """Raises InputError for a word that is no flag's, unless it is one of `--undefok`."""
    for token in tokens:
        name, _ = _split(token)
        if not name:
            raise InputError(f"unexpected argument {token[:LONGEST_SHOWN]!r}; write --flag=value")
        if name not in undefok.split(","):
            shown = token.partition("=")[0][:LONGEST_SHOWN]
            raise InputError(f"unknown flag {shown}; {hint(name[:LONGEST_SHOWN], known)}")


def _lines_of(file: str) -> list[str]:
    """The flags in a file, one in each line; comments are after # and //."""
    text = read_text(Path(file).expanduser(), f"--flagfile {file}", SMALL_BYTES)
    lines = map(str.strip, text.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "//"))]


def argv_of(values: Mapping[str, Any], fields: Sequence[Field] | None) -> list[str]:
    """The command line that gives flags these values, of Python or TOML: None is null, a list has
    commas, and a mapping is JSON where the flag takes one. `fields` is None for flags that are not
    known here, of which any may be a list. Raises InputError: another value than one, or a list
    where the flag takes none."""
    known = {name: field for field in fields or () for name in field.names}
    argv = []
    for name, value in values.items():
        field = known.get(name.replace("-", "_"))
        takes_list = fields is None or (field is not None and field.is_list)
        if takes_list and isinstance(value, list | tuple | range):
            with_comma = [part for part in map(str, value) if "," in part]
            if with_comma:
                raise InputError(
                    f"{name}: {with_comma[0]!r:.40} holds a comma, which separates values"
                )
            value = ",".join(map(str, value))
        if field and field.is_mapping and isinstance(value, Mapping):
            value = json.dumps(dict(value), ensure_ascii=False, default=float)  # NumPy's numbers
        is_one = isinstance(value, str) or not hasattr(value, "__len__")
        # what else is unknown is refused where it is read
        is_known = fields is None or field or isinstance(value, Mapping)
        if is_known and (not is_one or isinstance(value, datetime.date | datetime.time)):
            raise InputError(f"{name[:LONGEST_SHOWN]} must be one value, got {shown(value)}")
        argv.append(f"--{name}={'null' if value is None else value}")
    return argv


def _split(word: str) -> tuple[str, str | None]:
    """The name of a flag, with "_" for "-", and the text after "=" if there is one; "" for any
    other word."""
    match = FLAG.fullmatch(word)
    if not match:
        return "", None
    name, text = match.groups()
    return name.replace("-", "_"), text


def _read_file(path: str, fields: Sequence[Field]) -> dict:
    """The values that a TOML file gives, each line as the flag of its name. Raises InputError."""
    where = f"--config {path}"
    text = read_text(Path(path), where, SMALL_BYTES)
    try:
        table = tomllib.loads(text)
        return read_command_line(argv_of(table, fields), fields)
    except (ValueError, RecursionError) as error:  # an integer of too many digits, too many levels
        raise InputError(f"{where}: {one_line(error)}") from None


def _instead(name: str, known: Collection[str]) -> str | None:
    """What stands here for a flag of another program's, if `INSTEAD` has it."""
    for pattern, texts in INSTEAD.items():
        if fnmatch.fnmatchcase(name, pattern):
            for text in texts:
                if all(flag in known for flag in NAMED_FLAG.findall(text)):
                    return text if " " in text else f"it is {text} here"
    return None


def hint(name: str, known: Collection[str]) -> str:
    """What the user may have meant: the flag of another program's that has this name, the first
    name that begins with this one, else the most similar."""
    instead = _instead(name, known)
    if instead:
        return instead
    names = [other for other in known if other not in IGNORED]
    longer = [other for other in names if len(name) > 2 and other.startswith(name)]
    near = longer or difflib.get_close_matches(name, names, 1)
    return f"did you mean --{near[0]}?" if near else LISTED


# -- one line per job ------------------------------------------------------------------------------


def _refuse(prog: str, message: str) -> NoReturn:
    print_on_first(f"{prog}: error: {message}", sys.stderr)
    if is_first():
        tell_error(message)
        tell_end(2)
    else:
        # If the launcher does not end this process by then, the first rank has no error: only the
        # file on this machine is wrong.
        time.sleep(FIRST_RANK_S)
        print(f"{prog}: error on {socket.gethostname()}: {message}", file=sys.stderr, flush=True)
        tell_error(message)
    raise SystemExit(2) from None


@contextlib.contextmanager
def reporting(prog: str) -> Iterator[None]:
    """For a program of one process: an error of the user's in the block ends it with one line; our
    warnings are lines after the block."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            yield
        except (InputError, OSError) as error:
            if is_first():
                tell_error(one_line(error))
            stop(f"{prog}: error: {one_line(error)}", 1)
    for warning in caught:
        if warning.category is UserWarning:  # ours; libraries use other classes
            print_on_first(f"{prog}: warning: {warning.message}", sys.stderr)


def print_on_first(text: str, file: TextIO | None = None) -> None:
    """Prints a line once over all ranks, by default to standard error."""
    if is_first():
        print_whole(masked(text), file or sys.stderr)


def print_whole(text: str, file: TextIO) -> None:
    """Prints a text; whoever reads it may have read enough (`| head`)."""
    try:
        print(text, file=file, flush=True)
    except BrokenPipeError:
        # or the flush when Python exits would fail too
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())


def is_first() -> bool:
    """Flags are read before MPI starts, so the rank comes from the launcher's variables."""
    return launched_rank() == "0"
