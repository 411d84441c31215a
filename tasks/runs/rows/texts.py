"""From files to texts to rows of tokens: what the programs share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bert.text.tokenizer import Tokenizer, check_unknown, tokens_per_character, unknown_share
from distributed.run import Run
from distributed.world import World
from ringbase.ragged import gather, joined, offsets_of
from tasks.runs.rows.cache import Recipe, RowTables, cached_tables

TEXTS_AT_ONCE = 4096  # per call of the tokenizer, which uses all cores
# per character: more for text in a script of whose words the vocabulary has none
MOST_TOKENS = 0.95


class Pairs(NamedTuple):
    """Texts, and pairs where there is a second one."""

    first: Sequence[str]
    second: Sequence[str | None]


@dataclass(frozen=True)
class Tokenization:
    """What makes texts into rows of tokens: the ranks and their run, which shows the progress, and
    the tokenizer."""

    world: World
    run: Run
    tokenizer: Tokenizer
    allow_unknown: bool = False

    def row_tables(self, recipe: Callable[[], Recipe], source: object) -> RowTables:
        """The rows of a source on every rank. Prints their facts "notes" and those of `fit`.

        Raises InputError as `cached_tables`, and for more than 10 % [UNK] without `allow_unknown`.
        """
        data = cached_tables(recipe, str(source), self.world, self.run)
        facts = data.facts
        share = facts["unknown_share"]
        notes = ", ".join([*facts["notes"], f"{share:.2%} [UNK]"])
        origin = "" if data.is_new else " (cached)"
        self.run.say(f"{source}: {notes}{origin}")
        check_unknown(share, str(source), self.tokenizer, self.allow_unknown)
        rate = facts.get("tokens_per_character", 0)
        if rate > MOST_TOKENS:
            self.run.say(
                f"warning: {source}: {rate:.1f} tokens per character: {self.tokenizer.source} has"
                " no words of this script; take a model of the text's language"
            )
        return data

    def ids(self, texts: Sequence[str], label: str = "tokenizing") -> list[np.ndarray]:
        """The token ids of each text, int32 [n]."""
        return self._encoded(self.tokenizer.encode_ids, texts, label, "text")

    def ids_and_spans(
        self, texts: Sequence[str], label: str, unit: str = "text"
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The token ids of each text, and the characters of each token, int32 [n, 2]."""

        def encode(part):
            return zip(*self.tokenizer.encode(part), strict=True)

        return self._encoded(encode, texts, label, unit)

    def _encoded(self, encode: Callable, texts: Sequence[str], label: str, unit: str) -> list:
        """What `encode` says of the texts, `TEXTS_AT_ONCE` at a time, with a progress bar."""
        encoded = []
        with self.run.progress(len(texts), label, unit) as bar:
            for start in range(0, len(texts), TEXTS_AT_ONCE):
                part = texts[start : start + TEXTS_AT_ONCE]
                encoded += encode(part)
                bar.update(len(part))
        return encoded

    def fit(self, ids: Sequence[np.ndarray], texts: Iterable[str]) -> dict[str, float]:
        """How well the vocabulary fits the texts with these ids, as facts."""
        share = unknown_share(ids, self.tokenizer.unk_id)
        rate = tokens_per_character(ids, texts)
        return {"unknown_share": share, "tokens_per_character": rate}


def truncated(
    first: np.ndarray, second: np.ndarray, room: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of each text to keep, int64 [n]; `first` and `second` are the numbers there
    are, int64 [n].

    This is `_truncate_seq_pair` of run_classifier.py: it removes tokens from the end of the longer
    text, of the second when both are equally long, until the two have at most `room` tokens.
    """
    room_for_second = np.maximum(room // 2, room - first)
    second_kept = np.minimum(second, room_for_second)
    first_kept = np.minimum(first, room - second_kept)
    return first_kept, second_kept


def rows_of_texts(
    tokenization: Tokenization,
    first: Sequence[str],
    second: Sequence[str | None],
    max_seq_length: int | np.ndarray,
) -> tuple[dict[str, pa.Array], dict[str, float]]:
    """Texts, and pairs where `second` is not None, as rows `[CLS] first [SEP]`, plus `second [SEP]`
    for pairs, or `[SEP] second [SEP]` with a tokenizer of two separators. They have at most
    `max_seq_length` tokens, one number for all or one for each: longer ones are `truncated`.

    Returns the columns `input_ids` (int32) and `sentence_a_tokens`, how many of them have type 0
    (int32); and the facts of `Tokenization.fit`, with "rows_cut" and "tokens_cut", how many were.
    """
    tokenizer = tokenization.tokenizer
    is_pair = np.array([text is not None for text in second], np.int64)
    first_ids, first_offsets = joined(tokenization.ids(first))
    second_texts = []
    second_ids = first_ids[:0]
    second_offsets = 0 * first_offsets
    if is_pair.any():
        second_texts = [text or "" for text in second]
        second_ids, second_offsets = joined(tokenization.ids(second_texts))
    more_separators = (tokenizer.separators - 1) * is_pair
    room = max_seq_length - 2 - is_pair - more_separators
    first_sizes = np.diff(first_offsets)
    second_sizes = np.diff(second_offsets)
    first_kept, second_kept = truncated(first_sizes, second_sizes, room)
    # A row is gathered from six pieces of one array, each with a start and a length.
    special = [tokenizer.cls_id, tokenizer.sep_id]
    source = np.concatenate([special, first_ids, second_ids]).astype(np.int32)
    one = np.ones_like(is_pair)
    cls, sep = 0 * one, one  # their places
    first_starts = len(special) + first_offsets[:-1]
    second_starts = len(special) + len(first_ids) + second_offsets[:-1]
    starts = np.stack([cls, first_starts, sep, sep, second_starts, sep], 1)
    lengths = np.stack([one, first_kept, one, more_separators, second_kept, is_pair], 1)
    ids = pa.array(gather(source, starts.reshape(-1), lengths.reshape(-1)))
    offsets = pa.array(offsets_of(lengths.sum(1)))
    columns = {
        "input_ids": pa.LargeListArray.from_arrays(offsets, ids),
        "sentence_a_tokens": pa.array(first_kept + 2, pa.int32()),
    }
    facts = tokenization.fit([first_ids, second_ids], [*first, *second_texts])
    num_cut = first_sizes + second_sizes - first_kept - second_kept
    facts["rows_cut"] = int((num_cut > 0).sum())
    facts["tokens_cut"] = int(num_cut.sum())
    return columns, facts


def window_starts(num_tokens: int, room: int, doc_stride: int) -> list[int]:
    """The first tokens of the windows over a text: one every `doc_stride` tokens, until a window
    reaches the end."""
    starts = [0]
    while starts[-1] + room < num_tokens:
        starts.append(starts[-1] + min(room, doc_stride))
    return starts


def max_context_owner(starts: Sequence[int], lengths: Sequence[int], num_tokens: int) -> np.ndarray:
    """For each token of a text, the window with the most context around it: the one with the
    largest min(left, right) + 0.01 * length, and the first one on ties (run_squad.py
    `_check_is_max_context`)."""
    best = np.full(num_tokens, -np.inf)
    owner = np.zeros(num_tokens, np.int64)
    for window, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        left = np.arange(length)
        right = length - 1 - left
        score = np.minimum(left, right) + 0.01 * length
        tokens = slice(start, start + length)
        better = score > best[tokens]
        best[tokens][better] = score[better]
        owner[tokens][better] = window
    return owner
