"""A frozen dataclass of settings from a command line and a TOML file.

The syntax is that of absl, which read the flags of Google's scripts, with one dash or two and "-" for "_". Output
appears once per job. No TensorFlow, Keras or MPI here.
"""

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
from typing import Any, NoReturn, TextIO, TypeVar

import ringbase
from distributed.launcher import launched_rank
from ringbase.errors import InputError, one_line
from ringbase.files import read_text
from ringbase.settings import BOOLEAN_WORDS, LONGEST_SHOWN, Field, fields_of, from_text, made
from tasks import usage
from tasks.old_flags import IGNORED, INSTEAD, REDUCED_PRECISIONS

Config = TypeVar("Config")

GENERAL = (Field("help", bool, aliases=("h",)), Field("version", bool), Field("config", str),
           Field("flagfile", str), Field("undefok", str))  # fmt: skip
OLD = tuple(Field(name, kind) for name, (kind, _) in IGNORED.items())
FLAG = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
SECONDS_FOR_FIRST_RANK = 5.0  # mpirun ends the job when any rank fails: the others wait for the first one's error
MOST_CONFIG_BYTES = 1 << 24


def parse(
    config_class: type[Config], argv: Sequence[str] | None = None, *, prog: str, description: str | None = None
) -> Config:
    """Makes a `config_class` from `argv` (default: this process's) and the TOML file of its `--config`, over which
    the command line wins. `--help` shows the description, by default the class's docstring.

    Whatever is wrong, including a ValueError of the dataclass, exits with status 2 after exactly one line on
    stderr. Every rank reads the same flags, so only the first one prints.
    """
    fields = fields_of(config_class)
    try:
        given = read_command_line(sys.argv[1:] if argv is None else argv, fields)
        if "help" in given:
            stop(usage.of_program(fields, prog, description or str(config_class.__doc__)), 0)
        if "version" in given:
            stop(f"ringbert {ringbase.__version__}", 0)
        config, notes = configured(config_class, given)
    except ValueError as error:
        _refuse(prog, one_line(error))
    for note in notes:
        _print_on_first(note, sys.stderr)
    return config


