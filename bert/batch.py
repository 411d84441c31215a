"""Rows of tokens -> the model's input. All padding is decided here.

A row of data is an example. The hidden state has a row for each token, R rows in all, and linear
layers see them at once. A row of attention has the tokens of one example. Rows of similar length
form a group, so that little of it is padding: group k has B_k rows of T_k places. All groups
together have B rows and P places. A batch is a dict of arrays:

    input_ids, token_type_ids, position_ids    int32 [R]; 0 in rows without a token
    attention_mask                             int32 [P], 1 for each place with a token
    groups                                     for each group its number of rows and its length
    places, rows                               int32 [R] and [P]: each row's place, each place's row
    first_tokens                               int32 [B]: the row of each example's first token
    is_example                                 float32 [B]: 0 for rows of attention without one
    longest                                    a number, may be added: the run's longest row

A row without a token points at place P, and a place without a token at row `num_tokens`: padding
reads padding. R is one of few numbers, because code that XLA compiles is compiled for each of them.

XLA compiles a whole pass for fixed groups, which are pairs of Python numbers and not arrays. There
R is P, each token's row is its place, and `places` and `rows` are left out.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ringbase.errors import InputError
from ringbase.ragged import Array, padded, reordered

Groups = tuple[Any, ...]  # pairs of Python numbers if they are fixed, else arrays int32 [2]
# Lengths of rows, int [n] -> their order in the batch, and groups, which may have room for more
# rows.
Grouping = Callable[[Array], tuple[Array, Groups]]
Batch = dict[str, Any]

LENGTH_MULTIPLE = 8  # lengths of groups are rounded up to a multiple of this
FEWEST_ROWS, ROW_PARTS = 32, 16
NUM_GROUPS = 4  # of a packed batch
# For batches of 32 rows as long as SQuAD's windows, four layouts of eight groups would have 7 %
# fewer places. XLA would take twice as long to compile them, for a third more kernels of a GPU.
NUM_LAYOUTS = 3


def batch_of(
    fields: dict[str, Any], grouping: Grouping | None = None
) -> tuple[dict[str, Any], Batch]:
    """The fields, which are arrays and ragged arrays of n examples, in the order of the batch, and
    the model's input. `input_ids` are tokens, and `sentence_a_tokens`, int [n], says how many of
    each example have type 0, before those of type 1."""
    grouping = grouping or in_one_group
    order, groups = grouping(np.diff(fields["input_ids"][1]))
    fields = {name: reordered(values, order) for name, values in fields.items()}
    input_ids, offsets = fields["input_ids"]
    num_tokens = len(input_ids)

    # of each row of attention
    widths = _widths(groups)
    lengths = padded(np.diff(offsets), len(widths))
    type_0_lengths = padded(fields["sentence_a_tokens"], len(widths))
    starts = np.cumsum(widths) - widths

    # of each place
    num_places = widths.sum()
    position = np.arange(num_places) - np.repeat(starts, widths)
    has_token = position < np.repeat(lengths, widths)
    is_type_1 = position >= np.repeat(type_0_lengths, widths)

    places = np.flatnonzero(has_token)
    batch = {
        "attention_mask": has_token.astype(np.int32),
        "groups": groups,
        "first_tokens": starts.astype(np.int32),
        "is_example": (lengths > 0).astype(np.float32),
    }
    row_of_token = places
    num_rows = num_places
    if not is_fixed(batch):
        row_of_token = np.arange(num_tokens)
        num_rows = rounded_rows(num_tokens + 1)
        first_tokens = np.cumsum(lengths) - lengths
        row_of_place = np.full(num_places, num_tokens, np.int32)
        row_of_place[places] = row_of_token
        batch["first_tokens"] = first_tokens.astype(np.int32)
        batch["places"] = padded(places.astype(np.int32), num_rows, num_places)
        batch["rows"] = row_of_place
    of_tokens = {
        "input_ids": input_ids,
        "token_type_ids": is_type_1[places],
        "position_ids": position[places],
    }
    for name, values in of_tokens.items():
        of_rows = np.zeros(num_rows, np.int32)
        of_rows[row_of_token] = values
        batch[name] = of_rows
    return fields, batch


def _widths(groups: Groups) -> Array:
    """The length of each row of attention, int64 [B]."""
    num_rows, lengths = np.array(groups, np.int64).reshape(-1, 2).T
    return np.repeat(lengths, num_rows)


def is_fixed(batch: Batch) -> bool:
    """Whether XLA compiles the whole pass, for the groups of this batch."""
    return isinstance(batch["groups"][0], tuple)


def num_examples(batch: Batch) -> int:
    return int(batch["is_example"].sum())


def rounded_up(lengths: Any) -> Any:
    """A length, or an array of lengths, rounded up as in a group."""
    return -(-lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def rounded_rows(count: int) -> int:
    """A multiple of 32; from 1,024 on, of a 16th of the power of two below. For many rows 2 % are
    added."""
    power_below = 1 << count.bit_length() - 1
    unit = max(FEWEST_ROWS, power_below // ROW_PARTS)
    return -(-count // unit) * unit


def with_checked_ids(collate: Callable[..., Batch], config: Any) -> Callable[..., Batch]:
    """`collate`, which then raises InputError for an id without an entry in the tables of a model
    with this BertConfig: CPUs would stop with an error too, but GPUs compute on with zeros."""
    limits = {
        "input_ids": "vocab_size",
        "masked_ids": "vocab_size",
        "position_ids": "num_positions",
    }

    def collate_and_check(fields, **options):
        batch = collate(fields, **options)
        for name in limits.keys() & batch.keys():
            highest = int(batch[name].max(initial=0))
            limit = getattr(config, limits[name])
            if highest >= limit:
                rows = fields["row"]
                raise InputError(
                    f"rows {min(rows)} to {max(rows)} of the data: {highest}"
                    f" among the {name}, but the model has {limits[name]} {limit}: the data was"
                    " made for another model or is damaged"
                )
        return batch

    return collate_and_check


def in_one_group(lengths: Array) -> tuple[Array, Groups]:
    """All rows, in their order, as long as the longest."""
    num_rows = len(lengths)
    shape = np.array([num_rows, rounded_up(np.max(lengths))], np.int32)
    return np.arange(num_rows), (shape,)


def by_length(lengths: Array) -> tuple[Array, Groups]:
    """Groups that fit the lengths in the batch: rows in descending order of length, cut into runs
    with the fewest places. There are always `NUM_GROUPS` groups, so that one graph serves all
    batches; some may have no rows.

    Dynamic programming over the distinct lengths finds the cuts: they save places only where the
    length changes.
    """
    order = _descending(lengths)
    rounded = rounded_up(np.asarray(lengths, np.int64)[order])
    changes = np.flatnonzero(np.diff(rounded)) + 1
    edges = np.concatenate([[0], changes, [len(rounded)]])
    num_runs = len(edges) - 1
    starts = edges[:-1, None]
    # best[j]: the cost of the first j runs in g groups. A group of the runs i..j-1 costs its rows
    # times the length of run i.
    num_rows = edges - starts  # [i, j]: of the runs i..j-1
    never = np.iinfo(np.int64).max // 4
    price = np.where(num_rows > 0, num_rows * rounded[starts], never)
    best = np.full(len(edges), never)
    best[0] = 0
    choices = []
    for _ in range(min(NUM_GROUPS, num_runs)):
        total = best[:-1, None] + price
        choices.append(total.argmin(0))
        best = np.minimum(total.min(0), never)
    shapes = np.full((NUM_GROUPS, 2), (0, LENGTH_MULTIPLE), np.int32)
    stop = num_runs
    for number in reversed(range(len(choices))):
        start = choices[number][stop]
        first_row = edges[start]
        shapes[number] = edges[stop] - first_row, rounded[first_row]
        stop = start
    return order, tuple(shapes)


def _descending(lengths):
    return np.argsort(-np.asarray(lengths), kind="stable")


def _in_groups(lengths: Array, groups: Groups) -> tuple[Array, Groups]:
    return _descending(lengths), groups


class Layouts:
    """At most `NUM_LAYOUTS` fixed sequences of groups; a batch takes the one with the fewest places
    that holds it.

    They are made from a sample of the run's batches, as the lengths of their rows, sorted by their
    number of tokens. The first half of the sample gives a staircase: the maximum of the batches'
    longest rows, of their second longest rows, and so on. The whole sample gives a second one.
    `by_length` cuts each into groups. The last layout holds every batch: of `num_rows` rows, each
    as long as the longest.
    """

    def __init__(self, sample: Sequence[Array], num_rows: int, longest: int):
        stairs = np.ones((len(sample), num_rows), np.int64)  # an empty row needs a place too
        for stair, lengths in zip(stairs, sample, strict=True):
            stair[: len(lengths)] = -np.sort(-np.asarray(lengths))
        order = np.argsort(stairs.sum(1), kind="stable")
        parts = np.array_split(stairs[order], NUM_LAYOUTS - 1)
        highest = [part.max(0) for part in parts if len(part)]
        highest.append(np.full(num_rows, longest))
        distinct = set()
        for stair in np.maximum.accumulate(highest):
            _, shapes = by_length(stair)
            used = [tuple(shape.tolist()) for shape in shapes if shape[0]]
            distinct.add(tuple(used))
        self._layouts = sorted(distinct, key=lambda groups: (_widths(groups).sum(), groups))
        self._widths = np.array([_widths(groups) for groups in self._layouts])

    def single(self) -> list[Grouping]:
        """Each layout as a grouping of its own, for rows that fit into it."""
        return [partial(_in_groups, groups=groups) for groups in self._layouts]

    def __call__(self, lengths: Array) -> tuple[Array, Groups]:
        order = _descending(lengths)
        descending = np.asarray(lengths)[order]
        fits = descending <= self._widths[:, : len(lengths)]
        holds = np.all(fits, axis=1)
        assert holds.any(), f"a row of {np.max(lengths)} tokens"
        return order, self._layouts[int(np.argmax(holds))]
