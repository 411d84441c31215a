"""The model against PyTorch (tests/goldens, made by scripts/make_goldens.py), and what is promised of it alone."""

import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from real_data import real
from safetensors.numpy import load_file
from transformers import BertConfig

from bert import weights
from bert.attention import COMPILED, attention, softmax
from bert.elementwise import (
    COMPILED_WIDTH,
    draws,
    dropout,
    dropout_scale,
    effective_rate,
    highest_kept,
    kept,
    more_rows,
    residual,
)
from bert.model import ACTIVATIONS, Bert
from tasks.squad.program import span_loss

HEADS = ["span_gelu", "classifier_gelu", "pretraining_gelu", "pretraining_gelu_new"]
# Two float32 programs that sum in different orders differ by some units of 6e-8 per operation; over the dozens of
# dependent operations of two layers that is about 1e-5 of the largest value, 1e-4 leaves room for other libraries.
TO_PYTORCH = 1e-4
KEY = tf.constant([3, 5], tf.int32)


def golden(goldens, name: str):
    """The model as we load it, PyTorch's numbers, and the same inputs in our form."""
    there = load_file(goldens / name / "golden.safetensors")
    config = weights.read_config(goldens / name)
    model = Bert(config, name.split("_")[0])
    weights.load(model, goldens / name)
    return model, there, inputs_of(there)


def inputs_of(there) -> dict[str, tf.Tensor]:
    rows, length = there["input_ids"].shape
    arrays = {
        "input_ids": there["input_ids"],
        "token_type_ids": there["token_type_ids"],
        "position_ids": np.broadcast_to(np.arange(length), (rows, length)),
        "example_ids": there["attention_mask"],
        "first_tokens": np.arange(rows) * length,
        "masked_tokens": there.get("masked_tokens", np.zeros(0)),
    }
    return {name: tf.constant(array, tf.int32) for name, array in arrays.items()}


def cross_entropy(labels, scores) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))


def loss_of(there, inputs, scores) -> tf.Tensor:
    if "start_positions" in there:
        batch = inputs | {f"{end}_position": tf.constant(there[f"{end}_positions"]) for end in ("start", "end")}
        return span_loss(scores, batch) / len(there["input_ids"])
    if "masked_ids" in there:
        return cross_entropy(there["masked_ids"], scores["mlm"]) + cross_entropy(there["labels"], scores["nsp"])
    return cross_entropy(there["labels"], scores)


