"""How a step's rows are dealt to ranks and micro-batches, and how much of a batch is padding."""

import itertools

import numpy as np
import pytest
from harness.batches import GROUPINGS, TASKS, batch_of, grouping_of, random_rows
from transformers import BertConfig

from bert import batch as batches
from bert.batch import with_checked_ids
from distributed.order import divided, fixed_batches
from ringbase.errors import InputError


def test_groups_by_length_have_the_fewest_padded_tokens():
    """Of all cuts of the sorted rows into three groups, whose lengths are multiples of 8."""
    chance = np.random.default_rng(0)
    for _ in range(50):
        lengths = chance.integers(1, 100, chance.integers(1, 11))
        rounded = np.sort(-(-lengths // 8) * 8)[::-1]
        fewest = min(
            sum((b - a) * rounded[a] for a, b in itertools.pairwise([0, *cuts, len(lengths)]))
            for count in range(min(3, len(lengths)))
            for cuts in itertools.combinations(range(1, len(lengths)), count)
        )
        batch = batch_of("features", random_rows(lengths, 50), "by length")
        assert batch["attention_mask"].size == fewest


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_weights_count_no_padding_and_targets_lie_in_the_rows_of_their_tokens(grouping):
    rows = random_rows([9, 40, 12], 50)
    weights = [task.weights(batch_of(head, rows, grouping)) for head, task in TASKS.items()]
    assert weights == [{"loss": 3.0}, {"loss": 3.0}, {"mlm": sum(len(row.masked) for row in rows), "nsp": 3.0}]
    ids = np.arange(1, 62, dtype=np.int32)
    fields = {"input_ids": (ids, np.array([0, 9, 49, 61])), "sentence_a_tokens": np.array([3, 4, 5])}
    fields, batch = batches.batch_of(fields, grouping_of(grouping))
    np.testing.assert_array_equal(batches.token_targets(fields["input_ids"][0], batch), batch["input_ids"])


@pytest.mark.parametrize("is_dealt", [False, True], ids=["by tokens", "by rows"])
def test_every_row_of_a_step_goes_to_one_micro_batch_and_all_have_like_work(is_dealt):
    chance = np.random.default_rng(1)
    for num_ranks, accumulation in itertools.product((1, 2, 5), (1, 3)):
        lengths = chance.integers(5, 385, chance.integers(2, 9) * num_ranks * accumulation)
        ranks = divided(lengths, np.arange(len(lengths)), num_ranks, accumulation, 1, is_dealt)
        assert [len(micro_batches) for micro_batches in ranks] == [accumulation] * num_ranks
        parts = [part for micro_batches in ranks for part in micro_batches]
        assert sorted(np.concatenate(parts)) == list(range(len(lengths)))
        if is_dealt:
            assert np.ptp([len(part) for part in parts]) <= 1
        tokens = [sum(lengths[part].sum() for part in micro_batches) for micro_batches in ranks]
        assert np.ptp(tokens) <= lengths.max() * (accumulation if is_dealt else 1)
    few = divided(np.array([7, 7]), np.arange(2), 3, 1, 1, is_dealt)
    assert sorted(len(part) for (part,) in few) == [0, 1, 1]


def test_rows_of_a_block_of_a_file_stay_together_where_ranks_have_enough_blocks():
    lengths, rows = np.random.default_rng(2).integers(20, 129, 64), np.roll(1600 + np.arange(64), 5)
    (first,), (second,) = divided(lengths, rows, 2, 1, 16, is_dealt=False)
    assert not {*(rows[first] // 16)} & {*(rows[second] // 16)}
    assert abs(lengths[first].sum() - lengths[second].sum()) < lengths.sum() / 4


def test_batches_of_prediction_hold_each_row_once_and_no_more_tokens_than_fit():
    lengths = np.r_[np.full(400, 16), np.random.default_rng(3).integers(9, 61, 200), 700]
    batches = fixed_batches(lengths, 8 * 64)
    assert sorted(np.concatenate(batches)) == list(range(601))
    assert len(batches[0]) == 1  # longer than a batch
    assert all(len(batch) * lengths[batch].max() <= 8 * 64 for batch in batches[1:])
    assert len(batches) < 1.2 * lengths.sum() / (8 * 64)


@pytest.mark.parametrize(
    ("table", "entries"), [("vocab_size", 50), ("type_vocab_size", 1), ("max_position_embeddings", 39)]
)
def test_ids_that_the_model_has_no_entries_for_are_refused(table, entries):
    """GPUs would compute on with zeros."""
    ids = np.arange(11, 51)
    fields = {"input_ids": (ids, np.array([0, 40])), "sentence_a_tokens": np.array([9]), "row": np.array([7])}
    sizes = {"vocab_size": 51, "type_vocab_size": 2, "max_position_embeddings": 40}

    def batch(fields):
        return batches.batch_of(fields)[1]

    with_checked_ids(batch, BertConfig(**sizes))(fields)
    with pytest.raises(InputError, match=f"7.*{table} {entries}"):
        with_checked_ids(batch, BertConfig(**sizes | {table: entries}))(fields)
