"""The model against PyTorch (tests/goldens, made by scripts/make_goldens.py): values, gradients, precision."""

import json
from math import erf, pi, sqrt, tanh

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import KEY, error, golden, loss_of
from real_data import real
from transformers import BertConfig

from bert import configuration, weights
from bert.model import Bert
from bert.ops import ACTIVATIONS

HEADS = ["span_gelu", "classifier_gelu", "pretraining_gelu", "pretraining_gelu_new"]
# Two float32 programs that sum in different orders differ by some units of 6e-8 per operation; over the dozens of
# dependent operations of two layers that is about 1e-5 of the largest value, 1e-4 leaves room for other libraries.
TO_PYTORCH = 1e-4


# -- against PyTorch ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_hidden_states_and_scores_are_those_of_pytorch(goldens, name):
    model, there, inputs = golden(goldens, name)
    real_tokens = there["attention_mask"].astype(bool)
    states = model.hidden_states(inputs)
    assert len(states) == model.config.num_hidden_layers + 1
    for number, state in enumerate(states):
        ours = tf.reshape(state, [*real_tokens.shape, -1]).numpy()[real_tokens]
        assert error(ours, there[f"hidden_{number}"][real_tokens]) < TO_PYTORCH, number
    scores = model(inputs)
    if name.startswith("span"):
        assert error(scores.numpy()[real_tokens], there["scores"][real_tokens]) < TO_PYTORCH
    elif name.startswith("pretraining"):
        assert error(scores["mlm"], there["mlm"]) < TO_PYTORCH
        assert error(scores["nsp"], there["nsp"]) < TO_PYTORCH
    else:
        assert error(scores, there["scores"]) < TO_PYTORCH


@pytest.mark.parametrize("name", HEADS)
def test_gradients_are_those_of_pytorch(goldens, name):
    model, there, inputs = golden(goldens, name)
    with tf.GradientTape() as tape:
        loss = loss_of(there, inputs, model(inputs))
    variables = model.named_tensors()
    gradients = tape.gradient(loss, [variable.value for variable in variables.values()])
    assert float(loss) == pytest.approx(float(there["loss"]), rel=TO_PYTORCH)
    theirs = {key.removeprefix("gradient."): value for key, value in there.items() if key.startswith("gradient.")}
    largest = max(np.abs(value).max() for value in theirs.values())
    for key, gradient in zip(variables, gradients, strict=True):
        their_name, transpose = weights.hugging_face_name(key, model.head_name)
        their_gradient = theirs.pop(their_name)
        ours = tf.convert_to_tensor(gradient).numpy()
        ours = ours.T if transpose else ours
        # Softmax ignores a common addend: gradients of key biases, and of a span's last beta and bias, are 0.
        scale = max(np.abs(their_gradient).max(), largest / 1000)
        assert ours.shape == their_gradient.shape
        assert np.abs(ours - their_gradient).max() < TO_PYTORCH * scale, key
    assert not theirs


def test_the_two_forms_of_gelu_differ_by_more_than_the_tolerance(goldens):
    model, there, inputs = golden(goldens, "pretraining_gelu_new")
    swapped = Bert(BertConfig.from_dict(model.config.to_dict() | {"hidden_act": "gelu"}), "pretraining")
    swapped.set_weights(model.get_weights())
    assert error(swapped(inputs)["mlm"], there["mlm"]) > 3 * TO_PYTORCH


def test_activations_are_those_of_google():
    x = np.linspace(-4, 4, 81, dtype=np.float32)
    exact = [v * 0.5 * (1 + erf(v / sqrt(2))) for v in x.tolist()]
    tanh_form = [v * 0.5 * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * v**3))) for v in x.tolist()]
    np.testing.assert_allclose(ACTIVATIONS["gelu"](x), exact, atol=1e-6)  # values to 4, float32's unit there 2e-7
    np.testing.assert_allclose(ACTIVATIONS["gelu_new"](x), tanh_form, atol=1e-6)


