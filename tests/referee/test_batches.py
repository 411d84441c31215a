"""How much of a batch is padding, and which ids are refused."""

import itertools
from functools import partial

import numpy as np
from harness.batches import batch_of, random_rows
from harness.refusals import refused

from bert import batch as batches
from bert.batch import with_checked_ids
from bert.configuration import BertConfig
from tasks.runs.execute.predict import batches_of


def test_groups_by_length_have_the_fewest_padded_tokens():
    """Of all cuts of the sorted rows into four groups, whose lengths are multiples of 8."""
    chance = np.random.default_rng(0)
    for _ in range(50):
        lengths = chance.integers(1, 100, chance.integers(1, 11))
        rounded = np.sort(-(-lengths // 8) * 8)[::-1]
        fewest = min(
            sum((b - a) * rounded[a] for a, b in itertools.pairwise([0, *cuts, len(lengths)]))
            for count in range(min(4, len(lengths)))
            for cuts in itertools.combinations(range(1, len(lengths)), count)
        )
        batch = batch_of("features", random_rows(lengths, 50), "by length")
        assert batch["attention_mask"].size == fewest


def test_batches_of_prediction_hold_each_row_once_and_no_more_tokens_than_fit():
    lengths = np.r_[np.full(400, 16), np.random.default_rng(3).integers(9, 61, 200), 700]
    batches = batches_of(lengths, 8, 64)
    assert sorted(np.concatenate(batches)) == list(range(601))
    assert len(batches[0]) == 1  # longer than a batch
    assert all(len(batch) * lengths[batch].max() <= 8 * 64 for batch in batches[1:])
    assert len(batches) < 1.2 * lengths.sum() / (8 * 64)


NAMES = {"max_position_embeddings": "num_positions"}


def test_ids_that_the_model_has_no_entries_for_are_refused():
    """GPUs would compute on with zeros."""
    ids = np.arange(11, 51)
    places = {"sentence_a_tokens": np.array([9]), "row": np.array([7])}
    fields = {"input_ids": (ids, np.array([0, 40])), **places}
    sizes = {"vocab_size": 51, "max_position_embeddings": 40}

    def check(sizes):
        with_checked_ids(lambda fields: batches.batch_of(fields)[1], BertConfig(**sizes))(fields)

    check(sizes)
    check(sizes | {"type_vocab_size": 1})  # all tokens have type 0
    for table, size in sizes.items():
        name = NAMES.get(table, table)
        refused(partial(check, sizes | {table: size - 1}), "7 of the data", f"{name} {size - 1}")
