"""A frozen dataclass of settings from a command line and a TOML file.

absl reads the command line, as it did for Google's scripts. Added here: types from the dataclass, TOML, the other
spellings that people use, and output that appears once per job. No TensorFlow, Keras or MPI here.
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

from absl import flags as absl_flags

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
FLAG = re.compile(r"--?([A-Za-z][\w-]*)(=.*)?", re.DOTALL)
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


class _Parser(absl_flags.ArgumentParser[Any]):
    """Tells absl how to read the values of one flag."""

    def __init__(self, field: Field):
        self.field = field

    def parse(self, argument: str) -> Any:
        try:
            return from_text(argument, self.field.type)
        except ValueError as error:
            raise InputError(f"--{self.field.name} {error}") from None


def _read_command_line(argv: Sequence[str], fields: Sequence[Field]) -> dict[str, Any]:
    """The value of each flag on the command line; the last value of a repeated flag."""
    registry = absl_flags.FlagValues()  # absl's global one holds the flags of other libraries
    for field in fields:
        flag = absl_flags.Flag(_Parser(field=field), None, field.name, None, None, boolean=field.is_boolean)
        for name in field.names:
            registry[name] = flag
    try:
        argv = registry.read_flags_from_files(argv)  # --flagfile
        registry(["program", *_in_absl_form(argv, fields)])
    except (absl_flags.Error, ValueError) as error:
        # absl puts "flag --x=…: " before our own messages, and "ERROR:: " before those of files.
        raise InputError(one_line(error.__context__ or error)) from error
    return {field.name: registry[field.name].value for field in fields if registry[field.name].present}


def _in_absl_form(argv: Sequence[str], fields: Sequence[Field]) -> list[str]:
    """Rewrites the spellings that absl does not understand: `-` in a name, `--no_x`, and `--x false`.

    A word without a flag becomes the flag of the next positional field. Raises InputError for mistakes that absl
    would accept: a flag where a value is needed, a word for which there is no field.
    """
    spellings = _spellings(fields)
    positional = deque(field.name for field in fields if field.is_positional)
    needs_value = {name for field in fields if not field.is_boolean for name in field.names}
    rewritten: list[str] = []
    tokens = deque(argv)
    while tokens:
        token = tokens.popleft()
        match = FLAG.fullmatch(token)
        if match is None and positional:
            rewritten.append(f"--{positional.popleft()}={token}")
            continue
        if match is None:
            raise InputError(f"unexpected argument {token[:LONGEST_SHOWN]!r}; write --flag=value")
        name, value = spellings.get(_normal(match[1])), match[2] or ""
        if name is None and match[1] in ABSL_FLAGS:
            return [*rewritten, token, *tokens]
        if name is None:  # absl's own search for similar names ends in a RecursionError for long ones
            unknown = match[1][:LONGEST_SHOWN]
            raise InputError(f"unknown flag --{unknown}; {_hint(unknown, fields, '--')}")
        if name in ("help", "h", "version"):
            return [f"--{name}"]
        if not value and name in needs_value:
            if not tokens or _looks_like_flag(tokens[0], spellings):
                raise InputError(f"{token} needs a value: {token}=VALUE")
            value = f"={tokens.popleft()}"
        elif not value and tokens and tokens[0].lower() in BOOLEAN_WORDS:
            value = f"={tokens.popleft()}"
        rewritten.append(f"--{name}{value}")
    return rewritten


def _spellings(fields: Iterable[Field]) -> dict[str, str]:
    """absl's spelling of each accepted name; a boolean x is also negated, as `nox` or `no_x`."""
    names = {name: name for field in fields for name in field.names}
    booleans = [name for field in fields if field.is_boolean for name in field.names]
    negated = {f"no{underscore}{name}": f"no{name}" for name in booleans for underscore in ("", "_")}
    return negated | names


def _looks_like_flag(token: str, spellings: Mapping[str, str]) -> bool:
    """Whether `token` is meant as the next flag, and not as a value such as -1,-2."""
    match = FLAG.fullmatch(token)
    return token.startswith("--") or (match is not None and _normal(match[1]) in spellings)


def _normal(name: str) -> str:
    return name.replace("-", "_")


def _hint(name: str, fields: Iterable[Field], dashes: str) -> str:
    """What the user may have meant by an unknown flag, or by an unknown key of a file."""
    if name in old_flags.INSTEAD:
        return old_flags.INSTEAD[name]
    known = [known for field in fields if field.name not in old_flags.IGNORED for known in field.names]
    near = nearest(_normal(name), known)
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
        field, shown = by_name.get(_normal(key)), key[:LONGEST_SHOWN]
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
