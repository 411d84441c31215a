"""From files to texts to rows of tokens: what the programs share."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from bert.text.tokenizer import Tokenizer, check_unknown, tokens_per_character, unknown_share
from distributed.run import Run
from distributed.world import World
from ringbase.ragged import gather, joined, offsets_of
from tasks.cache import Prepared, Recipe, prepared

TEXTS_AT_ONCE = 4096  # per call of the tokenizer, which uses all cores
# per character: more for text in a script of whose words the vocabulary has none
MOST_TOKENS = 0.95


def open_tokenized(
    recipe: Callable[[], Recipe],
    source: object,
    tokenizer: Tokenizer,
    allow_unknown: bool,
    world: World,
    run: Run,
) -> Prepared:
    """The rows of a source on every rank. Prints their facts "notes" and those of `fit_of`.

    Raises InputError as `prepared`, and for more than 10 % [UNK] without `allow_unknown`.
    """
    data = prepared(recipe, str(source), world, run)
    share = data.facts["unknown_share"]
    notes = ", ".join([*data.facts["notes"], f"{share:.2%} [UNK]"])
    run.say(f"{source}: {notes}" + ("" if data.is_new else " (cached)"))
    check_unknown(share, str(source), tokenizer, allow_unknown)
    if (rate := data.facts.get("tokens_per_character", 0)) > MOST_TOKENS:
        run.say(
            f"warning: {source}: {rate:.1f} tokens per character: {tokenizer.source} has no words"
            " of this script; take a model of the text's language"
        )
    return data


def fit_of(
    tokenizer: Tokenizer, ids: Sequence[np.ndarray], texts: Iterable[str]
) -> dict[str, float]:
    """How well the vocabulary fits the texts with these ids, as facts."""
    share, rate = unknown_share(ids, tokenizer.unk_id), tokens_per_character(ids, texts)
    return {"unknown_share": share, "tokens_per_character": rate}


def parts(number: int, label: str, unit: str, run: Run) -> Iterator[slice]:
    """Slices of `TEXTS_AT_ONCE` of `number` texts, with a progress bar."""
    progress = run.progress(number, label, unit)
    for start in range(0, number, TEXTS_AT_ONCE):
        yield slice(start, start + TEXTS_AT_ONCE)
        progress.update(min(TEXTS_AT_ONCE, number - start))
    progress.close()


def encoded(texts: Sequence[str], label: str, tokenizer: Tokenizer, run: Run) -> list[np.ndarray]:
    """The token ids of each text, with a progress bar."""
    return [
        ids
        for part in parts(len(texts), label, "text", run)
        for ids in tokenizer.encode_ids(texts[part])
    ]


def truncated(
    first: np.ndarray, second: np.ndarray, room: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of each text to keep, int64 [n]; `first` and `second` are the numbers there
    are, int64 [n].

    This is `_truncate_seq_pair` of run_classifier.py: it removes tokens from the end of the longer
    text, of the second when both are equally long, until the two have at most `room` tokens.
    """
    kept = np.minimum(second, np.maximum(room // 2, room - first))
    return np.minimum(first, room - kept), kept


def rows_of_texts(
    first: Sequence[str],
    second: Sequence[str | None],
    max_seq_length: int,
    tokenizer: Tokenizer,
    run: Run,
) -> tuple[dict[str, pa.Array], dict[str, float], np.ndarray]:
    """Texts, and pairs where `second` is not None, as rows `[CLS] first [SEP]`, plus `second [SEP]`
    for pairs, or `[SEP] second [SEP]` with a tokenizer of two separators. They have at most
    `max_seq_length` tokens: longer ones are `truncated`.

    Returns the columns `input_ids` (int32) and `sentence_a_tokens`, how many of them have type 0
    (int32); `fit_of` the vocabulary; and how many tokens of each text or pair are cut off, int64
    [n].
    """
    is_pair = np.array([text is not None for text in second], np.int64)
    seconds = [text or "" for text in second] if is_pair.any() else []
    one = joined(encoded(first, "tokenizing", tokenizer, run))
    two = (
        joined(encoded(seconds, "tokenizing", tokenizer, run))
        if seconds
        else (one[0][:0], 0 * one[1])
    )
    more = (tokenizer.separators - 1) * is_pair
    room = max_seq_length - 2 - is_pair - more
    kept_one, kept_two = truncated(np.diff(one[1]), np.diff(two[1]), room)
    source = np.concatenate([[tokenizer.cls_id, tokenizer.sep_id], one[0], two[0]]).astype(np.int32)
    # where they are in the source, and lengths
    cls, sep = np.zeros_like(is_pair), np.ones_like(is_pair)
    starts = np.stack([cls, one[1][:-1] + 2, sep, sep, two[1][:-1] + 2 + len(one[0]), sep], 1)
    lengths = np.stack([sep, kept_one, sep, more, kept_two, is_pair], 1)
    ids, offsets = (
        gather(source, starts.reshape(-1), lengths.reshape(-1)),
        offsets_of(lengths.sum(1)),
    )
    columns = {
        "input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids)),
        "sentence_a_tokens": pa.array(kept_one + 2, pa.int32()),
    }
    cut = np.diff(one[1]) + np.diff(two[1]) - kept_one - kept_two
    return columns, fit_of(tokenizer, [one[0], two[0]], [*first, *seconds]), cut


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
    for index, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        left, place = np.arange(length), slice(start, start + length)
        score = np.minimum(left, length - 1 - left) + 0.01 * length
        better = score > best[place]
        best[place][better], owner[place][better] = score[better], index
    return owner
