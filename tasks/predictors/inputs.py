"""Checks what users pass to predictors, before anything is computed.

Every refusal is one line that names the argument. No TensorFlow, Keras or MPI here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ringbase.errors import InputError
from tasks.texts import is_unicode

Text = tuple[str, str | None]  # a text, and perhaps the second one of a pair
LONGEST_SHOWN = 60


def checked_text(value: object, name: str) -> str:
    """`value` if it is a text; `name` is the argument's. Raises InputError: it is something else, is empty, or
    holds half a surrogate pair."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be a string, got {shown(value)}")
    if not value.strip():
        raise InputError(f"{name} is empty")
    if not is_unicode(value):
        raise InputError(f"{name} holds half a surrogate pair, which is not Unicode")
    return str(value)  # a plain string also for NumPy's


def checked_list(values: object, name: str, of: str) -> list[Any]:
    """The items of a list, tuple, array, column of a table or generator.

    Raises InputError: there are none, or `values` is something that has no order or whose items are not texts.
    """
    if hasattr(values, "columns"):
        raise InputError(f"{name} must be {of}, got a table ({type(values).__name__}): give one of its columns")
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping | set | frozenset):
        raise InputError(f"{name} must be {of}, got {shown(values)}")
    try:
        items = list(values)
    except TypeError:  # an array without axes
        raise InputError(f"{name} must be {of}, got {shown(values)}") from None
    if not items:
        raise InputError(f"{name} is empty: at least one is needed")
    return items


def checked_texts(texts: object) -> tuple[list[Text], bool]:
    """The texts and pairs of texts of the argument `texts`, and whether it is a single one.

    A tuple of two strings is one pair. Raises InputError as `checked_text` and `checked_list` do.
    """
    if isinstance(texts, str):
        return [(checked_text(texts, "texts"), None)], True
    if isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(text, str) for text in texts):
        return [_text_or_pair(texts, "texts")], True
    items = checked_list(texts, "texts", "a string, a pair of strings, or a list of these")
    return [_text_or_pair(item, f"texts[{number}]") for number, item in enumerate(items)], False


def _text_or_pair(value: object, name: str) -> Text:
    if isinstance(value, tuple | list) and len(value) == 2:
        return checked_text(value[0], f"{name}[0]"), checked_text(value[1], f"{name}[1]")
    if isinstance(value, tuple | list):
        raise InputError(f"{name} must be a string or a pair of strings, got {len(value)} values")
    return checked_text(value, name), None


def shown(value: object) -> str:
    """A value in a message, with its type."""
    if isinstance(value, float) and value != value:
        return "nan, which tables hold where a value is missing"
    text = repr(value)
    text = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
    return text if value is None else f"{type(value).__name__} {' '.join(text.split())}"
