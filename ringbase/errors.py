"""Errors that are shown to the user as one line, without a traceback."""

LONGEST_LINE = 1500


class InputError(ValueError):
    """The user's input cannot be used. The message says what it was, what is needed and which flag
    to change.

    >>> raise InputError("--max_seq_length must be at most the model's 512 positions, got 600")
    Traceback (most recent call last):
        ...
    ringbase.errors.InputError: --max_seq_length must be at most the model's 512 positions, got 600
    """


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
    text = " ".join(text.split())
    if len(text) > LONGEST_LINE:  # the end has what to do
        text = f"{text[: LONGEST_LINE - 203]} … {text[-200:]}"
    return text


def shortened(names, most: int = 6) -> str:
    """Names separated by commas; after the first `most` only the number of the others."""
    names = list(names)
    text = ", ".join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text
