"""A frozen dataclass of settings from a command line and a TOML file.

The syntax is that of absl, which read the flags of Google's scripts, with one dash or two and "-" for "_". Output
appears once per job. No TensorFlow, Keras or MPI here.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import socket
import sys
import time
import tomllib
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

import ringbase
from distributed.environment import launched_rank
from ringbase.errors import InputError, one_line
from ringbase.files import read_text
from ringbase.settings import BOOLEAN_WORDS, LONGEST_SHOWN, Field, fields_of, from_text, made, of_type
from tasks import old_flags, usage

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Config = TypeVar("Config", bound="DataclassInstance")

GENERAL = (Field("help", bool, aliases=("h",)), Field("version", bool), Field("config", str))
FLAG = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
# mpirun ends the job when any rank fails, so no other rank may fail before the first has printed its error. Under
# a launcher that does not end the job, this is how long the other ranks wait.
SECONDS_FOR_FIRST_RANK = 5.0
MOST_CONFIG_BYTES = 1 << 24
ABSL_FLAGS = ("flagfile", "undefok")


def parse(config_class: type[Config], argv: Sequence[str] | None = None, *, prog: str, description: str) -> Config:
    """Makes a `config_class` from `argv` (default: this process's) and the TOML file of its `--config`.

    The command line wins over the file, and the file over the defaults. Fields are made by
    `ringbase.settings.setting`.

    Whatever is wrong, including a ValueError of the dataclass's `__post_init__`, exits with status 2 after exactly
    one line on stderr. Every rank reads the same flags, so only the first rank prints: errors, notes on ignored
    flags, `--help` and `--version`.
    """
    try:
        return _parse(config_class, sys.argv[1:] if argv is None else argv, prog, description)
    except InputError as error:
        _refuse(prog, error)


def parse_command(
    commands: Mapping[str, type[Config]], argv: Sequence[str] | None = None, *, prog: str, description: str
) -> tuple[str, Config]:
    """Like `parse`, for `PROG COMMAND [--flag=value ...]`. Returns the command and its configuration."""
    argv = list(sys.argv[1:] if argv is None else argv)
    name = argv[0] if argv else "--help"
    if name in ("-h", "-help", "--help"):
        stop(usage.of_commands(commands, prog, description), 0)
    if name in ("-version", "--version"):
        stop(f"ringbert {ringbase.__version__}", 0)
    if name not in commands:
        near = nearest(name, commands)
        hint = f"did you mean {near}?" if near else f"the commands are {', '.join(commands)}"
        _refuse(prog, InputError(f"unknown command {name}; {hint}"))
    return name, parse(commands[name], argv[1:], prog=f"{prog} {name}", description=str(commands[name].__doc__))


def stop(text: str, status: int) -> NoReturn:
    """Prints once over all ranks, to standard error unless `status` is 0, and exits."""
    _print_on_first(text, sys.stderr if status else sys.stdout)
    raise SystemExit(status)


def _parse(config_class: type[Config], argv: Sequence[str], prog: str, description: str) -> Config:
    fields = fields_of(config_class)
    command_line = _read_command_line(argv, [*GENERAL, *fields, *old_flags.accepted(fields)])
    if command_line.get("help"):
        stop(usage.of_program(fields, prog, description), 0)
    if command_line.get("version"):
        stop(f"ringbert {ringbase.__version__}", 0)

    values = read_file(command_line["config"], fields) if "config" in command_line else {}
    precision = old_flags.precision(command_line, values, fields)
    notes = old_flags.notes_on(command_line, fields, prog)
    values |= {field.name: command_line[field.name] for field in fields if field.name in command_line}
    values |= precision
    if missing := [usage.name_of(field) for field in fields if field.is_required and field.name not in values]:
        raise InputError(f"{' and '.join(missing)} must be given")
    try:
        config = made(config_class, values)
    except ValueError as error:
        raise InputError(str(error)) from error
    for note in notes:
        _print_on_first(note, sys.stderr)
    return config


# -- the command line ---------------------------------------------------------------------------------------------


def _read_command_line(argv: Sequence[str], fields: Sequence[Field]) -> dict[str, Any]:
    """The value of each flag on the command line; the last value of a repeated flag. `--help` ends the reading.

    A word without a flag is the value of the next positional field. Raises InputError.
    """
    by_name = {name: field for field in fields for name in field.names}
    positional = deque(field for field in fields if field.is_positional)
    values: dict[str, Any] = {}
    unknown: list[str] = []
    unexpected: str | None = None
    tolerated: set[str] = set()
    files: set[str] = set()
    tokens = deque(argv)
    while tokens:
        token = tokens.popleft()
        match = FLAG.fullmatch(token)
        if match is None:
            if not positional:
                unexpected = token
                break
            place = positional.popleft()
            values[place.name] = _value(place, token)
            continue
        name, text = match[1].replace("-", "_"), match[2]
        field = by_name.get(name)
        if field is None and name in ABSL_FLAGS:
            text = _next_value(token, tokens, by_name) if text is None else text
            if name == "undefok":
                tolerated |= set(text.split(","))
            elif text in files:
                raise InputError(f"--flagfile {text} is read a second time")
            else:
                files.add(text)
                tokens.extendleft(reversed(_lines_of(text)))
        elif field is None and (negated := _negated(name, by_name)) is not None:
            if text is not None:
                raise InputError(f"{token[:LONGEST_SHOWN]}: --{name} takes no value")
            values[negated.name] = False
        elif field is None:
            unknown.append(match[1])
        elif field.name in ("help", "version"):
            return {field.name: True}
        else:
            if text is None and field.is_boolean:
                text = tokens.popleft() if tokens and tokens[0].lower() in BOOLEAN_WORDS else "true"
            elif text is None:
                text = _next_value(token, tokens, by_name)
            values[field.name] = _value(field, text)
    for name in unknown:
        if name not in tolerated:
            shown = name[:LONGEST_SHOWN]
            raise InputError(f"unknown flag --{shown}; {_hint(shown, fields, '--')}")
    if unexpected is not None:
        raise InputError(f"unexpected argument {unexpected[:LONGEST_SHOWN]!r}; write --flag=value")
    return values


def _value(field: Field, text: str) -> Any:
    try:
        return from_text(text, field.type)
    except ValueError as error:
        raise InputError(f"--{field.name} {error}") from None


def _negated(name: str, by_name: Mapping[str, Field]) -> Field | None:
    """The boolean x that `nox` or `no_x` clears."""
    for prefix in ("no", "no_"):
        field = by_name.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if field is not None and field.is_boolean:
            return field
    return None


def _next_value(flag: str, tokens: deque[str], by_name: Mapping[str, Field]) -> str:
    """The word after a flag, which may look like -1,-2 but not like the next flag."""
    if tokens:
        match = FLAG.fullmatch(tokens[0])
        name = match[1].replace("-", "_") if match else ""
        is_flag = name in by_name or name in ABSL_FLAGS or _negated(name, by_name) is not None
        if not (tokens[0].startswith("--") or is_flag):
            return tokens.popleft()
    raise InputError(f"{flag} needs a value: {flag}=VALUE")


def _lines_of(path: str) -> list[str]:
    """The flags in a file of absl's `--flagfile`: one per line, comments after # and //."""
    lines = read_text(Path(path).expanduser(), f"--flagfile {path}", MOST_CONFIG_BYTES).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith(("#", "//"))]


