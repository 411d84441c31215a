"""Linear layers that leave padding out. That their gradient is the padded one is tested in test_packing.py."""

import numpy as np
import pytest
import tensorflow as tf
from transformers import BertConfig

from bert import model as bert_model
from bert.dropout import folded
from bert.model import Bert
from bert.packing import ByLength, FixedGroups, Groups
from bert.tokens import Tokens, leaves_padding_out
from tasks.batches import encoder_inputs, grouped


def rows(lengths) -> dict:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = np.random.default_rng(1).integers(1, 100, offsets[-1]).astype(np.int32)
    return {"input_ids": (ids, offsets), "sentence_a_tokens": np.array(lengths, np.int32) // 2}


def inputs_of(lengths, num_groups: int = 2) -> dict:
    return encoder_inputs(*grouped(rows(lengths), ByLength(num_groups)))


def small_model(rate: float = 0.0) -> Bert:
    config = BertConfig(vocab_size=100, hidden_size=256, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=512, max_position_embeddings=64, hidden_dropout_prob=rate,
                        attention_probs_dropout_prob=rate)  # fmt: skip
    return Bert(config, "features", seed=3)


def test_only_groups_without_a_fixed_shape_on_cpus_leave_it_out(monkeypatch):
    inputs = inputs_of([9, 5])
    fixed = inputs | {"groups": FixedGroups(tuple(map(tuple, np.array(inputs["groups"].pairs))))}
    alone = encoder_inputs(*grouped(rows([9, 5])))
    assert [leaves_padding_out(each) for each in (inputs, fixed, alone)] == [True, False, False]
    monkeypatch.setattr("bert.ops.on_cpu", lambda: False)
    assert not leaves_padding_out(inputs)


def test_tokens_go_to_their_places_and_back():
    example_ids = np.array([1, 1, 0, 0, 1, 0], np.int32)
    tokens = Tokens.of({"example_ids": tf.constant(example_ids)}).padded(2)
    assert int(tokens.count) == 3
    np.testing.assert_array_equal(tokens.ids(tf.range(6)), [0, 1, 4])
    np.testing.assert_array_equal(tokens.rows(tf.constant([4, 0, 1])), [2, 0, 1])
    hidden = tf.constant([[1.0], [2.0], [3.0], [8.0], [9.0]])  # two rows of padding
    np.testing.assert_array_equal(tokens.in_places(hidden)[:, 0], [1, 2, 8, 8, 3, 8])
    np.testing.assert_array_equal(tokens.in_attention(hidden)[:, 0], [1, 2, 8, 8, 3, 8, 8])
    context = tf.constant([[1.0], [2.0], [30.0], [30.0], [3.0], [30.0], [0.0]])  # 0 in the last place
    np.testing.assert_array_equal(tokens.from_attention(context)[:, 0], [1, 2, 3, 0, 0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([hidden, context])
        there, back = tokens.in_attention(hidden), tokens.from_attention(context)
    # What flows back from places without a token is dropped, and rows of padding get the last place's 0.
    d_there = tf.constant([[1.0], [2.0], [70.0], [70.0], [3.0], [70.0], [0.0]])
    np.testing.assert_array_equal(tape.gradient(there, hidden, d_there)[:, 0], [1, 2, 3, 0, 0])
    d_back = tf.constant([[1.0], [2.0], [3.0], [0.0], [0.0]])
    np.testing.assert_array_equal(tape.gradient(back, context, d_back)[:, 0], [1, 2, 0, 0, 3, 0, 0])


@pytest.mark.parametrize("lengths", [[40, 33, 9, 2], [63, 1], [61, 9, 1], [8] * 8])
def test_linear_layers_compute_no_padding(lengths, monkeypatch):
    """Their rows are the tokens and one more at least, rounded up to what XLA compiles for."""
    model, seen = small_model(rate=0.1), []
    product = bert_model.Linear.product_and_bias
    monkeypatch.setattr(
        bert_model.Linear, "product_and_bias", lambda self, x: (seen.append(x.shape[0]), product(self, x))[1]
    )
    model.hidden_states(inputs_of(lengths), folded(tf.constant([1, 2]), on_host=True))
    assert set(seen) == {(sum(lengths) // 64 + 1) * 64}


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_padding_has_no_gradient(rate):
    """With dropout too: however much padding the groups have, ids and positions of padding get none."""
    model = small_model(rate)
    batch = inputs_of([20, 3, 9])
    assert batch["groups"].num_tokens == 24 + 16 + 16
    with tf.GradientTape() as tape:
        key = folded(tf.constant([1, 2])) if rate else None
        state = model.hidden_states(batch, key)[-1]
        inside = (batch["example_ids"] > 0).astype(np.float32)
        value = tf.reduce_sum(tf.math.sin(3.0 * state) * inside[:, None])
    d_words = tf.math.unsorted_segment_sum(*_slices(tape.gradient(value, model.embeddings.word.value)), 100)
    assert not d_words[0].numpy().any()  # id 0 is padding's alone
    assert d_words.numpy().any()


def _slices(gradient: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    return gradient.values, gradient.indices


def test_a_batch_of_padding_alone_has_no_tokens():
    """A rank whose part of the last step is empty."""
    groups = Groups((np.array([2, 8], np.int32), np.array([0, 8], np.int32)))
    batch = encoder_inputs(rows([]), groups)
    states = small_model().hidden_states(batch)
    assert states[-1].shape == (16, 256)
    assert np.isfinite(states[-1].numpy()).all()
