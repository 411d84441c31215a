"""From texts to rows of tokens: what SQuAD, the classifier and bert-features share."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bert.text.tokenizer import Tokenizer, check_unknown
from distributed.run import Run
from distributed.world import World
from ringbase.ragged import Ragged, gather, offsets_of
from tasks.cache import Prepared, Recipe, prepared

TEXTS_AT_ONCE = 4096  # per call of the tokenizer, which uses all cores


def open_tokenized(
    recipe: Callable[[], Recipe], source: object, tokenizer: Tokenizer, allow_unknown: bool, world: World, run: Run
) -> Prepared:
    """The rows of a source on every rank. Prints their facts "notes", and "unknown_share", the share of [UNK].

    Raises InputError as `prepared`, and for more than 10 % [UNK] without `allow_unknown`.
    """
    data = prepared(recipe, str(source), world, run)
    share = data.facts["unknown_share"]
    notes = ", ".join([*data.facts["notes"], f"{share:.2%} [UNK]"])
    run.say(f"{source}: {notes}" + ("" if data.is_new else " (cached)"))
    check_unknown(share, str(source), tokenizer, allow_unknown)
    return data


def parts(number: int, label: str, unit: str, run: Run) -> Iterator[slice]:
    """Slices of `TEXTS_AT_ONCE` of `number` texts, with a progress bar."""
    progress = run.progress(number, label, unit)
    for start in range(0, number, TEXTS_AT_ONCE):
        yield slice(start, start + TEXTS_AT_ONCE)
        progress.update(min(TEXTS_AT_ONCE, number - start))
    progress.close()


def encoded(texts: Sequence[str], label: str, tokenizer: Tokenizer, run: Run) -> list[np.ndarray]:
    """The token ids of each text, with a progress bar."""
    return [ids for part in parts(len(texts), label, "text", run) for ids in tokenizer.encode_ids(texts[part])]


def truncated(first: np.ndarray, second: np.ndarray, room: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of each text to keep, int64 [n]; `first` and `second` are the numbers there are, int64 [n].

    This is `_truncate_seq_pair` of run_classifier.py: it removes tokens from the end of the longer text, of the
    second when both are equally long, until the two have at most `room` tokens.
    """
    kept = np.minimum(second, np.maximum(room // 2, room - first))
    return np.minimum(first, room - kept), kept


def joined_pairs(
    first: Ragged, second: Ragged, is_pair: np.ndarray, max_seq_length: int, tokenizer: Tokenizer
) -> tuple[Ragged, np.ndarray]:
    """Rows `[CLS] first [SEP]`, plus `second [SEP]` for pairs, and how many tokens of each row are of type 0.

    Args:
      first, second: tokens of n texts, int32; those of `second` are empty where there is no pair.
      is_pair: bool [n].
      max_seq_length: the maximum number of tokens of a row; longer ones are `truncated`.
    """
    room = max_seq_length - 2 - is_pair.astype(np.int64)
    kept_first, kept_second = truncated(np.diff(first[1]), np.diff(second[1]), room)
    one, zero = np.ones_like(kept_first), np.zeros_like(kept_first)
    source = np.concatenate([[tokenizer.cls_id, tokenizer.sep_id], first[0], second[0]]).astype(np.int32)
    first_starts, second_starts = first[1][:-1] + 2, second[1][:-1] + 2 + len(first[0])
    starts = np.stack([zero, first_starts, one, second_starts, one], 1)
    lengths = np.stack([one, kept_first, one, kept_second, is_pair.astype(np.int64)], 1)
    return (gather(source, starts.reshape(-1), lengths.reshape(-1)), offsets_of(lengths.sum(1))), kept_first + 2