def configured(config_class: type[Config], given: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """The configuration of the flags that `read_command_line` gives, and a note on each that is ignored. Raises
    ValueError."""
    fields = fields_of(config_class)
    if "config" in given:
        given = _read_file(given["config"], fields) | dict(given)
    values = {field.name: given[field.name] for field in fields if field.name in given}
    if missing := [usage.name_of(field) for field in fields if field.is_required and field.name not in values]:
        raise InputError(f"{' and '.join(missing)} must be given")
    if given.get("use_tpu"):
        raise InputError("--use_tpu=True: TPUs are not supported; leave the flag out to run on GPUs or CPUs")
    notes = [f"--{name} is ignored: {reason}" for name, (_, reason) in IGNORED.items() if name in given]
    return made(config_class, values), notes


def parse_command(
    commands: Mapping[str, type[Config]], argv: Sequence[str] | None = None, *, prog: str, description: str
) -> tuple[str, Config]:
    """Like `parse`, for `PROG COMMAND [--flag=value ...]`. Returns the command and its configuration."""
    name, *argv = (sys.argv[1:] if argv is None else argv) or ["--help"]
    flag, _ = _split(name)
    if flag in ("h", "help"):
        stop(usage.of_commands(commands, prog, description), 0)
    if flag == "version":
        stop(f"ringbert {ringbase.__version__}", 0)
    if name not in commands:
        hint = INSTEAD.get(f"{prog} {name}") or _hint(
            name, commands, "", f"the commands are {', '.join(commands)}"
        )
        _refuse(prog, f"unknown command {name}; {hint}")
    return name, parse(commands[name], argv, prog=f"{prog} {name}")


def stop(text: str, status: int) -> NoReturn:
    """Prints once over all ranks, to standard error unless `status` is 0, and exits."""
    _print_on_first(text, sys.stderr if status else sys.stdout)
    raise SystemExit(status)


# -- the command line ---------------------------------------------------------------------------------------------


def read_command_line(argv: Sequence[str], fields: Sequence[Field]) -> dict[str, Any]:
    """The value of each flag on the command line; the last value of a repeated flag. `--help` ends the reading.

    A word without a flag is the value of the next positional field. Raises InputError.
    """
    known = {name: field for field in (*GENERAL, *OLD, *fields) for name in field.names}
    if "precision" in known:
        known |= {name: Field(name, bool) for name in REDUCED_PRECISIONS}
    negated = {no + name: field for name, field in known.items() if field.is_boolean for no in ("no", "no_")}
    positional, tokens = deque(field for field in fields if field.is_positional), deque(argv)
    values: dict[str, Any] = {}
    unknown: list[str] = []
    files: list[str] = []
    while tokens:
        token = tokens.popleft()
        name, text = _split(token)
        if name in known:
            field = known[name]
            if text is None and field.is_boolean:
                text = tokens.popleft() if tokens and tokens[0].lower() in BOOLEAN_WORDS else "true"
            elif text is None:  # the next word may look like -1,-2 but not like a flag
                if not tokens or tokens[0].startswith("--") or _split(tokens[0])[0] in {**known, **negated}:
                    raise InputError(f"{token} needs a value: {token}=VALUE")
                text = tokens.popleft()
        elif name in negated and text is None:
            field, text = negated[name], "false"
        elif not name and positional:
            field, text = positional.popleft(), token
        else:
            unknown.append(token)
            continue
        if field.name in ("help", "version"):
            return {field.name: True}
        try:
            value = from_text(text, field.type)
        except ValueError as error:
            raise InputError(f"--{field.name} {error}") from None
        if field.name == "flagfile":  # a flag in each line, comments after # and //
            if value in files:
                raise InputError(f"--flagfile {value} is read a second time")
            files.append(value)
            text = read_text(Path(value).expanduser(), f"--flagfile {value}", MOST_CONFIG_BYTES)
            lines = [line.strip() for line in reversed(text.splitlines())]
            tokens.extendleft(line for line in lines if line and not line.startswith(("#", "//")))
        elif field.name in REDUCED_PRECISIONS:
            if value:
                values["precision"] = field.name
            elif values.get("precision") == field.name:
                del values["precision"]
        else:
            values[field.name] = value
    for token in unknown:
        name, _ = _split(token)
        if not name:
            raise InputError(f"unexpected argument {token[:LONGEST_SHOWN]!r}; write --flag=value")
        if name not in values.get("undefok", "").split(","):
            shown = token.partition("=")[0][:LONGEST_SHOWN]
            hint = _hint(name[:LONGEST_SHOWN], known, "--", "--help lists all flags")
            raise InputError(f"unknown flag {shown}; {hint}")
    return values


def _split(word: str) -> tuple[str, str | None]:
    """The name of a flag, with "_" for "-", and the text after "=" if there is one; "" for any other word."""
    match = FLAG.fullmatch(word)
    return (match[1].replace("-", "_"), match[2]) if match else ("", None)


def _read_file(path: str, fields: Sequence[Field]) -> dict[str, Any]:
    """The values that a TOML file gives, each line as the flag of its name. Raises InputError."""
    where, flags = f"--config {path}", []
    text = read_text(Path(path), where, MOST_CONFIG_BYTES)
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # an integer of too many digits, too many levels
        raise InputError(f"{where}: not a TOML file: {one_line(error)[:200]}") from error
    for key, value in table.items():
        if not isinstance(value, str | int | float):
            raise InputError(f"{where}: {key[:LONGEST_SHOWN]}: tables, lists and dates are not supported")
        flags.append(f"--{key}={str(value).lower() if isinstance(value, bool) else value}")
    try:
        return read_command_line(flags, fields)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _hint(name: str, known: Iterable[str], dashes: str, otherwise: str) -> str:
    """What the user may have meant: the first known name that begins with this one, else the most similar."""
    if name in INSTEAD:
        return INSTEAD[name]
    known = [other for other in known if other not in IGNORED]
    longer = [other for other in known if len(name) > 2 and other.startswith(name)]
    near = longer or difflib.get_close_matches(name, known, 1)
    return f"did you mean {dashes}{near[0]}?" if near else otherwise


# -- one line per job ---------------------------------------------------------------------------------------------


def _refuse(prog: str, message: str) -> NoReturn:
    _print_on_first(f"{prog}: error: {message}", sys.stderr)
    if not is_first():
        # If the launcher does not end this process by then, the first rank has no error: only the file on this
        # machine is wrong.
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
