"""Texts and pairs of texts as rows of tokens, for `Classifier` and `Features`."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bert.text.tokenizer import MOST_UNKNOWN_SHARE, Tokenizer, unknown_share
from distributed.rows import Rows
from distributed.run import Run
from ringbase.errors import InputError
from ringbase.ragged import joined
from ringbase.settings import MOST_ROWS
from tasks.predictors.inputs import Text
from tasks.texts import joined_pairs, parts

CALLS_TO_USER = 4  # a warning names the line that called the predictor


@dataclass(frozen=True)
class TextRows:
    """Rows with the columns `input_ids`, `sentence_a_tokens` and `label` (0), and for each row the characters of
    its tokens in their text, int32 [tokens, 2]; (0, 0) for [CLS] and [SEP]. Without spans the list is empty."""

    rows: Rows
    spans: list[np.ndarray]


def text_rows(
    texts: Sequence[Text], tokenizer: Tokenizer, max_seq_length: int, run: Run, needs_spans: bool = False
) -> TextRows:
    """Tokenizes texts. Warns when some are cut to `max_seq_length` tokens, or many of their tokens are [UNK]."""
    is_pair = np.array([second is not None for _, second in texts])
    first, first_spans = _encoded([first for first, _ in texts], tokenizer, run, needs_spans)
    second, second_spans = _encoded([second or "" for _, second in texts], tokenizer, run, needs_spans)
    ragged = joined(first), joined(second)
    (ids, offsets), sentence_a_tokens = joined_pairs(*ragged, is_pair, max_seq_length, tokenizer)
    lengths = np.diff(offsets)
    whole = np.diff(ragged[0][1]) + np.diff(ragged[1][1]) + 2 + is_pair
    warn_of_unknown(unknown_share([*first, *second], tokenizer.unk_id), tokenizer)
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
    spans = []
    special = np.zeros((1, 2), np.int32)
    for number in range(len(texts) if needs_spans else 0):
        parts_of_row = [special, first_spans[number][: sentence_a_tokens[number] - 2], special]
        if is_pair[number]:
            kept = lengths[number] - sentence_a_tokens[number] - 1
            parts_of_row += [second_spans[number][:kept], special]
        spans.append(np.concatenate(parts_of_row))
    return TextRows(Rows(pa.table(columns)), spans)


def _encoded(
    texts: list[str], tokenizer: Tokenizer, run: Run, needs_spans: bool
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The token ids of each text, and their spans if they are needed."""
    ids: list[np.ndarray] = []
    spans: list[np.ndarray] = []
    for part in parts(len(texts), "tokenizing", "text", run):
        if needs_spans:
            new_ids, new_spans = tokenizer.encode(texts[part])
            ids, spans = ids + new_ids, spans + new_spans
        else:
            ids += tokenizer.encode_ids(texts[part])
    return ids, spans


def warn_of_unknown(share: float, tokenizer: Tokenizer) -> None:
    """Warns when many of the tokens are [UNK], where the programs stop: a single text may well hold some."""
    if share > MOST_UNKNOWN_SHARE:
        warnings.warn(
            f"{share:.1%} of the tokens are [UNK], which the model knows nothing about: the vocabulary "
            f"{tokenizer.source} (lower case {tokenizer.lower_case}) may not fit the text",
            stacklevel=CALLS_TO_USER,
        )


def checked_batch_size(batch_size: object) -> int:
    """Raises InputError unless the argument is an integer in its range."""
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or not 1 <= batch_size <= MOST_ROWS:
        raise InputError(f"batch_size must be an integer from 1 to {MOST_ROWS:,}, got {batch_size!r:.80}")
    return batch_size