def _hint(name: str, fields: Iterable[Field], dashes: str) -> str:
    """What the user may have meant by an unknown flag, or by an unknown key of a file."""
    if instead := old_flags.INSTEAD.get(name.replace("-", "_")):
        return instead
    known = [known for field in fields if field.name not in old_flags.IGNORED for known in field.names]
    near = nearest(name.replace("-", "_"), known)
    return f"did you mean {dashes}{near}?" if near else "--help lists all flags"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The first known name that begins with `name`, else the most similar one."""
    known = list(known)
    longer = [other for other in known if len(name) > 2 and other.startswith(name)]
    return next(iter(longer or difflib.get_close_matches(name, known, 1)), None)


# -- the file -----------------------------------------------------------------------------------------------------


def read_file(path: str, fields: Sequence[Field], flag: str = "--config") -> dict[str, Any]:
    """The values of the fields that a TOML file sets. Raises InputError, with `flag` as what names the file."""
    try:
        table = tomllib.loads(read_text(Path(path), f"{flag} {path}", MOST_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:  # an integer of too many digits, too many levels
        if isinstance(error, InputError):
            raise
        raise InputError(f"{flag} {path}: not a TOML file: {one_line(error)[:200]}") from error
    by_name = {name: field for field in fields for name in field.names}
    values: dict[str, Any] = {}
    for key, value in table.items():
        field, shown = by_name.get(key.replace("-", "_")), key[:LONGEST_SHOWN]
        where = f"{flag} {path}: "
        if isinstance(value, dict):
            raise InputError(f"{where}[{shown}]: tables are not supported; put all flags at the top level")
        if field is None:
            raise InputError(f"{where}unknown key {shown}; {_hint(shown, fields, '')}")
        if field.name in values:
            raise InputError(f"{where}{key} sets {field.name} a second time")
        try:
            values[field.name] = of_type(value, field.type)
        except ValueError as error:
            raise InputError(f"{where}{key} {error}") from error
    return values


# -- one line per job ---------------------------------------------------------------------------------------------


def _refuse(prog: str, error: InputError) -> NoReturn:
    message = one_line(error)
    _print_on_first(f"{prog}: error: {message}", sys.stderr)
    if not is_first():
        # The launcher ends this process when the first rank has exited with the same error. If it does not, the
        # first rank has no error: only this machine's file is wrong.
        time.sleep(SECONDS_FOR_FIRST_RANK)
        print(f"{prog}: error on {socket.gethostname()}: {message}", file=sys.stderr, flush=True)
    raise SystemExit(2) from None


@contextlib.contextmanager
def reporting(prog: str) -> Iterator[None]:
    """For a program of one process: an error of the user's in the block ends it with one line; our warnings are
    lines after the block."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            yield
        except (InputError, OSError) as error:
            stop(f"{prog}: error: {one_line(error)}", 1)
    for warning in caught:
        if warning.category is UserWarning:  # ours; libraries use other classes
            _print_on_first(f"{prog}: warning: {warning.message}", sys.stderr)


def _print_on_first(text: str, file: TextIO) -> None:
    if not is_first():
        return
    try:
        print(text, file=file, flush=True)
    except BrokenPipeError:  # --help | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())  # or the flush when Python exits would fail too


def is_first() -> bool:
    """Flags are read before MPI starts, so the rank comes from the launcher's variables."""
    return launched_rank() == "0"