def error(ours, theirs) -> float:
    """The largest difference, as a share of the largest value."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


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


def test_activations_are_google_s():
    x = np.linspace(-4, 4, 81, dtype=np.float32)
    from math import erf, pi, sqrt, tanh

    exact = [v * 0.5 * (1 + erf(v / sqrt(2))) for v in x.tolist()]
    tanh_form = [v * 0.5 * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * v**3))) for v in x.tolist()]
    np.testing.assert_allclose(ACTIVATIONS["gelu"](x), exact, atol=1e-6)  # values to 4, float32's unit there 2e-7
    np.testing.assert_allclose(ACTIVATIONS["gelu_new"](x), tanh_form, atol=1e-6)


@pytest.mark.parametrize("head", ["span", "features"])
def test_a_real_model(goldens, head):
    there = json.loads((goldens / "minilm.json").read_text())
    folder = real("minilm/model.safetensors").parent
    model = Bert(weights.read_config(folder), head)
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


# -- dropout ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(("told", "rate"), [(0.1, 26 / 256), (0.5, 0.5), (0.01, 655 / 65536)])
def test_dropout_keeps_its_share_and_the_mean(told, rate, is_compiled, monkeypatch):
    """By 8 random bits for each element, by 16 where 8 change the rate by more than 2 %."""
    monkeypatch.setattr("bert.elementwise.kept", functools.partial(kept, is_compiled=is_compiled))
    assert effective_rate(told) == rate
    x = tf.ones([400, 501])
    y = dropout(x, told, KEY, 0).numpy()
    share = (y == 0).mean()
    assert abs(share - rate) < 5 * np.sqrt(rate * (1 - rate) / y.size)  # five standard deviations
    scale = dropout_scale(told)
    assert scale == 1 / (1 - rate)
    np.testing.assert_allclose(np.unique(y), [0, scale], rtol=1e-6)
    assert y.mean() == pytest.approx((1 - share) * scale, rel=1e-5)
    rows = (y == 0).mean(1)  # the share is that of every row too: no stripes
    assert np.abs(rows - rate).max() < 6 * np.sqrt(rate * (1 - rate) / y.shape[1])
    neighbours = np.corrcoef((y[:, :-1] == 0).ravel(), (y[:, 1:] == 0).ravel())[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(y.size)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_dropout_is_a_function_of_key_and_place(is_compiled, monkeypatch):
    monkeypatch.setattr("bert.elementwise.kept", functools.partial(kept, is_compiled=is_compiled))
    x = tf.ones([64, 65])
    first = dropout(x, 0.3, KEY, 4).numpy()
    np.testing.assert_array_equal(first, dropout(x, 0.3, KEY, 4).numpy())
    np.testing.assert_array_equal(first, tf.function(dropout)(x, 0.3, KEY, 4).numpy())
    for key, place in (([3, 5], 5), ([3, 6], 4), ([4, 5], 4), ([5, 3], 4)):
        differing = (first != dropout(x, 0.3, tf.constant(key, tf.int32), place).numpy()).mean()
        assert abs(differing - 2 * 0.3 * 0.7) < 5 * np.sqrt(0.42 * 0.58 / first.size)  # as of independent masks
    assert dropout(x, 0.3, None, 4) is x
    assert dropout(x, 0.0, KEY, 4) is x
    np.testing.assert_array_equal(dropout(x, 1 / 200_000, KEY, 4), x)  # rounds to a share of 0


def test_dropout_s_gradient_is_zero_where_the_mask_is():
    x = tf.random.stateless_normal([50, 41], [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = dropout(x, 0.4, KEY, 0)
    gradient = tape.gradient(y, x).numpy()
    np.testing.assert_array_equal(gradient == 0, y.numpy() == 0)
    assert len(np.unique(gradient)) == 2


@pytest.mark.parametrize("heads_per_turn", [0, 1, 2, 4])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_attention_s_gradient_is_that_of_automatic_differentiation(is_dropped, heads_per_turn, monkeypatch):
    monkeypatch.setattr("bert.attention.IN_TURNS_FROM", 7)
    monkeypatch.setattr("bert.attention.TURN_BYTES", heads_per_turn * 7 * 7 * 8)
    shape = [2, 4, 7, 3]
    query, key, value, weight = (tf.random.stateless_normal(shape, [1, n], dtype=tf.float64) for n in range(4))
    mask = tf.constant(np.where(np.arange(7) < [[5], [7]], 0.0, -1e4)[:, None, None, :] * np.ones([1, 1, 7, 1]))
    dropped = (draws([2, 4, 7, 7], 0.4, KEY, 0), highest_kept(0.4)) if is_dropped else (None, 0)

    def plain(query, key, value):
        probs = tf.nn.softmax(tf.einsum("bnqd,bnkd->bnqk", query, key) / 3**0.5 + mask)
        if is_dropped:
            probs *= tf.cast(kept([2, 4, 7, 7], 0.4, KEY, 0), tf.float64)
        return tf.einsum("bnqk,bnkd->bnqd", probs, value)

    found = []
    for function in (plain, lambda *tensors: attention(*tensors, mask, *dropped, in_turns=heads_per_turn > 0)):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            context = function(query, key, value)
        found.append([context, *tape.gradient(context, [query, key, value], weight)])
    for expected, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("available", "threads", "taken"), [(0, 1, 1), (5, 0, 4), (5, 2, 6), (100, 1, 12)])
def test_a_turn_of_attention_takes_as_many_heads_as_stay_in_the_cache(available, threads, taken, monkeypatch):
    seen = []

    def dropped(highest_kept, probs, draws=None):
        seen.append(tuple(probs.shape))
        return COMPILED.dropped(highest_kept, probs, draws)

    monkeypatch.setattr("bert.attention.TURN_BYTES", available * 128 * 128 * 4)
    monkeypatch.setattr("bert.attention.COMPILED", COMPILED._replace(dropped=dropped))
    monkeypatch.setattr("tensorflow.config.threading.get_intra_op_parallelism_threads", lambda: threads)
    x = tf.random.stateless_normal([2, 12, 128, 4], [1, 2])
    attention(x, x, x, tf.zeros([2, 1, 128, 128]), in_turns=True)
    assert seen == [(taken, 128, 128)] * (2 * 12 // taken)


@pytest.mark.parametrize("in_turns", [False, True])
def test_attention_s_gradient_in_bfloat16_is_nearly_as_exact_as_with_one_in_float32(in_turns, monkeypatch):
    monkeypatch.setattr("bert.attention.IN_TURNS_FROM", 96)
    shape = [4, 2, 96, 32]
    exact = [tf.random.stateless_normal(shape, [1, n], dtype=tf.float64) for n in range(4)]
    query, key, value, weight = rounded = [tf.cast(tensor, tf.bfloat16) for tensor in exact]
    mask = tf.zeros([4, 1, 96, 96])
    dropped = draws([4, 2, 96, 96], 0.1, KEY, 0), highest_kept(0.1)
    kept_ = kept([4, 2, 96, 96], 0.1, KEY, 0)

    def plain(query, key, value):
        kind = query.dtype
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), max(kind, tf.float32, key=lambda k: k.size))
        probs = tf.cast(tf.nn.softmax(scores / 32**0.5), kind)
        return tf.matmul(tf.where(kept_, probs, tf.zeros([], kind)), value)

    def gradients(function, *tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors[:3])
            context = function(*tensors[:3])
        return [tf.cast(g, tf.float64) for g in tape.gradient(context, tensors[:3], tensors[3])]

    expected = gradients(plain, *(tf.cast(tensor, tf.float64) for tensor in rounded))
    ours = gradients(
        lambda *tensors: attention(*tensors, tf.cast(mask, tf.bfloat16), *dropped, in_turns), *rounded
    )
    theirs = gradients(plain, query, key, value, weight)
    for right, mine, other in zip(expected, ours, theirs, strict=True):
        off, others = (float(tf.norm(found - right) / tf.norm(right)) for found in (mine, other))
        assert off < 1.5 * others  # dP - rowsum is rounded too
        assert off < 0.02


def test_softmax_of_bfloat16_is_computed_in_float32():
    scores = tf.cast(3 * tf.random.stateless_normal([50, 384], [1, 2]), tf.bfloat16)
    found = tf.function(softmax, autograph=False)(scores)
    expected = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), tf.bfloat16)
    assert found.dtype == tf.bfloat16
    off = np.abs(tf.cast(found, tf.float32).numpy() / tf.cast(expected, tf.float32).numpy() - 1)
    assert off.max() < 2.0**-7  # one unit in the last place
    assert (off > 0).mean() < 0.01


def test_every_place_of_the_model_has_a_mask_of_its_own(goldens, monkeypatch):
    """The places of Google's dropouts: embeddings, then attention, attention output and output of each layer, then
    the pooled vector; none twice."""
    model, _, inputs = golden(goldens, "classifier_gelu")
    places = []

    def record(shape, rate, key, place, is_compiled=False):
        places.append((place, shape.shape[0], rate))
        return draws(shape, rate, key, place, is_compiled)

    for module in ("bert.elementwise", "bert.model"):
        monkeypatch.setattr(f"{module}.draws", record)
    with_key, without = model(inputs, dropout_key=KEY), model(inputs)
    recorded = list(places)
    assert [place for place, _, _ in recorded] == list(range(1 + 3 * 2 + 1))
    assert [rank for _, rank, _ in recorded] == [2, 1, 2, 2, 1, 2, 2, 2]
    assert all(rate == 0.1 for _, _, rate in recorded)
    assert error(with_key, without) > 1e-3
    np.testing.assert_array_equal(model(inputs, dropout_key=KEY), with_key)


def wide_model(precision: str, **more) -> Bert:
    """With a head for spans, and wide enough for XLA."""
    config = BertConfig(
        vocab_size=50, hidden_size=COMPILED_WIDTH, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=512, max_position_embeddings=64, **more,
    )  # fmt: skip
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    model = Bert(config, "span", seed=3)
    keras.config.set_dtype_policy(before)
    return model


@pytest.mark.parametrize(("precision", "is_compiled"), [("float32", False), ("mixed_bfloat16", True)])
def test_prediction_is_compiled_in_bfloat16_and_computes_the_same(precision, is_compiled, monkeypatch):
    model, asked = wide_model(precision), []
    place = np.tile(np.arange(20, dtype=np.int32), (3, 1))
    inputs = {
        "input_ids": np.random.default_rng(0).integers(0, 50, (3, 20), dtype=np.int32),
        "token_type_ids": (place > 10).astype(np.int32),
        "position_ids": place,
        "example_ids": (place < np.array([[20], [15], [8]])).astype(np.int32),
    }
    monkeypatch.setattr("bert.model.more_rows", lambda rows: asked.append(rows) or more_rows(rows))
    found = tf.function(lambda: model(inputs))()
    assert len(asked) == is_compiled
    monkeypatch.setattr("bert.model.COMPILED_WIDTH", COMPILED_WIDTH + 1)
    plain = tf.function(lambda: model(inputs))()
    assert len(asked) == is_compiled
    inside = inputs["example_ids"].astype(bool)
    tolerances = (1e-6, 1e-6) if precision == "float32" else (3e-2, 5e-2)  # bfloat16 rounds to 2^-8
    assert error(found[inside], plain[inside]) < tolerances[0]
    assert error(found[inside], wide_model("float32")(inputs)[inside]) < tolerances[1]


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(("activation", "rate"), [("gelu", 0.1), ("gelu_new", 0.0)])
def test_compiled_parts_compute_what_the_graph_s_operations_do(precision, activation, rate, monkeypatch):
    """The scores and every gradient of a model that is wide enough for XLA, with and without it."""
    model = wide_model(
        precision, hidden_act=activation, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate
    )
    generator = np.random.default_rng(0)
    groups = (np.array([3, 40], np.int32), np.array([0, 8], np.int32), np.array([9, 24], np.int32))
    rows = sum(int(count * length) for count, length in groups)  # 336: with padding 512
    place = np.concatenate([np.tile(np.arange(length, dtype=np.int32), count) for count, length in groups])
    inputs = {
        "input_ids": generator.integers(0, 50, rows, dtype=np.int32),
        "token_type_ids": (place > 10).astype(np.int32),
        "position_ids": place,
        "example_ids": (place < 22).astype(np.int32),
        "groups": groups,
    }
    target = tf.constant(generator.normal(size=(rows, 2)).astype(np.float32))

    def run():
        with tf.GradientTape() as tape:
            scores = model(inputs, dropout_key=KEY)
            loss = tf.reduce_sum(scores * target)
        return scores, tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    monkeypatch.setattr("bert.attention.IN_TURNS_FROM", 40)  # one of the groups
    compiled_scores, compiled = tf.function(run)()
    if rate:
        monkeypatch.setattr("bert.elementwise._compiled", lambda function: function)
        monkeypatch.setattr("bert.attention.IN_TURNS_FROM", 41)
    else:  # nor is there padding, whose masks would change those of the rest
        monkeypatch.setattr("bert.model.COMPILED_WIDTH", COMPILED_WIDTH + 1)
    scores, gradients = tf.function(run)()
    tolerance = 2e-5 if precision == "float32" else 3e-2  # bfloat16 rounds to 2^-8, in other places
    assert error(compiled_scores, scores) < tolerance
    for variable, one, other in zip(model.trainable_variables, compiled, gradients, strict=True):
        if variable.name.endswith("key.bias"):
            continue  # it adds the same to all scores of a row: its gradient is 0, and what is found is rounding
        one, other = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
        assert float(tf.norm(one - other)) < tolerance * float(tf.norm(other)), variable.name


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_the_compiled_residual_s_gradient_is_that_of_automatic_differentiation(rate, dtype, monkeypatch):
    monkeypatch.setattr("bert.elementwise.kept", lambda *arguments: kept(*arguments[:4]))  # one generator for both
    shapes = {"hidden": [40, 384], "branch": [40, 384], "bias": [384], "gamma": [384], "beta": [384]}
    names = enumerate(shapes.items())
    inputs = {name: tf.random.stateless_normal(shape, [1, n], dtype=dtype) for n, (name, shape) in names}
    weight = tf.random.stateless_normal([40, 384], [1, 9], dtype=dtype)

    def run(is_compiled):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            result = residual(**inputs, epsilon=1e-12, rate=rate, key=KEY, place=3, is_compiled=is_compiled)
        return [result, *tape.gradient(result, list(inputs.values()), weight)]

    tolerance = {tf.float32: 1e-5, tf.float64: 1e-12}[dtype]
    for compiled, plain in zip(run(True), run(False), strict=True):
        assert error(compiled, plain) < tolerance


def test_attention_takes_no_rows_too():
    unknown = tf.TensorSpec([None] * 4)

    @tf.function(input_signature=[unknown, unknown], autograph=False)
    def gradient(x, mask):
        with tf.GradientTape() as tape:
            tape.watch(x)
            context = attention(tf.ensure_shape(x, [None, None, None, 4]), x, x, mask, in_turns=True)
        return context, tape.gradient(context, x)

    for result in gradient(tf.zeros([0, 2, 200, 4]), tf.zeros([0, 1, 200, 200])):
        assert result.shape == (0, 2, 200, 4)


def test_recomputed_layers_give_the_same_bits():
    """Scores and gradients with dropout; the layers' products are in the graph twice."""
    config = BertConfig(
        vocab_size=50, hidden_size=COMPILED_WIDTH, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=512,
    )  # fmt: skip
    model = Bert(config, "span", seed=3)
    ids = np.random.default_rng(0).integers(0, 50, (4, 16), dtype=np.int32)
    inputs = {
        "input_ids": ids, "token_type_ids": np.zeros_like(ids), "example_ids": np.ones_like(ids),
        "position_ids": np.tile(np.arange(16, dtype=np.int32), (4, 1)),
    }  # fmt: skip
    found, products = {}, {}
    for recomputes in (False, True):
        model.recomputes = recomputes

        @tf.function(autograph=False)
        def step():
            with tf.GradientTape() as tape:
                scores = model(inputs, dropout_key=KEY)
                loss = tf.reduce_sum(tf.square(scores))
            return scores, tape.gradient(loss, [variable.value for variable in model.trainable_variables])

        graph = step.get_concrete_function().graph.as_graph_def()
        operations = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        products[recomputes] = sum(operation.op in ("MatMul", "BatchMatMulV2") for operation in operations)
        found[recomputes] = [tf.convert_to_tensor(tensor).numpy() for tensor in tf.nest.flatten(step())]
    for kept_, again in zip(found[False], found[True], strict=True):
        assert kept_.tobytes() == again.tobytes()
    # For each layer: QKV, scores, output, up, down, and the context twice, of long rows and of others.
    assert products[True] == products[False] + 2 * 7


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


def test_initial_values_are_bert_s():
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
    with pytest.raises(ValueError, match="hidden_act 'swish' is none of gelu"):
        Bert(BertConfig(hidden_act="swish"))
    small = BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    with pytest.raises(ValueError, match="head 'spam' is none of span"):
        Bert(small, "spam")
    assert keras.config.backend() == "tensorflow"
