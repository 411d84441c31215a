"""The second pass of a corpus: examples from token ids, by the rules of google-research/bert
`create_pretraining_data.py`, or rows that are filled to the last token.

Every choice is a function of the seed, the document and the duplicate, so it is the same whoever makes it.
"""

import itertools
import json
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bert.corpus import masking
from bert.corpus.encoder import gather
from bert.corpus.tokens import Block, OpenFiles, TokenFiles, write_json

MOST_TRIES = 10  # for a random next document that is another one, as Google's
ORDER, MASKS = 0, 1  # purposes of an example's random keys


@dataclass(frozen=True)
class Sampling:
    """What decides which examples a block gives."""

    max_seq_length: int
    next_sentence: bool
    short_seq_prob: float
    random_seed: int
    cls_id: int
    sep_id: int


@dataclass(frozen=True)
class Examples:
    """Examples as flat arrays.

    Attributes:
      values: token ids, [CLS] and [SEP] included; `ends` (int64 [n + 1], from 0) bounds each example's.
      sentence_a_tokens: int32 [n], how many leading tokens are of type 0.
      is_random_next: int8 [n].
      keys: uint64 [n], random: their order is that of the corpus.
      masked_values, masked_positions (int32), masked_ends: with static masks; else empty.
    """

    keys: np.ndarray
    ends: np.ndarray
    values: np.ndarray
    sentence_a_tokens: np.ndarray
    is_random_next: np.ndarray
    masked_ends: np.ndarray
    masked_positions: np.ndarray
    masked_values: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: np.ndarray) -> "Examples":
        """These rows, in this order."""
        lengths, masked = np.diff(self.ends)[rows], np.diff(self.masked_ends)[rows]
        masked_starts = self.masked_ends[rows]
        return Examples(
            self.keys[rows],
            ends_of(lengths),
            gather(self.values, self.ends[rows], lengths),
            self.sentence_a_tokens[rows],
            self.is_random_next[rows],
            ends_of(masked),
            gather(self.masked_positions, masked_starts, masked),
            gather(self.masked_values, masked_starts, masked),
        )


def concatenated(parts: Sequence[Examples]) -> Examples:
    """All of these, one after the other."""

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    def joined_ends(name: str) -> np.ndarray:
        return ends_of(np.concatenate([np.diff(getattr(part, name)) for part in parts]))

    return Examples(
        joined("keys"), joined_ends("ends"), joined("values"), joined("sentence_a_tokens"),
        joined("is_random_next"), joined_ends("masked_ends"), joined("masked_positions"), joined("masked_values"),
    )  # fmt: skip


