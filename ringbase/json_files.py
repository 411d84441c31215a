"""Reads JSON, whole files and single lines, so that its readers need not expect what JSON only barely allows.

Refused with one line: text that is not JSON or not UTF-8; numbers that are too large for a float; NaN and
infinities, unless they are allowed; half a surrogate pair, which is not UTF-8.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from ringbase.errors import InputError
from ringbase.files import MOST_BYTES, read_text

SMALL_BYTES = 1 << 26  # of a file that is not data: a configuration, a tokenizer
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # in pairs for most characters beyond U+FFFF


def read_json(path: Path, where: str = "", *, allow_nan: bool = False, most_bytes: int = MOST_BYTES) -> Any:
    """The value in a JSON file, plain or gzip. Raises InputError, its message starting with `where` (default: the
    path), like `read_text` and `parse_json`."""
    text = read_text(path, where, most_bytes)
    try:
        return parse_json(text, allow_nan=allow_nan)
    except InputError as error:
        raise InputError(f"{where or path}: {error}") from error


def read_object(path: Path, where: str = "", *, allow_nan: bool = False) -> dict[str, Any]:
    """The object in a small JSON file, such as a configuration. Raises InputError like `read_json`, and for any
    other value."""
    value = read_json(path, where, allow_nan=allow_nan, most_bytes=SMALL_BYTES)
    if not isinstance(value, dict):
        raise InputError(f"{where or path}: expected a JSON object, got {kind_of(value)}")
    return value


def parse_json(text: str, *, allow_nan: bool = False) -> Any:
    """The value that a text stands for. Raises InputError; the message does not say where the text comes from."""
    try:
        value = (_DECODER_WITH_NAN if allow_nan else _DECODER).decode(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON ({error})") from error
    except RecursionError:
        raise InputError("lists or objects are nested too deep") from None
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise InputError(f"{half} is half a surrogate pair, which is not Unicode") from None
    return value


def kind_of(value: object) -> str:
    """What JSON calls a value, for messages: "a list"."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "an integer"}
    return "null" if value is None else kinds.get(type(value), "a number")


# -- what Python's own decoder would accept -----------------------------------------------------------------------


def _integer(digits: str) -> int:
    _finite(digits)
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise InputError(f"{digits[:24]}, of {len(digits):,} characters, is too large for a number")
    return number


def _constant(name: str) -> float:
    raise InputError(f"not valid JSON ({name} is not a number)")


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_finite, parse_constant=_constant)
_DECODER_WITH_NAN = json.JSONDecoder(parse_int=_integer)
