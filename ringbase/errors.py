"""Errors that are shown to the user as one line, without a traceback.

A message names a setting as its flag, `--max_seq_length`. Where the caller is Python,
`as_arguments` makes it the name of the argument.
"""

import re
from collections.abc import Mapping

from ringbase.secrets import masked

FLAG = re.compile(r"`[^`]*`|--help|(?<![\w-])--([a-z][\w-]*)")  # but for commands in backticks
FLAGS_IN_BRACKETS = re.compile(r" \((?:--\w+(?:, )?)+\)")  # the setting that a file came from
IN_PYTHON = {
    "unknown flag --": "unknown argument --",
    "--help lists all flags": "help() of its class lists all arguments",
}
LONGEST_LINE = 1500


class InputError(ValueError):
    """The user's input cannot be used. The message says what it was, what is needed and which flag
    to change.

    >>> raise InputError("--max_seq_length must be at most the model's 512 positions, got 600")
    Traceback (most recent call last):
        ...
    ringbase.errors.InputError: --max_seq_length must be at most the model's 512 positions, got 600
    """


class Unreadable(InputError):
    """What is there cannot be read, which says nothing about what it holds: rights, a file server
    that does not answer, a disk's fault. It is neither damaged nor missing."""


class Unavailable(InputError):
    """A server does not answer, or refuses for now: another start of the job may find it again."""


class Preempted(SystemExit):
    """The job was stopped on request, and what it had done is saved; the process exits with
    `STATUS`."""

    STATUS = 75  # EX_TEMPFAIL in sysexits.h: run the same command again


class Stopped(Exception):
    """A stop was asked for in the middle of something that can only be done again; raised on all
    ranks."""


def one_line(error: BaseException) -> str:
    """The message of an error, on one line of at most `LONGEST_LINE` characters: a damaged file has
    long names."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = masked(" ".join(text.split()))
    if len(text) > LONGEST_LINE:  # the end has what to do
        text = f"{text[: LONGEST_LINE - 203]} … {text[-200:]}"
    return text


def unread(error: BaseException, where: str, damaged: str) -> InputError:
    """What to raise for a file that was not read: Unreadable if the system refused it, else that it
    is `damaged`. For damaged files gzip and Arrow raise an OSError without a number."""
    if isinstance(error, OSError) and error.errno is not None:
        return Unreadable(f"{where} cannot be read ({one_line(error)})")
    return InputError(damaged)


def as_arguments(message: str, names: Mapping[str, str] | None = None) -> str:
    """A message for a caller in Python, whose arguments have the names of the flags but for
    `names`.

    >>> as_arguments("--model m: no such folder; give --vocab_file", {"model": "folder"})
    'folder m: no such folder; give vocab_file'
    """
    others = names or {}
    message = FLAGS_IN_BRACKETS.sub("", message)
    for said, in_python in IN_PYTHON.items():
        message = message.replace(said, in_python)

    def argument(match: re.Match) -> str:
        name = match[1]
        return others.get(name, name.replace("-", "_")) if name else match[0]

    return FLAG.sub(argument, message)


def shortened(names, most: int = 6) -> str:
    """Names separated by commas; after the first `most` only the number of the others."""
    names = list(names)
    text = ", ".join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text
