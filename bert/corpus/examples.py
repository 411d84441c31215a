"""The second pass of a corpus: examples from token ids.

They follow the rules of google-research/bert `create_pretraining_data.py`, or are rows filled to the last token.
Every choice is a function of the seed, the document and the duplicate, so all workers make the same examples.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from bert.corpus import masking
from bert.corpus.encoder import Words
from bert.corpus.settings import ExampleSettings
from bert.corpus.tokens import Block, TokenFiles
from ringbase.ragged import gather, offsets_of

MOST_TRIES = 10  # to draw a random next document other than the current one, as in Google's code
ORDER, MASKS = 0, 1  # uses of an example's random keys


@dataclass(frozen=True)
class Examples:
    """Examples as ragged arrays.

    Attributes:
      keys: uint64 [n], random; the corpus is sorted by them.
      offsets, values: the token ids of each example, [CLS] and [SEP] included.
      sentence_a_tokens: int32 [n], the number of leading tokens of type 0.
      is_random_next: int8 [n].
      masked_offsets, masked_positions (int32), masked_values: the predictions with static masks; else empty.
    """

    keys: np.ndarray
    offsets: np.ndarray
    values: np.ndarray
    sentence_a_tokens: np.ndarray
    is_random_next: np.ndarray
    masked_offsets: np.ndarray
    masked_positions: np.ndarray
    masked_values: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: np.ndarray) -> "Examples":
        """These rows, in this order."""
        lengths, masked = np.diff(self.offsets)[rows], np.diff(self.masked_offsets)[rows]
        masked_starts = self.masked_offsets[rows]
        return Examples(
            self.keys[rows],
            offsets_of(lengths),
            gather(self.values, self.offsets[rows], lengths),
            self.sentence_a_tokens[rows],
            self.is_random_next[rows],
            offsets_of(masked),
            gather(self.masked_positions, masked_starts, masked),
            gather(self.masked_values, masked_starts, masked),
        )


def concatenated(parts: Sequence[Examples]) -> Examples:
    """All of these examples, one after the other."""

    def joined(name: str) -> np.ndarray:
        arrays = [getattr(part, name) for part in parts]
        return (
            offsets_of(np.concatenate(list(map(np.diff, arrays)))) if "offsets" in name else np.concatenate(arrays)
        )

    return Examples(**{field.name: joined(field.name) for field in fields(Examples)})


def make_examples(
    block: Block,
    files: TokenFiles,
    settings: ExampleSettings,
    words: Words,
    duplicate: int,
    masks: masking.Masking | None,
) -> Examples:
    """The examples of a block of documents, in the order of their keys."""
    if settings.next_sentence:
        a, b, is_random, names, pool = _next_sentence_plan(block, files, settings, duplicate)
    else:
        a, b, is_random, names, pool = _full_row_plan(block, settings, words.sep_id, duplicate)
    values, offsets, a_tokens = _assembled(a, b, pool, words)
    documents, numbers = names[:, 0], names[:, 1]

    def keys(purpose: int) -> np.ndarray:
        return masking.example_keys(settings.random_seed, documents, duplicate, numbers, purpose)

    masked_offsets = np.zeros(len(offsets), np.int64)
    positions, originals = np.empty(0, np.int32), np.empty(0, values.dtype)
    if masks is not None:
        masked = masking.mask(values.astype(np.int32), offsets, keys(MASKS), masks)
        values, originals = masked.values.astype(values.dtype), masked.original_ids.astype(values.dtype)
        positions, masked_offsets = masked.positions, masked.position_offsets
    order = keys(ORDER)
    examples = Examples(order, offsets, values, a_tokens, is_random, masked_offsets, positions, originals)
    return examples.take(np.argsort(order, kind="stable"))


# -- Google's rules -----------------------------------------------------------------------------------------------


def document_draws(seed: int, document: int, duplicate: int) -> random.Random:
    """The random numbers of one document."""
    return random.Random((seed % (1 << 64)) << 128 | document << 64 | duplicate)


def _next_sentence_plan(block: Block, files: TokenFiles, settings: ExampleSettings, duplicate: int):
    """Sentences A and B of each example by Google's rules.

    Returns the places [n, 2] of A and of B in the pool, is_random_next [n], document and number in it [n, 2], and
    the pool: the token ids of the block and, after them, those read from random documents.
    """
    max_tokens = settings.max_seq_length - 3
    offsets, bounds = block.sentences.tolist(), block.documents.tolist()
    num_documents, size = files.num_documents, files.dtype.itemsize
    fetched, pool_end = bytearray(), len(block.tokens)
    rows: list[tuple[int, int, int, int, int, int, int]] = []
    for local in range(len(bounds) - 1):
        document = block.first_document + local
        draws = document_draws(settings.random_seed, document, duplicate)
        draw, bits = draws.random, draws.getrandbits
        target = max_tokens
        if draw() < settings.short_seq_prob:
            target = 2 + int(draw() * (max_tokens - 1))
        start, end, number = bounds[local], bounds[local + 1], 0
        while start < end:
            # Take sentences until they reach the target or the document ends.
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
                start = a_stop  # the sentences meant for B are used again
            else:
                b_from, b_to = a_to, offsets[stop]
                start = stop
            excess = (a_to - a_from) + (b_to - b_from) - max_tokens
            if excess > 0:
                # Google drops one token at a time from the longer one, randomly at its front or back.
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


def _full_row_plan(block: Block, settings: ExampleSettings, sep_id: int, duplicate: int):
    """The block's sentences in order, with [SEP] between documents, cut every `max_seq_length` - 2 tokens.

    Returns the same as `_next_sentence_plan`, with an empty B.
    """
    room = settings.max_seq_length - 2
    starts = block.sentences[block.documents[:-1]]
    pool = np.insert(block.tokens, starts[1:], sep_id).astype(block.tokens.dtype)
    first = room
    if duplicate:  # cut at different places than the first time
        first = 1 + int(document_draws(settings.random_seed, block.first_document, duplicate).random() * room)
    begin = np.concatenate([[0], np.arange(first, len(pool), room)])
    stop = np.append(begin[1:], len(pool))
    separators = np.zeros(len(pool) + 1, bool)
    separators[starts[1:] + np.arange(len(starts) - 1)] = True
    begin, stop = begin + separators[begin], stop - separators[stop - 1]  # no [SEP] at a row's ends
    kept = begin < stop
    a = np.stack([begin, stop], axis=1)[kept]
    names = np.stack([np.full(len(a), block.first_document), np.arange(len(a))], axis=1)
    return a, np.zeros((len(a), 0), np.int64), np.zeros(len(a), np.int8), names, pool


def _assembled(a: np.ndarray, b: np.ndarray, pool: np.ndarray, words: Words):
    """[CLS] A [SEP] B [SEP], or [CLS] A [SEP]: values, offsets, the number of tokens of type 0."""
    a_lengths = a[:, 1] - a[:, 0]
    a_tokens = a_lengths + 2
    lengths = a_tokens.copy()
    if b.shape[1]:
        lengths += b[:, 1] - b[:, 0] + 1
    offsets = offsets_of(lengths)
    values = np.empty(offsets[-1], pool.dtype)
    is_special = np.zeros(offsets[-1], bool)
    for places, special in (
        (offsets[:-1], words.cls_id),
        (offsets[:-1] + a_tokens - 1, words.sep_id),
        (offsets[1:] - 1, words.sep_id),
    ):
        values[places] = special
        is_special[places] = True
    both = np.concatenate([a, b], axis=1).reshape(-1, 2)
    values[~is_special] = gather(pool, both[:, 0], both[:, 1] - both[:, 0])
    return values, offsets, a_tokens.astype(np.int32)
