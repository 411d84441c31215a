"""A frozen configuration dataclass from a command line and a TOML file.

The flags of old command lines (absl's forms, TPU and NVIDIA flags) keep working. jsonargparse gives each
value its type and prints the help; this file adds what users of absl know. No TensorFlow, Keras or MPI here.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib.metadata
import json
import re
import socket
import sys
import time
import tomllib
import types
import typing
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import jsonargparse

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Config = TypeVar("Config", bound="DataclassInstance")

_BOOLEAN_WORDS = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), "true"),
    **dict.fromkeys(("false", "f", "no", "n", "0"), "false"),
}
_FLAG_TOKEN = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)

# Flags of Google's scripts that cannot be served, and what to do.
_INSTEAD = {
    "bert_hub_module_handle": "TF Hub modules are not read: give their checkpoint by --init_checkpoint, or --model"
}
# Flags of Google's and NVIDIA's scripts that need no counterpart here: (name, takes a value, what happens).
_IGNORED = (
    ("use_tpu", False, "ignored, GPUs are found without a flag"),
    ("tpu_name", True, "ignored, TPUs are not supported"),
    ("tpu_zone", True, "ignored, TPUs are not supported"),
    ("gcp_project", True, "ignored, TPUs are not supported"),
    ("num_tpu_cores", True, "ignored, TPUs are not supported; the launcher sets the number of ranks"),
    ("master", True, "ignored, the launcher (mpirun, srun) places the ranks"),
    ("iterations_per_loop", True, "ignored, it set the length of a loop on TPUs"),
    ("use_one_hot_embeddings", False, "ignored, embeddings are always looked up by index"),
    ("verbose_logging", False, "ignored, it only made Google's scripts print more"),
    ("horovod", False, "ignored, {prog} is always distributed under mpirun"),
    ("amp", False, "ignored{hint}"),
    ("use_xla", False, "ignored, {prog} decides where XLA pays"),
)
# mpirun ends the job when any rank fails: a silent one must not fail before the first has printed. It ends
# as soon as that one exits; under a launcher that does not do so, this is how long it lingers.
_SECONDS_FOR_FIRST_RANK = 5.0
_PRECISION_ALIASES = ("fp16", "bf16")
_GROUPS = ("data", "model", "training", "evaluation", "prediction", "machine")  # in this order in the help
_METAVARS = {int: "N", float: "X", str: "TEXT"}

_EPILOG = (
    "Booleans: --flag, --noflag, --flag=true, --flag false. One dash or two, '-' or '_', as you like; of a "
    "flag given twice the last one counts; 'null' unsets a flag whose type allows it."
)


class _UsageError(ValueError):
    """What the user wrote cannot be accepted; the message becomes the error line."""


@dataclasses.dataclass(frozen=True)
class _Flag:
    """One flag: a field of the dataclass, or one of the names that every program accepts."""

    name: str
    type: Any
    spellings: tuple[str, ...]
    default: Any = None
    help: str = ""
    group: str | None = None

    @property
    def is_boolean(self) -> bool:
        return bool in _alternatives(self.type)

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING


def parse(config_class: type[Config], argv: Sequence[str] | None = None, *, prog: str, description: str) -> Config:
    """Make a `config_class` from `argv` (default: this process's) and the TOML file of its `--config`.

    The command line wins over the file, the file over the defaults. A field's metadata may hold `help`,
    `aliases` (spellings with their dashes) and `group` (a heading of the help). Types: bool, int, float, str,
    Literal, and unions of them and None.

    Whatever is wrong, a ValueError of the dataclass's `__post_init__` included, exits with status 2 after
    exactly one line on stderr. Under a launcher every rank reads the same flags, so only the first rank
    prints: errors, notes on ignored flags, `--help` and `--version`.
    """
    try:
        return _parse(config_class, sys.argv[1:] if argv is None else argv, prog, description)
    except _UsageError as error:
        _refuse(prog, error)


def parse_command(
    commands: Mapping[str, type[Config]], argv: Sequence[str] | None = None, *, prog: str, description: str
) -> tuple[str, Config]:
    """The same for `PROG COMMAND [--flag=value ...]`: the command and its configuration."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        lines = [f"  {name:12} {' '.join(str(made.__doc__).split())}" for name, made in commands.items()]
        _stop("\n".join([f"usage: {prog} COMMAND [--flag=value ...]", "", description, "", "commands:", *lines]))
    if argv[0] == "--version":
        _stop(f"ringbert {_version()}")
    if argv[0] not in commands:
        near = difflib.get_close_matches(argv[0], commands, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(commands)}"
        _refuse(prog, _UsageError(f"unknown command {argv[0]}; {hint}"))
    made = commands[argv[0]]
    return argv[0], parse(made, argv[1:], prog=f"{prog} {argv[0]}", description=str(made.__doc__))


def stop(text: str, status: int) -> NoReturn:
    """Prints once over all ranks, to standard error unless `status` is 0, and exits."""
    _print_on_first(text, file=sys.stderr if status else sys.stdout)
    raise SystemExit(status)


def _refuse(prog: str, error: _UsageError) -> NoReturn:
    _print_on_first(f"{prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
    if not _is_first():
        # The launcher ends this process when the first rank, which told the same, has exited. If that does not
        # happen the first rank has nothing to tell: only this machine's file is wrong.
        time.sleep(_SECONDS_FOR_FIRST_RANK)
        print(
            f"{prog}: error on {socket.gethostname()}: {' '.join(str(error).split())}", file=sys.stderr, flush=True
        )
    raise SystemExit(2) from None


def _parse(config_class: type[Config], argv: Sequence[str], prog: str, description: str) -> Config:
    fields = _fields(config_class)
    extras = _extra_flags(fields)
    given = _read_command_line(argv, _by_spelling([*fields, *extras]))
    if "help" in given:
        _stop(_help(fields, extras, prog, description))
    if "version" in given:
        _stop(f"ringbert {_version()}")

    path = given.get("config")
    from_file = {} if path is None else _read_file(path, _by_spelling(fields))
    typed = _typed([flag for flag in fields if flag.name in given], given)
    values = {flag.name: flag.default for flag in fields if not flag.is_required} | from_file | typed
    _precision(_switches(extras, given), typed, values, fields)
    notes = _notes(given, fields, prog)

    missing = [f"--{flag.name}" for flag in fields if flag.name not in values]
    if missing:
        raise _UsageError(f"{', '.join(missing)} must be given")
    try:
        config = config_class(**values)
    except ValueError as error:
        raise _UsageError(str(error)) from error
    for note in notes:
        _print_on_first(note, file=sys.stderr)
    return config


# The flags there are.


def _fields(config_class: type[DataclassInstance]) -> list[_Flag]:
    hints = typing.get_type_hints(config_class)
    flags = []
    for field in dataclasses.fields(config_class):
        if not field.init:
            continue
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        aliases = tuple(_normal(alias) for alias in field.metadata.get("aliases", ()))
        texts = {"help": field.metadata.get("help", ""), "group": field.metadata.get("group")}
        flags.append(_Flag(field.name, hints[field.name], (field.name, *aliases), default, **texts))
    return flags


def _extra_flags(fields: Sequence[_Flag]) -> list[_Flag]:
    """`--config`, `--help`, `--version`, and the old names that are no field of this dataclass."""
    taken = {spelling for flag in fields for spelling in flag.spellings}
    assert taken.isdisjoint(("config", "help", "h", "version")), "a field takes a name of every program"
    names: list[tuple[str, type]] = [("config", str), ("help", bool), ("version", bool)]
    names += [(name, str if takes_value else bool) for name, takes_value, _ in _IGNORED]
    if _reduced_precisions(fields):
        names += [(alias, bool) for alias in _PRECISION_ALIASES]
    extras = [_Flag(name, kind, (name,)) for name, kind in names if name not in taken]
    return [*extras, _Flag("help", bool, ("h",))]


def _by_spelling(flags: Iterable[_Flag]) -> dict[str, _Flag]:
    return {spelling: flag for flag in flags for spelling in flag.spellings}


# Reading the command line: absl's syntax. Values stay text here.


def _read_command_line(argv: Sequence[str], flags: Mapping[str, _Flag]) -> dict[str, str]:
    """The last text given for each flag; booleans as "true" or "false" where the word is one of absl's."""
    given: dict[str, str] = {}
    tokens = deque(argv)
    while tokens:
        token = tokens.popleft()
        flag, text = _recognise(token, flags)
        if text is None:
            text = _value_behind(token, flag, tokens, flags)
        given[flag.name] = _BOOLEAN_WORDS.get(text.lower(), text) if flag.is_boolean else text
        if flag.name in ("help", "version"):
            break
    return given


def _value_behind(token: str, flag: _Flag, tokens: deque[str], flags: Mapping[str, _Flag]) -> str:
    """The value of a flag without `=`: the next word, which a boolean may do without."""
    if flag.is_boolean:
        return tokens.popleft() if tokens and tokens[0].lower() in _BOOLEAN_WORDS else "true"
    if not tokens or _looks_like_flag(tokens[0], flags):
        raise _UsageError(f"{token} needs a value: {token}=VALUE")
    return tokens.popleft()


def _recognise(token: str, flags: Mapping[str, _Flag]) -> tuple[_Flag, str | None]:
    match = _FLAG_TOKEN.fullmatch(token)
    if match is None:
        raise _UsageError(f"unexpected argument {token!r}; every value belongs to a flag: --name=value")
    spelling, text = match.groups()
    name = _normal(spelling)
    if name in flags:
        return flags[name], text
    negated = _negated(name, flags)
    if negated is None:
        suggestion = _suggestion(name, flags, "--") or "; --help lists all flags"
        raise _UsageError(f"unknown flag {token.partition('=')[0]}{suggestion}")
    if text is not None:
        raise _UsageError(f"{token}: a negated flag takes no value; write --{negated.name}={text}")
    return negated, "false"


def _negated(name: str, flags: Mapping[str, _Flag]) -> _Flag | None:
    for prefix in ("no_", "no"):
        flag = flags.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if flag is not None and flag.is_boolean:
            return flag
    return None


def _looks_like_flag(token: str, flags: Mapping[str, _Flag]) -> bool:
    """Whether `token` is meant as the next flag, not as a value such as -1,-2."""
    if token.startswith("--"):
        return True
    match = _FLAG_TOKEN.fullmatch(token)
    name = _normal(match[1]) if match else ""
    return name in flags or _negated(name, flags) is not None


def _normal(spelling: str) -> str:
    return spelling.lstrip("-").replace("-", "_")


def _suggestion(name: str, flags: Mapping[str, _Flag], dashes: str) -> str:
    if name in _INSTEAD:
        return f"; {_INSTEAD[name]}"
    ignored = {ignored_name for ignored_name, _, _ in _IGNORED}
    known = [spelling for spelling in flags if spelling not in ignored]
    nearest = [spelling for spelling in known if len(name) > 2 and spelling.startswith(name)]
    nearest = nearest or difflib.get_close_matches(name, known)
    return f"; did you mean {dashes}{nearest[0]}?" if nearest else ""


# Reading the file.


def _read_file(path: str, flags: Mapping[str, _Flag]) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise _UsageError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _UsageError(f"--config {path}: not a TOML file: {error}") from error
    values: dict[str, Any] = {}
    for key, value in table.items():
        flag = flags.get(_normal(key))
        if isinstance(value, dict):
            raise _UsageError(f"--config {path}: [{key}]: flags stand at the top, without tables")
        if flag is None:
            suggestion = _suggestion(_normal(key), flags, "") or "; --help lists all flags"
            raise _UsageError(f"--config {path}: unknown key {key}{suggestion}")
        if flag.name in values:
            raise _UsageError(f"--config {path}: {key} sets {flag.name} a second time")
        if not _fits(value, flag.type):
            came = json.dumps(value, default=str, ensure_ascii=False)
            raise _UsageError(f"--config {path}: {key} = {came}: expected {_expected(flag.type)}")
        values[flag.name] = float(value) if _alternatives(flag.type) == (float,) else value
    return values


# Types.


def _typed(flags: Iterable[_Flag], given: Mapping[str, str]) -> dict[str, Any]:
    """The values of `flags`, by jsonargparse's reading of each type; its error texts have several lines.

    The mode is JSON because in YAML a `~` (somebody's home directory) means null.
    """
    parser = jsonargparse.ArgumentParser(parser_mode="json", exit_on_error=False, default_env=False)
    values = {}
    for flag in flags:
        parser.add_argument(f"--{flag.name}", type=flag.type)
        text = given[flag.name]
        refusal = _UsageError(f"--{flag.name}={text}: expected {_expected(flag.type)}")
        try:
            value = parser.parse_args([f"--{flag.name}={text}"], defaults=False)[flag.name]
        except argparse.ArgumentError:
            raise refusal from None
        if value is not None and not _fits(value, flag.type):
            raise refusal
        values[flag.name] = value
    return values


def _switches(extras: Iterable[_Flag], given: Mapping[str, str]) -> dict[str, bool]:
    """The booleans among the old names that were given."""
    switches = {}
    for flag in extras:
        if flag.is_boolean and flag.name in given:
            if given[flag.name] not in ("true", "false"):
                raise _UsageError(f"--{flag.name}={given[flag.name]}: expected true or false")
            switches[flag.name] = given[flag.name] == "true"
    return switches


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The types of `X | None` without None."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(part for part in typing.get_args(annotation) if part is not type(None))
    return (annotation,)


def _fits(value: Any, annotation: Any) -> bool:
    """Whether `value` has the very type: True is no int, "3" is no number, infinity is no setting."""
    for part in _alternatives(annotation):
        if typing.get_origin(part) is Literal:
            fits = any(type(value) is type(choice) and value == choice for choice in typing.get_args(part))
        elif part is float:
            fits = type(value) in (int, float) and abs(value) <= sys.float_info.max
        else:
            fits = type(value) is part
        if fits:
            return True
    return False


def _expected(annotation: Any) -> str:
    words = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
    parts = []
    for part in _alternatives(annotation):
        if typing.get_origin(part) is Literal:
            parts.append(f"one of {', '.join(map(str, typing.get_args(part)))}")
        else:
            parts.append(words.get(part, str(part)))
    return " or ".join(parts)


# Old names that mean something, or nothing, today.


def _reduced_precisions(fields: Iterable[_Flag]) -> list[str]:
    """Those of fp16 and bf16 that the field `precision` allows."""
    types_of_precision = [flag.type for flag in fields if flag.name == "precision"]
    return [alias for alias in _PRECISION_ALIASES if any(_fits(alias, kind) for kind in types_of_precision)]


def _precision(
    switches: Mapping[str, bool], typed: Mapping[str, Any], values: dict[str, Any], fields: Iterable[_Flag]
) -> None:
    """Let `--fp16` and `--bf16` set `precision` in `values`, which holds defaults, file and command line."""
    asked = [alias for alias in _PRECISION_ALIASES if switches.get(alias) is True]
    if len(asked) > 1:
        raise _UsageError("--fp16 and --bf16 exclude each other; give one of them")
    if asked and typed.get("precision", asked[0]) != asked[0]:
        raise _UsageError(f"--{asked[0]} contradicts --precision {typed['precision']}; give one of them")
    allowed = _reduced_precisions(fields)
    if asked and asked[0] not in allowed:
        raise _UsageError(f"--{asked[0]} is not supported; use {' or '.join(f'--{name}' for name in allowed)}")
    if asked:
        values["precision"] = asked[0]
    precision = values.get("precision")
    if precision in _PRECISION_ALIASES and switches.get(precision) is False:
        raise _UsageError(f"--{precision}=false contradicts precision {precision}; set --precision")


def _notes(given: Mapping[str, str], fields: Sequence[_Flag], prog: str) -> list[str]:
    """One line for each ignored flag. Raises when TPUs are asked for."""
    names = {spelling for flag in fields for spelling in flag.spellings}
    if given.get("use_tpu") == "true" and "use_tpu" not in names:
        raise _UsageError("--use_tpu=True: TPUs are not supported; leave the flag out to run on GPUs or CPUs")
    allowed = _reduced_precisions(fields)
    hint = f"; use --precision {' or '.join(allowed)}" if allowed else ""
    here = given.keys() - names
    return [f"--{name}: {what.format(prog=prog, hint=hint)}" for name, _, what in _IGNORED if name in here]


# Help, version, and who prints.


def _help(fields: Sequence[_Flag], extras: Iterable[_Flag], prog: str, description: str) -> str:
    ignored = [name for name, _, _ in _IGNORED if name in {flag.name for flag in extras}]
    aliases = "".join(f"--{name} is --precision {name}. " for name in _reduced_precisions(fields))
    parser = jsonargparse.ArgumentParser(
        prog=prog,
        description=description,
        usage="%(prog)s [--config FILE.toml] [--flag=value ...]",
        epilog=f"{_EPILOG} {aliases}Accepted from old command lines and ignored: {' '.join(ignored)}.",
        version=_version(),
        default_env=False,
    )
    config_help = "a file of `name = value` lines; the command line wins"
    parser.add_argument("--config", metavar="FILE.toml", default=argparse.SUPPRESS, help=config_help)
    groups: dict[str | None, Any] = {None: parser}
    for flag in sorted(fields, key=lambda flag: _GROUPS.index(flag.group) if flag.group in _GROUPS else -1):
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        metavars = [_METAVARS[part] for part in _alternatives(flag.type) if part in _METAVARS]
        groups[flag.group].add_argument(
            *(f"--{spelling}" for spelling in flag.spellings),
            type=flag.type,
            help=flag.help or _expected(flag.type),
            **({"metavar": metavars[0]} if metavars else {}),
            **({"required": True} if flag.is_required else {"default": flag.default}),
        )
    return parser.format_help().rstrip()


def _version() -> str:
    try:
        return importlib.metadata.version("ringbert")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


def _stop(text: str) -> NoReturn:
    _print_on_first(text, file=sys.stdout)
    raise SystemExit(0)


def _print_on_first(text: str, file: typing.TextIO) -> None:
    """Print once per job."""
    if _is_first():
        print(text, file=file, flush=True)


def _is_first() -> bool:
    """Flags are read before MPI starts, so the launcher's variables tell the rank."""
    from distributed import launch  # here, as `start.check_packages` has yet to see whose `distributed` it is

    return launch.launched_rank() == "0"
