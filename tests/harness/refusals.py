"""What a refusal of bad input must look like, whatever its words are."""

import pytest

from ringbase.errors import InputError, one_line


def refused(call, *parts):
    """The one short line of the error that `call` raises; the line holds all `parts`: flags, files,
    values."""
    with pytest.raises(InputError) as caught:
        call()
    return checked(one_line(caught.value), parts)


def refusal(capsys, prog, call, *parts, status=1, is_alone=False):
    """The one line of error with which a program ends, without its name; the line holds all
    `parts`. Beside it may be notes, unless it `is_alone`."""
    with pytest.raises(SystemExit) as stop:
        call()
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out, "Traceback" in printed.err) == (status, "", False), (
        printed.err
    )
    (line,) = [line for line in printed.err.splitlines() if "error:" in line or is_alone]
    assert line.startswith(f"{prog}: error: ")
    return checked(line.removeprefix(f"{prog}: error: "), parts)


def checked(line, parts):
    assert len(line) <= 1500
    missing = [str(part) for part in parts if str(part) not in line]
    assert not missing, f"{missing} missing in: {line}"
    return line