def ends_of(lengths: np.ndarray) -> np.ndarray:
    """Where rows of these lengths start, and the end: int64 [n + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def make_examples(
    block: Block, files: TokenFiles, sampling: Sampling, duplicate: int, masks: masking.Masking | None
) -> Examples:
    """The examples of a block of documents, in order of their keys."""
    plan = _next_sentence_plan if sampling.next_sentence else _full_row_plan
    a, b, is_random, names, pool = plan(block, files, sampling, duplicate)
    values, ends, a_tokens = _assembled(a, b, pool, sampling)
    documents, numbers = names[:, 0], names[:, 1]

    def keys(purpose: int) -> np.ndarray:
        return masking.example_keys(sampling.random_seed, documents, duplicate, numbers, purpose)

    none = np.zeros(0, np.int32)
    masked_ends, positions, originals = np.zeros(len(ends), np.int64), none, none.astype(values.dtype)
    if masks is not None:
        masked = masking.mask(values.astype(np.int32), ends, keys(MASKS), masks)
        values, originals = masked.values.astype(values.dtype), masked.original_ids.astype(values.dtype)
        positions, masked_ends = masked.positions, masked.position_offsets
    order = keys(ORDER)
    made = Examples(order, ends, values, a_tokens, is_random, masked_ends, positions, originals)
    return made.take(np.argsort(order, kind="stable"))


# -- Google's rules -----------------------------------------------------------------------------------------------


def document_draws(seed: int, document: int, duplicate: int) -> random.Random:
    """The random numbers of one document."""
    return random.Random((seed % (1 << 64)) << 128 | document << 64 | duplicate)


def _next_sentence_plan(block: Block, files: TokenFiles, sampling: Sampling, duplicate: int):
    """Where A and B of each example stand in the pool: the block's tokens and, behind them, those fetched from
    random documents. Also: is_random_next, (document, number in it), the pool."""
    most = sampling.max_seq_length - 3
    offsets, bounds = block.sentences.tolist(), block.documents.tolist()
    num_documents, size = files.num_documents, files.dtype.itemsize
    fetched, pool_end = bytearray(), len(block.tokens)
    rows: list[tuple[int, int, int, int, int, int, int]] = []
    for local in range(len(bounds) - 1):
        document = block.first_document + local
        draws = document_draws(sampling.random_seed, document, duplicate)
        draw, bits = draws.random, draws.getrandbits
        target = most
        if draw() < sampling.short_seq_prob:
            target = 2 + int(draw() * (most - 1))
        start, end, number = bounds[local], bounds[local + 1], 0
        while start < end:
            # The sentences that reach the target together, or the rest of the document.
            stop = min(bisect_left(offsets, offsets[start] + target, start + 1, end + 1), end)
            a_stop = start + 1
            if stop - start > 1:
                a_stop += int(draw() * (stop - start - 1))
            a_from, a_to = offsets[start], offsets[a_stop]
            is_random = stop - start == 1 or draw() < 0.5
            if is_random:
                for _ in range(MOST_TRIES):
                    other = int(draw() * num_documents)
                    if other != document:
                        break
                fetched += files.continuation(other, draw(), target - (a_to - a_from))
                b_from, b_to = pool_end, len(block.tokens) + len(fetched) // size
                pool_end = b_to
                start = a_stop  # the sentences that B would have had come again
            else:
                b_from, b_to = a_to, offsets[stop]
                start = stop
            excess = (a_to - a_from) + (b_to - b_from) - most
            if excess > 0:
                # One token at a time goes from the longer, at its front or its back by a coin each.
                longer = (a_to - a_from) - (b_to - b_from)
                first = min(excess, abs(longer))
                from_a = (excess - first) // 2 + (first if longer > 0 else 0)
                from_b = excess - from_a
                front_a, front_b = bits(from_a).bit_count(), bits(from_b).bit_count()
                a_from, a_to = a_from + front_a, a_to - (from_a - front_a)
                b_from, b_to = b_from + front_b, b_to - (from_b - front_b)
            rows.append((a_from, a_to, b_from, b_to, is_random, document, number))
            number += 1
    pool = np.concatenate([block.tokens, np.frombuffer(bytes(fetched), files.dtype)])
    table = np.array(rows, np.int64).reshape(-1, 7)
    return table[:, 0:2], table[:, 2:4], table[:, 4].astype(np.int8), table[:, 5:7], pool


def _full_row_plan(block: Block, files: TokenFiles, sampling: Sampling, duplicate: int):
    """The block's sentences in a row, [SEP] between documents, cut every `max_seq_length` - 2 tokens."""
    room = sampling.max_seq_length - 2
    starts = block.sentences[block.documents[:-1]]
    pool = np.insert(block.tokens, starts[1:], sampling.sep_id).astype(files.dtype)
    first = room
    if duplicate:  # other cuts than the first time
        first = 1 + int(document_draws(sampling.random_seed, block.first_document, duplicate).random() * room)
    begin = np.concatenate([[0], np.arange(first, len(pool), room)])
    stop = np.append(begin[1:], len(pool))
    separators = np.zeros(len(pool) + 1, bool)
    separators[starts[1:] + np.arange(len(starts) - 1)] = True
    begin, stop = begin + separators[begin], stop - separators[stop - 1]  # none at a row's end
    kept = begin < stop
    a = np.stack([begin, stop], axis=1)[kept]
    names = np.stack([np.full(len(a), block.first_document), np.arange(len(a))], axis=1)
    return a, np.zeros((len(a), 0), np.int64), np.zeros(len(a), np.int8), names, pool


def _assembled(a: np.ndarray, b: np.ndarray, pool: np.ndarray, sampling: Sampling):
    """[CLS] A [SEP] B [SEP], or [CLS] A [SEP]: values, ends, how many tokens are of type 0."""
    a_lengths = a[:, 1] - a[:, 0]
    a_tokens = a_lengths + 2
    lengths = a_tokens.copy()
    if b.shape[1]:
        lengths += b[:, 1] - b[:, 0] + 1
    ends = ends_of(lengths)
    values = np.empty(ends[-1], pool.dtype)
    is_special = np.zeros(ends[-1], bool)
    for places, special in (
        (ends[:-1], sampling.cls_id),
        (ends[:-1] + a_tokens - 1, sampling.sep_id),
        (ends[1:] - 1, sampling.sep_id),
    ):
        values[places] = special
        is_special[places] = True
    both = np.concatenate([a, b], axis=1).reshape(-1, 2)
    values[~is_special] = gather(pool, both[:, 0], both[:, 1] - both[:, 0])
    return values, ends, a_tokens.astype(np.int32)


