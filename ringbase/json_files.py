"""Reads JSON, whole files and single lines, as Python does, but raises InputError with one line.

Refused besides text that is not JSON or not UTF-8: integers that are too large for a float, and half a surrogate
pair, which is not Unicode. NaN and infinities are read, because Python's own writer writes them.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from ringbase.errors import InputError
from ringbase.files import MOST_BYTES, read_text
from ringbase.settings import SURROGATE, shown

SMALL_BYTES = 1 << 26  # of a file that is not data: a configuration, a tokenizer
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")  # half of a pair, for characters beyond U+FFFF


def read_json(path: Path, where: str = "", most_bytes: int = MOST_BYTES) -> Any:
    """The value in a JSON file, plain or gzip. Raises InputError, its message starting with `where` (default: the
    path), like `read_text` and `parse_json`."""
    text = read_text(path, where, most_bytes)
    try:
        return parse_json(text)
    except InputError as error:
        raise InputError(f"{where or path}: {error}") from error


def read_object(path: Path, where: str = "") -> dict[str, Any]:
    """The object in a small JSON file, such as a configuration. Raises InputError also for any other value."""
    value = read_json(path, where, SMALL_BYTES)
    if not isinstance(value, dict):
        raise InputError(f"{where or path}: expected a JSON object, got {shown(value)}")
    return value


def parse_json(text: str) -> Any:
    """The value that a text stands for. Raises InputError; the message does not say where the text comes from."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON ({error})") from error
    if _ESCAPED.search(text) and (half := SURROGATE.search(json.dumps(value, ensure_ascii=False))):
        raise InputError(f"{half[0]!a} is half a surrogate pair, which is not Unicode")
    return value


def _integer(digits: str) -> int:
    if math.isinf(float(digits)):
        raise ValueError(f"{digits[:24]}, of {len(digits):,} characters, is too large for a number")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_integer)
