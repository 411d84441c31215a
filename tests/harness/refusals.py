"""What a refusal of bad input must look like, whatever its words are."""

from collections.abc import Callable

import pytest

from ringbase.errors import InputError, one_line


def refused(call: Callable[[], object], *parts: object, error: type[BaseException] = InputError) -> str:
    """The one short line of the error that `call` raises; the line holds all `parts`: flags, files, values."""
    with pytest.raises(error) as caught:
        call()
    line = one_line(caught.value)
    assert len(line) <= 1500
    missing = [str(part) for part in parts if str(part) not in line]
    assert not missing, f"{missing} missing in: {line}"
    return line