@pytest.mark.parametrize("head", ["span", pytest.param("features", marks=pytest.mark.slow)])
def test_a_real_model(goldens, head):
    there = json.loads((goldens / "minilm.json").read_text())
    folder = real("minilm/model.safetensors").parent
    model = Bert(configuration.read_config(folder), head)
    report = weights.load(model, folder, new=weights.HEAD_TENSORS[head])
    assert report.unused == ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
    assert report.missing == list(weights.HEAD_TENSORS[head])
    assert report.loaded == 5 + 16 * 6
    ids = tf.constant([there["input_ids"]], tf.int32)
    inputs = {"input_ids": ids, "token_type_ids": tf.zeros_like(ids), "example_ids": tf.ones_like(ids)}
    states = model.hidden_states(inputs | {"position_ids": tf.range(ids.shape[1])[None]})
    for state, values, norm in zip(states, there["values"], there["norms"], strict=True):
        ours = [float(state[token, part]) for token, part in there["places"]]
        np.testing.assert_allclose(ours, values, atol=TO_PYTORCH * float(np.abs(state).max()), rtol=0)
        assert float(tf.norm(state)) == pytest.approx(norm, rel=TO_PYTORCH)


# -- rows ---------------------------------------------------------------------------------------------------------


def packed(inputs):
    """The golden rows 1 and 2, of 7 and 8 tokens, in one row of 17; their tokens' places in it and before."""
    lengths = (inputs["example_ids"].numpy() != 0).sum(1)
    into, out_of = [], []
    columns = {
        name: np.zeros(17, np.int32) for name in ("input_ids", "token_type_ids", "position_ids", "example_ids")
    }
    start = 0
    for example, row in enumerate((1, 2), start=1):
        there = np.arange(start, start + lengths[row])
        for name, column in columns.items():
            column[there] = example if name == "example_ids" else inputs[name][row, : lengths[row]]
        into.append(there)
        out_of.append(row * inputs["input_ids"].shape[1] + np.arange(lengths[row]))
        start += lengths[row]
    batch = {name: tf.constant(column[None], tf.int32) for name, column in columns.items()}
    batch["first_tokens"] = tf.constant([0, lengths[1]], tf.int32)
    return batch, np.concatenate(into), np.concatenate(out_of)


# The same products on rows of another length, summed in another order: a few float32 units of the values' scale.
REORDERED = 1e-5


@pytest.mark.parametrize("name", ["span_gelu", "classifier_gelu"])
def test_packed_examples_give_the_unpacked_scores(goldens, name):
    model, _, inputs = golden(goldens, name)
    batch, into, out_of = packed(inputs)
    alone, together = model(inputs), model(batch)
    if name == "span_gelu":
        alone, together = (tf.reshape(x, [-1, 2]) for x in (alone, together))
        assert error(together.numpy()[into], alone.numpy()[out_of]) < REORDERED
    else:
        assert error(together, alone[1:]) < REORDERED
    assert error(model.hidden_states(batch)[-1].numpy()[into], model.hidden_states(inputs)[-1].numpy()[out_of]) < (
        REORDERED
    )


@pytest.mark.parametrize("change", [{"position_ids": "running"}, {"example_ids": "one"}])
def test_packing_needs_both_positions_and_examples(goldens, change):
    """The test above can fail: with running positions, or all tokens as one example, the scores differ."""
    model, _, inputs = golden(goldens, "span_gelu")
    batch, into, out_of = packed(inputs)
    if "position_ids" in change:
        batch["position_ids"] = tf.range(17, dtype=tf.int32)[None]
    else:
        batch["example_ids"] = tf.cast(batch["example_ids"] > 0, tf.int32)
    ours = tf.reshape(model(batch), [-1, 2]).numpy()[into]
    assert error(ours, tf.reshape(model(inputs), [-1, 2]).numpy()[out_of]) > 1e-2


def test_padding_changes_nothing(goldens):
    model, there, inputs = golden(goldens, "span_gelu")
    length = inputs["input_ids"].shape[1]
    padded = {name: tf.pad(inputs[name], [[0, 0], [0, 9]]) for name in inputs if name.endswith("_ids")}
    padded["input_ids"] += tf.constant([0] * length + [31] * 9)  # whatever stands there
    mask = there["attention_mask"].astype(bool)
    assert error(model(padded).numpy()[:, :length][mask], model(inputs).numpy()[mask]) < REORDERED
    assert float(loss_of(there, padded, model(padded))) == pytest.approx(float(there["loss"]), rel=TO_PYTORCH)


