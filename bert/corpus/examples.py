"""Examples by the rules of google-research/bert `create_pretraining_data.py`, or rows filled to the
last token.

Every choice is a function of the seed and of the place of the text, so all workers make the same
examples.
"""

import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bert.corpus.masking import Masking, example_keys, mask
from bert.corpus.settings import ExampleSettings
from bert.corpus.shards import record_batch
from bert.corpus.words import Encoder
from bert.text.tokenizer import Tokenizer
from ringbase.ragged import Array, Ragged, gather, offsets_of

PART_CHARACTERS = 1 << 24  # of documents in memory together; a compressed file may have more
BATCH_CHARACTERS = 1 << 20  # tokenized at once
SENTENCE_CHARACTERS = 32  # counted for each sentence besides its own: what it takes in memory
MOST_TRIES = 10  # to draw a random next document other than the current one, as in Google's code


class Part(NamedTuple):
    """Neighbouring documents, among which random next sentences are drawn."""

    tokens: Array  # int32, their token ids
    sentences: Array  # int64, where each sentence starts among the tokens, and the end
    documents: Array  # int64, where each document starts among the sentences, and the end


def parts_of(documents: Iterable[list[str]], encoder: Encoder) -> Iterator[Part]:
    """Documents -> parts of about `PART_CHARACTERS`; sentences and documents without tokens are
    left out."""
    for part in _in_batches(documents, PART_CHARACTERS):
        encoded = []
        for batch in _in_batches(part, BATCH_CHARACTERS):
            sentences = list(chain.from_iterable(batch))
            encoded.append(encoder(sentences))
        tokens, lengths = map(np.concatenate, zip(*encoded, strict=True))
        if not len(tokens):
            continue
        # how many sentences of each document have tokens
        has_tokens = lengths > 0
        bounds = offsets_of([len(document) for document in part])
        sizes = np.diff(offsets_of(has_tokens)[bounds])
        yield Part(tokens, offsets_of(lengths[has_tokens]), offsets_of(sizes[sizes > 0]))


def _in_batches(documents: Iterable[list[str]], characters: int) -> Iterator[list[list[str]]]:
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document)) + SENTENCE_CHARACTERS * len(document)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def make_examples(
    part: Part,
    settings: ExampleSettings,
    tokenizer: Tokenizer,
    place: tuple[int, int, int],
    schema: pa.Schema,
) -> pa.RecordBatch:
    """The examples of a part, in the columns of a shard and `key`, by which a shard is sorted.
    `place`: numbers of unit, part and duplicate."""
    seed = settings.random_seed
    draws = random.Random(str((seed, *place)))
    if settings.next_sentence:
        pool = part.tokens
        spans, is_random = _next_sentence_plan(part, settings, draws)
    else:
        room = settings.max_seq_length - 2
        is_duplicate = place[-1] > 0
        first_cut = 1 + int(draws.random() * room) if is_duplicate else room
        spans, pool = _full_row_plan(part, room, first_cut, tokenizer.sep_id)
        is_random = np.zeros(len(spans), np.int8)

    # [CLS] A [SEP] B [SEP], or [CLS] A [SEP], with the two special tokens behind the pool
    num_examples, num_texts, _ = spans.shape
    starts = np.full((num_examples, 2 * num_texts + 1), len(pool) + 1)
    starts[:, 0] = len(pool)
    starts[:, 1::2] = spans[:, :, 0]
    lengths = np.ones_like(starts)
    lengths[:, 1::2] = spans[:, :, 1] - spans[:, :, 0]
    special = np.array([tokenizer.cls_id, tokenizer.sep_id], pool.dtype)
    pool = np.append(pool, special)
    values = gather(pool, starts.ravel(), lengths.ravel())
    offsets = offsets_of(lengths.sum(axis=1))

    numbers = np.arange(num_examples)
    columns: dict[str, Array | Ragged] = {
        "key": example_keys(seed, *place, numbers, 0),
        "input_ids": (values, offsets),
        "sentence_a_tokens": lengths[:, :3].sum(axis=1),
        "is_random_next": is_random,
    }
    if settings.has_static_masks:
        masking = Masking(tokenizer, **settings.masks)
        keys = example_keys(seed, *place, numbers, 1)
        columns |= mask(values, offsets, keys, masking)
    return record_batch(columns, schema)


