"""What users pass to predictors: checked before anything is computed, and made into rows of tokens.

Every refusal is one line that names the argument.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bert.text.tokenizer import MOST_UNKNOWN_SHARE, Tokenizer, unknown_share
from distributed.rows import Rows
from distributed.run import Run
from ringbase.errors import InputError
from ringbase.ragged import joined
from ringbase.settings import is_unicode
from tasks.texts import joined_pairs, parts

TextOrPair = str | tuple[str, str]
Text = tuple[str, str | None]  # a text, and perhaps the second one of a pair
LONGEST_SHOWN = 60
CALLS_TO_USER = 4  # a warning names the line that called the predictor


def checked_text(value: object, name: str) -> str:
    """`value` if it is a text; `name` is the argument's. Raises InputError: it is something else, is empty, or
    holds half a surrogate pair."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be a string, got {_shown(value)}")
    if not value.strip():
        raise InputError(f"{name} is empty")
    if not is_unicode(value):
        raise InputError(f"{name} holds half a surrogate pair, which is not Unicode")
    return str(value)  # a plain string also for NumPy's


def checked_list(values: object, name: str, of: str) -> list[Any]:
    """The items of a list, tuple, array, column of a table or generator. Raises InputError: there are none, or
    `values` has no order."""
    no_list = isinstance(values, str | bytes | Mapping | set | frozenset) or hasattr(values, "columns")
    if no_list or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise InputError(f"{name} must be {of}, got {_shown(values)}")
    if not (items := list(values)):
        raise InputError(f"{name} is empty: at least one is needed")
    return items


def is_pair(value: object) -> bool:
    """Whether an argument is one pair of texts, and not a list: a tuple of two strings."""
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(text, str) for text in value)


def checked_texts(texts: object) -> tuple[list[Text], bool]:
    """The texts and pairs of texts of the argument `texts`, and whether it is a single one. Raises InputError as
    `checked_text` and `checked_list` do."""
    if isinstance(texts, str) or is_pair(texts):
        return [_text_or_pair(texts, "texts")], True
    items = checked_list(texts, "texts", "a string, a pair of strings, or a list of these")
    return [_text_or_pair(item, f"texts[{number}]") for number, item in enumerate(items)], False


def _text_or_pair(value: object, name: str) -> Text:
    if not isinstance(value, tuple | list):
        return checked_text(value, name), None
    if len(value) != 2:
        raise InputError(f"{name} must be a string or a pair of strings, got {len(value)} values")
    return checked_text(value[0], f"{name}[0]"), checked_text(value[1], f"{name}[1]")


def _shown(value: object) -> str:
    """A value in a message, with its type."""
    return "None" if value is None else f"{type(value).__name__} {' '.join(repr(value).split()):.{LONGEST_SHOWN}}"


def text_rows(
    texts: Sequence[Text], tokenizer: Tokenizer, max_seq_length: int, run: Run
) -> tuple[Rows, list[np.ndarray]]:
    """Rows with the columns `input_ids`, `sentence_a_tokens` and `label` (0), and for each row the characters of
    its tokens in their text, int32 [tokens, 2]; (0, 0) for [CLS] and [SEP].

    Warns when some are cut to `max_seq_length` tokens, or many of their tokens are [UNK].
    """
    has_second = np.array([second is not None for _, second in texts])
    encoded: list[list[np.ndarray]] = [[], [], [], []]  # ids and spans of the first texts, and of the second
    for part in parts(len(texts), "tokenizing", "text", run):
        first, second = (tokenizer.encode([text[side] or "" for text in texts[part]]) for side in (0, 1))
        for all_parts, new in zip(encoded, (*first, *second), strict=True):
            all_parts += new
    first_ids, first_spans, second_ids, second_spans = encoded
    warn_of_unknown(unknown_share([*first_ids, *second_ids], tokenizer.unk_id), tokenizer)
    (ids, offsets), sentence_a_tokens = joined_pairs(
        joined(first_ids), joined(second_ids), has_second, max_seq_length, tokenizer
    )
    lengths = np.diff(offsets)
    whole = (
        np.array([len(one) + len(two) + 2 for one, two in zip(first_ids, second_ids, strict=True)]) + has_second
    )
    if num_cut := int((lengths < whole).sum()):
        warnings.warn(
            f"{num_cut} of {len(texts)} texts are cut to max_seq_length {max_seq_length} tokens",
            stacklevel=CALLS_TO_USER - 1,
        )
    columns = {
        "input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids)),
        "sentence_a_tokens": pa.array(sentence_a_tokens, pa.int32()),
        "label": pa.array(np.zeros(len(texts), np.int32)),
    }
    spans, special = [], np.zeros((1, 2), np.int32)
    for number, (length, head) in enumerate(zip(lengths, sentence_a_tokens, strict=True)):
        of_row = [special, first_spans[number][: head - 2], special]
        of_pair = [second_spans[number][: length - head - 1], special] if has_second[number] else []
        spans.append(np.concatenate([*of_row, *of_pair]))
    return Rows(pa.table(columns)), spans


def warn_of_unknown(share: float, tokenizer: Tokenizer) -> None:
    """Warns when many of the tokens are [UNK], where the programs stop: a single text may well hold some."""
    if share > MOST_UNKNOWN_SHARE:
        warnings.warn(
            f"{share:.1%} of the tokens are [UNK], which the model knows nothing about: the vocabulary "
            f"{tokenizer.source} (lower case {tokenizer.lower_case}) may not fit the text",
            stacklevel=CALLS_TO_USER,
        )