# -- precision and initial values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.usefixtures("mixed_bfloat16")
def test_bfloat16(goldens, name):
    model, there, inputs = golden(goldens, name)
    assert model.compute_dtype == "bfloat16"
    assert model.hidden_states(inputs)[-1].dtype == tf.bfloat16
    scores = model(inputs)
    for score in tf.nest.flatten(scores):
        assert score.dtype == tf.float32
    assert all(variable.dtype == "float32" for variable in model.variables)
    mask = there["attention_mask"].astype(bool)
    pairs = (
        [(scores.numpy()[mask], there["scores"][mask])]
        if name.startswith("span")
        else [(scores[part], there[part]) for part in ("mlm", "nsp")]
        if name.startswith("pretraining")
        else [(scores, there["scores"])]
    )
    for ours, theirs in pairs:
        # bfloat16 has 8 bits: 0.4 % for each rounded value, which some dozen roundings may add up to 5 %. Exact
        # scores would mean that nothing was computed in bfloat16.
        assert 1e-4 < error(ours, theirs) < 0.05
    with tf.GradientTape() as tape:
        loss = loss_of(there, inputs, model(inputs))
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    assert loss.dtype == tf.float32
    assert all(gradient.dtype == tf.float32 for gradient in gradients)


def test_initial_values_are_those_of_bert():
    config = BertConfig(
        vocab_size=2000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    tensors = {name: v.numpy() for name, v in Bert(config, "pretraining", seed=4).named_tensors().items()}
    for name, value in tensors.items():
        if name.endswith("gamma"):
            assert (value == 1).all()
        elif name.endswith(("beta", "bias")):
            assert (value == 0).all()
        else:
            assert np.abs(value).max() <= 0.04, name  # truncated at two standard deviations
            assert 0 < value.std() < 0.02
    # A normal distribution of 0.02 cut at two standard deviations has one of 0.0176.
    assert tensors["bert/embeddings/word_embeddings"].std() == pytest.approx(0.0176, rel=0.01)
    kernels = [value.ravel()[:50] for name, value in tensors.items() if name.endswith("kernel")]
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels)  # no two tensors alike
    again, other = (Bert(config, "pretraining", seed=seed).named_tensors() for seed in (4, 5))
    for name in ("bert/embeddings/word_embeddings", "cls/predictions/transform/dense/kernel"):
        np.testing.assert_array_equal(again[name], tensors[name])
        assert not np.array_equal(other[name], tensors[name])


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match=r"hidden_act must be one of gelu, .* got 'swish'"):
        Bert(BertConfig(hidden_act="swish"))
    small = BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    with pytest.raises(ValueError, match=r"head must be one of span, .* got 'spam'"):
        Bert(small, "spam")
    assert keras.config.backend() == "tensorflow"


# -- one trace for all layers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_training", [False, True])
def test_layers_of_a_graph_have_their_own_weights_and_dropout(goldens, is_training):
    """They share one trace there. Without a graph each layer computes by itself, to the same result."""
    model, there, inputs = golden(goldens, "span_gelu")
    for number, variable in enumerate(model.trainable_variables):  # no two layers have equal values
        variable.assign_add(1e-2 * tf.random.stateless_normal(variable.shape, [number, 1]))
    key = KEY if is_training else None

    def computed():
        with tf.GradientTape() as tape:
            scores = model(inputs, dropout_key=key)
            loss = loss_of(there, inputs, scores)
        return [
            scores,
            *map(tf.convert_to_tensor, tape.gradient(loss, [v.value for v in model.trainable_variables])),
        ]

    assert model.config.num_hidden_layers > 1
    in_graph, alone = tf.function(computed, autograph=False)(), computed()
    # Of the largest gradient: that of the keys' biases is 0 but for rounding.
    largest = max(float(tf.reduce_max(tf.abs(gradient))) for gradient in alone[1:])
    assert error(in_graph[0], alone[0]) < TO_PYTORCH
    for ours, theirs in zip(in_graph[1:], alone[1:], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TO_PYTORCH * largest)