# -- files --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskCounts:
    """What the file of one block and duplicate holds."""

    examples: int
    tokens: int
    masked: int
    random_next: int


def task_path(folder: Path, number: int) -> Path:
    """The file that says that a task of the second pass is done; its `.examples` stands beside it."""
    return folder / f"task-{number:06d}.json"


def write_examples(folder: Path, number: int, made: Examples, bucket_bits: int) -> None:
    """Writes examples that are in order of their keys, with an index by the keys' first `bucket_bits` bits."""
    marker = task_path(folder, number)
    starts = np.searchsorted(
        made.keys >> np.uint64(64 - bucket_bits), np.arange((1 << bucket_bits) + 1, dtype=np.uint64)
    )
    with open(marker.with_suffix(".examples"), "wb") as file:
        for array in (starts.astype(np.int64), made.keys, made.ends, made.masked_ends, made.sentence_a_tokens,
                      made.masked_positions, made.values, made.masked_values, made.is_random_next):  # fmt: skip
            file.write(array.tobytes())
    counts = TaskCounts(len(made), len(made.values), len(made.masked_values), int(made.is_random_next.sum()))
    write_json(marker, asdict(counts), is_forced=False)


def read_task_counts(folder: Path, number: int) -> TaskCounts:
    return TaskCounts(**json.loads(task_path(folder, number).read_text()))


def is_sampled(folder: Path, number: int, bucket_bits: int, dtype: np.dtype) -> bool:
    """Whether a task is done and its file is whole, which a power cut may have cut."""
    try:
        counts = read_task_counts(folder, number)
        size = task_path(folder, number).with_suffix(".examples").stat().st_size
    except (OSError, ValueError):
        return False
    return size == _places(counts, 1 << bucket_bits, dtype)[-1]


def _places(counts: TaskCounts, buckets: int, dtype: np.dtype) -> tuple[int, ...]:
    """The bytes of a file of examples at which keys, ends, ends of masks, tokens of A, positions, values, masked
    values and is_random_next start, and its size."""
    examples, masked, item = counts.examples, counts.masked, dtype.itemsize
    sizes = (
        8 * (buckets + 1), 8 * examples, 8 * (examples + 1), 8 * (examples + 1), 4 * examples, 4 * masked,
        item * counts.tokens, item * masked, examples,
    )  # fmt: skip
    return tuple(itertools.accumulate(sizes))


class ExampleFiles:
    """The examples of the whole corpus, by bucket: the first bits of their keys."""

    def __init__(self, folder: Path, counts: Sequence[TaskCounts], bucket_bits: int, dtype: np.dtype):
        self._paths = [task_path(folder, number).with_suffix(".examples") for number in range(len(counts))]
        self._counts, self._buckets, self._dtype = counts, 1 << bucket_bits, dtype
        self._files = OpenFiles()

    def bucket_sizes(self) -> np.ndarray:
        """How many examples each bucket holds, int64 [buckets]."""
        total = np.zeros(self._buckets, np.int64)
        for path in self._paths:
            total += np.diff(self._array(path, 0, 0, self._buckets + 1, np.int64))
        return total

    def bucket(self, number: int) -> Examples:
        """A bucket's examples, in order of their keys."""
        found = concatenated([self._slice(task, number) for task in range(len(self._paths))])
        return found.take(np.argsort(found.keys, kind="stable"))

    def _slice(self, task: int, bucket: int) -> Examples:
        path, counts = self._paths[task], self._counts[task]
        start, stop = self._array(path, 0, bucket, bucket + 2, np.int64).tolist()
        keys, ends, masked_ends, a_tokens, positions, values, masked_values, is_random, _ = _places(
            counts, self._buckets, self._dtype
        )
        my_ends = self._array(path, ends, start, stop + 1, np.int64)
        my_masked_ends = self._array(path, masked_ends, start, stop + 1, np.int64)
        first, last = my_ends[0], my_ends[-1]
        masked_first, masked_last = my_masked_ends[0], my_masked_ends[-1]
        return Examples(
            self._array(path, keys, start, stop, np.uint64),
            my_ends - first,
            self._array(path, values, first, last, self._dtype),
            self._array(path, a_tokens, start, stop, np.int32),
            self._array(path, is_random, start, stop, np.int8),
            my_masked_ends - masked_first,
            self._array(path, positions, masked_first, masked_last, np.int32),
            self._array(path, masked_values, masked_first, masked_last, self._dtype),
        )

    def _array(self, path: Path, place: int, start: int, stop: int, dtype) -> np.ndarray:
        size = np.dtype(dtype).itemsize
        data = self._files.read(path, place + size * int(start), size * int(stop - start))
        return np.frombuffer(data, dtype)