def room_for_pairs(settings: ExampleSettings) -> int:
    """The tokens of A and B in a row, beside [CLS] and two [SEP]."""
    return settings.max_seq_length - 3


def _next_sentence_plan(part: Part, settings: ExampleSettings, draws: random.Random):
    """The places of A and B [n, 2, 2] among the tokens by Google's rules, and is_random_next
    [n]."""
    max_tokens = room_for_pairs(settings)
    offsets = part.sentences.tolist()
    bounds = part.documents.tolist()
    draw = draws.random
    num_documents = len(bounds) - 1
    rows = []

    def stop_of(start, end, tokens):
        """Where sentences from `start` on, at least one, have this many tokens, or the document
        ends."""
        stop = bisect_left(offsets, offsets[start] + tokens, start + 1, end + 1)
        return min(stop, end)

    for document, (start, end) in enumerate(pairwise(bounds)):
        target = max_tokens
        if draw() < settings.short_seq_prob:
            target = 2 + int(draw() * (max_tokens - 1))
        while start < end:
            stop = stop_of(start, end, target)
            a_stop = start + 1
            if stop - start > 1:
                a_stop += int(draw() * (stop - start - 1))
            a_from = offsets[start]
            a_to = offsets[a_stop]
            a_length = a_to - a_from
            is_random = stop - start == 1 or draw() < 0.5
            if is_random:
                for _ in range(MOST_TRIES):
                    other = int(draw() * num_documents)
                    if other != document:
                        break
                first, last = bounds[other : other + 2]
                first += int(draw() * (last - first))
                b_stop = stop_of(first, last, target - a_length)
                b_from = offsets[first]
                b_to = offsets[b_stop]
                start = a_stop  # the sentences meant for B are used again
            else:
                b_from = a_to
                b_to = offsets[stop]
                start = stop
            b_length = b_to - b_from
            excess = a_length + b_length - max_tokens
            if excess > 0:
                front_a, back_a, front_b, back_b = _cuts(a_length, b_length, excess, draws)
                a_from += front_a
                a_to -= back_a
                b_from += front_b
                b_to -= back_b
            rows.append((a_from, a_to, b_from, b_to, is_random))
    table = np.array(rows, np.int64).reshape(-1, 5)
    spans = table[:, :4].reshape(-1, 2, 2)
    return spans, table[:, 4].astype(np.int8)


def _cuts(a_length, b_length, excess, draws):
    """How many tokens to cut from the front and the back of A and of B. Google drops one token at a
    time from the longer one, randomly at its front or back."""
    head_start = min(excess, abs(a_length - b_length))
    from_a = (excess - head_start) // 2
    if a_length > b_length:
        from_a += head_start
    from_b = excess - from_a
    front_a = draws.getrandbits(from_a).bit_count()
    front_b = draws.getrandbits(from_b).bit_count()
    return front_a, from_a - front_a, front_b, from_b - front_b


def _full_row_plan(part, room, first_cut, sep_id):
    """The sentences in order, with [SEP] between documents, cut behind `first_cut` tokens and then
    every `room`: the places [n, 1, 2] of the rows in a pool of tokens, and the pool."""
    starts = part.sentences[part.documents[1:-1]]  # of all documents but the first
    pool = np.insert(part.tokens, starts, sep_id).astype(part.tokens.dtype)
    size = len(pool)
    cuts = np.arange(first_cut, size, room)
    begin = np.append(0, cuts)
    stop = np.append(cuts, size)
    # no [SEP] at a row's ends
    separators = starts + np.arange(len(starts))
    is_separator = np.zeros(size + 1, bool)
    is_separator[separators] = True
    begin += is_separator[begin]
    stop -= is_separator[stop - 1]
    is_row = begin < stop
    spans = np.stack([begin, stop], axis=1)[is_row]
    return spans[:, None], pool
