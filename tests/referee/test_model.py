"""The model's scores and gradients are PyTorch's (tests/goldens, made by scripts/make_goldens.py), however rows
are padded and grouped, and whatever XLA compiles; and those of the papers' formulas in float64."""

import functools
import json
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from harness.batches import Computed, Computer, Row, random_rows
from harness.models import KEY, error
from harness.real_data import real
from safetensors.numpy import load_file

from bert import configuration, weights
from bert.configuration import BertConfig
from bert.model import COMPILED_WIDTH, Bert

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
HEADS = ["span_gelu", "classifier_gelu", "pretraining_gelu", "pretraining_gelu_new"]
FAMILY = [f"{head}_{name}" for head in ("span", "classifier") for name in ("roberta", "electra", "distilbert")]
SLOW = [("pretraining_gelu_new", "by length", False), ("pretraining_gelu", "compiled", True)]
# Two float32 programs that sum in different orders differ by some units of 6e-8 per operation; over the dozens of
# dependent operations of two layers that is about 1e-5 of the largest value, 1e-4 leaves room for other libraries.
TO_PYTORCH = 1e-4


@functools.cache
def golden(name: str) -> tuple[Computer, dict[str, np.ndarray], list[Row]]:
    """The model as we load it, PyTorch's numbers, and the rows of which they are."""
    there = load_file(GOLDENS / name / "golden.safetensors")
    config = replace(configuration.read_config(GOLDENS / name), **NO_DROPOUT)
    model = Bert(config, name.split("_")[0])
    weights.load(model, GOLDENS / name)
    rows, length = [], there["input_ids"].shape[1]
    none = np.zeros(len(there["input_ids"]), int)
    for number, mask in enumerate(there["attention_mask"].astype(bool)):
        masked = zip(there.get("masked_tokens", []), there.get("masked_ids", []), strict=True)
        start, end = (int(there.get(f"{end}_positions", none)[number]) for end in ("start", "end"))
        rows.append(
            Row(
                there["input_ids"][number, mask].tolist(),
                int((there["token_type_ids"][number, mask] == 0).sum()),
                (start, end),
                int(there.get("labels", none)[number]),
                {int(token % length): int(id_) for token, id_ in masked if token // length == number},
            )
        )
    return Computer(model), there, rows


def scores_there(there: dict[str, np.ndarray], rows: list[Row]) -> list[np.ndarray]:
    """PyTorch's scores of each row, as in `Computed`."""
    if "mlm" not in there:
        return [scores[: len(row.input_ids)] for scores, row in zip(there["scores"], rows, strict=True)]
    ends = np.cumsum([len(row.masked) for row in rows])
    mlm = np.split(there["mlm"], ends[:-1])
    return [np.concatenate([part.ravel(), nsp]) for part, nsp in zip(mlm, there["nsp"], strict=True)]


def assert_gradients_are_those_of_pytorch(found: dict[str, np.ndarray], there: dict, model: Bert) -> None:
    theirs = {key.removeprefix("gradient."): value for key, value in there.items() if key.startswith("gradient.")}
    largest = max(np.abs(value).max() for value in theirs.values())
    for key, ours in found.items():
        their_gradient = theirs.pop(weights.hugging_face_name(key, model.head_name, model.config.architecture))
        # Softmax ignores a common addend: gradients of key biases, and of a span's last beta and bias, are 0.
        scale = max(np.abs(their_gradient).max(), largest / 100)
        np.testing.assert_allclose(
            ours.T if key.endswith("/kernel") else ours, their_gradient, 0, TO_PYTORCH * scale, err_msg=key
        )
    assert not theirs


@pytest.mark.parametrize(
    ("name", "grouping", "trains"),
    [
        *((name, grouping, False) for name in HEADS[:3] for grouping in ("padded", "by length")),
        ("span_gelu", "by length", True),
        *((name, "by length", name.startswith("span")) for name in FAMILY),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
    ],
)
def test_scores_and_gradients_are_those_of_pytorch(name, grouping, trains, monkeypatch):
    """Training has a key, though dropout is 0: other operations than for prediction are then the fastest, on CPUs
    with parts that XLA compiles, and a few heads at a time. "compiled" has a row that is all padding."""
    monkeypatch.setattr("bert.model.COMPILED_WIDTH", 32)
    monkeypatch.setattr("bert.ops_cpu.IN_TURNS_FROM", 12)
    compute, there, rows = golden(name)
    computed = compute(rows, grouping, KEY if trains else None)
    for ours, theirs in zip(computed.scores, scores_there(there, rows), strict=True):
        assert ours.dtype == np.float32
        assert error(ours, theirs) < TO_PYTORCH
    assert computed.loss == pytest.approx(float(there["loss"]), rel=TO_PYTORCH)
    assert_gradients_are_those_of_pytorch(computed.gradients, there, compute.model)
    if grouping == "by length" and not trains:  # alone and among others
        for row, ours in zip(rows, compute(rows * 4, grouping).scores, strict=False):
            assert error(compute([row], grouping).scores[0], ours) < 1e-5  # other orders of sums


@pytest.mark.slow
def test_a_real_model_has_the_hidden_states_of_pytorch():
    there = json.loads((GOLDENS / "minilm.json").read_text())
    folder = real("minilm/model.safetensors").parent
    model = Bert(configuration.read_config(folder), "features")
    assert weights.load(model, folder).endswith(": bert/pooler/dense/bias, bert/pooler/dense/kernel")  # not used
    (state,) = Computer(model)([Row(there["input_ids"], len(there["input_ids"]))]).scores
    ours = [float(state[token, part]) for token, part in there["places"]]
    np.testing.assert_allclose(ours, there["values"][-1], rtol=0, atol=1e-4 * np.abs(state).max())
    assert np.linalg.norm(state) == pytest.approx(there["norms"][-1], rel=1e-4)


# The first row is long enough for attention that takes a few heads at a time.
ROWS = random_rows([130, 12, 40, 9], vocab_size=50)
# Of scores and loss, and of gradients. bfloat16 has 8 bits: 0.4 % for each of some dozen rounded values; gradients
# are sums over tokens that nearly cancel.
TOLERANCES = {"float32": (2e-5, 2e-5), "mixed_bfloat16": (0.02, 0.1)}


GELU = {
    "gelu": lambda x: x * 0.5 * (1 + tf.math.erf(x / np.sqrt(2))),
    "gelu_new": lambda x: x * 0.5 * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


def plain(model: Bert, rows: list[Row]) -> Computed:
    """What a model with a head for spans must compute without dropout: BERT as its papers write it, in float64, a
    row at a time without padding."""
    tensors = {name: tf.constant(v.numpy(), tf.float64) for name, v in model.named_tensors().items()}
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        scores = [span_scores(tensors, model.config, row) for row in rows]
        losses = []
        for row, scores_T2 in zip(rows, scores, strict=True):
            log_probs = tf.nn.log_softmax(scores_T2, axis=0)
            losses.append(-(log_probs[row.span[0], 0] + log_probs[row.span[1], 1]) / 2)
        loss = tf.add_n(losses) / len(rows)
    gradients = tape.gradient(loss, tensors)
    dense = {name: tf.convert_to_tensor(gradient).numpy() for name, gradient in gradients.items()}
    return Computed([each.numpy() for each in scores], float(loss), dense)


def span_scores(tensors: dict, config, row: Row) -> tf.Tensor:
    """float64 [T, 2]."""

    def dense(x, scope):
        return x @ tensors[f"{scope}/kernel"] + tensors[f"{scope}/bias"]

    def norm(x, scope):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        gamma, beta = tensors[f"{scope}/LayerNorm/gamma"], tensors[f"{scope}/LayerNorm/beta"]
        return gamma * (x - mean) / tf.sqrt(variance + config.layer_norm_eps) + beta

    length, heads = len(row.input_ids), config.num_attention_heads
    types = np.array([position >= row.num_first for position in range(length)], int)
    x = tf.gather(tensors["bert/embeddings/word_embeddings"], row.input_ids)
    x += tf.gather(tensors["bert/embeddings/token_type_embeddings"], types)
    x += tensors["bert/embeddings/position_embeddings"][:length]
    x = norm(x, "bert/embeddings")
    for number in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{number}"
        query, key, value = (
            tf.reshape(dense(x, f"{layer}/attention/self/{part}"), [length, heads, -1])
            for part in ("query", "key", "value")
        )
        scores = tf.einsum("qnd,knd->nqk", query, key) / np.sqrt(query.shape[-1])
        context = tf.einsum("nqk,knd->qnd", tf.nn.softmax(scores), value)
        x = norm(
            x + dense(tf.reshape(context, [length, -1]), f"{layer}/attention/output/dense"),
            f"{layer}/attention/output",
        )
        expanded = GELU[config.hidden_act](dense(x, f"{layer}/intermediate/dense"))
        x = norm(x + dense(expanded, f"{layer}/output/dense"), f"{layer}/output")
    return tf.matmul(x, tensors["cls/squad/output_weights"], transpose_b=True) + tensors["cls/squad/output_bias"]


@functools.cache
def wide(precision: str, activation: str) -> tuple[Computer, Computed]:
    """A model that is wide enough for XLA, and what the formulas say that it computes of ROWS."""
    config = BertConfig(
        vocab_size=50, hidden_size=COMPILED_WIDTH, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=512, max_position_embeddings=144, hidden_act=activation, **NO_DROPOUT,
    )  # fmt: skip
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    model = Bert(config, "span", seed=3)
    keras.config.set_dtype_policy(before)
    for number, variable in enumerate(model.trainable_variables):  # no two layers have equal values
        variable.assign_add(2e-2 * tf.random.stateless_normal(variable.shape, [number, 1]))
    return Computer(model), plain(model, ROWS)


@pytest.mark.parametrize(
    ("precision", "activation", "grouping", "is_training"),
    [
        ("float32", "gelu", "by length", True),
        pytest.param("mixed_bfloat16", "gelu_new", "padded", False, marks=pytest.mark.slow),
        pytest.param("float32", "gelu", "by length", False, marks=pytest.mark.slow),
        pytest.param("mixed_bfloat16", "gelu_new", "by length", True, marks=pytest.mark.slow),
        pytest.param("mixed_bfloat16", "gelu_new", "compiled", True, marks=pytest.mark.slow),
    ],
)
def test_a_model_wide_enough_for_compiled_parts_computes_the_formulas(
    precision, activation, grouping, is_training
):
    """Training has a key, though dropout is 0: other operations than for prediction are then the fastest."""
    compute, expected = wide(precision, activation)
    found = compute(ROWS, grouping, KEY if is_training else None)
    to_scores, to_gradients = TOLERANCES[precision]
    for ours, right in zip(found.scores, expected.scores, strict=True):
        assert ours.dtype == np.float32
        assert error(ours, right) < to_scores
    assert found.loss == pytest.approx(expected.loss, rel=to_scores)
    off = {}
    largest = max(np.linalg.norm(gradient) for gradient in expected.gradients.values())
    for name, right in expected.gradients.items():
        ours = found.gradients[name]
        assert ours.dtype == np.float32
        # Gradients of the keys' biases, of the last beta and of the head's bias are 0 but for rounding.
        off[name] = np.linalg.norm(ours - right) / max(np.linalg.norm(right), largest / 100)
    assert max(off.values()) < to_gradients, off
    if precision != "float32":  # or else nothing was computed in fewer bits
        assert max(off.values()) > 10 * TOLERANCES["float32"][1]


def test_a_row_that_is_longer_than_the_run_expects_is_computed_too():
    """Without the loop over heads of long rows, which is then not in the graph."""
    compute, expected = wide("float32", "gelu")
    found, looped = Computer(compute.model, longest=64)(ROWS, "by length", KEY), compute(ROWS, "by length", KEY)
    for ours, theirs, right in zip(found.scores, looped.scores, expected.scores, strict=True):
        assert max(error(ours, right), error(theirs, right)) < TOLERANCES["float32"][0]
    for name, gradient in looped.gradients.items():
        np.testing.assert_allclose(found.gradients[name], gradient, rtol=1e-4, atol=1e-5, err_msg=name)


def test_initial_values_are_those_of_bert():
    config = BertConfig(vocab_size=2000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
    tensors, again, other = (
        {name: v.numpy() for name, v in Bert(config, "pretraining", seed=seed).named_tensors().items()}
        for seed in (4, 4, 5)
    )
    drawn = {name: value for name, value in tensors.items() if not name.endswith(("gamma", "beta", "bias"))}
    assert all((value == name.endswith("gamma")).all() for name, value in tensors.items() if name not in drawn)
    for name, value in drawn.items():
        assert np.abs(value).max() <= 0.04, name  # truncated at two standard deviations
        np.testing.assert_array_equal(again[name], value)
        assert not np.array_equal(other[name], value)
    # A normal distribution of 0.02 cut at two standard deviations has one of 0.0176.
    assert tensors["bert/embeddings/word_embeddings"].std() == pytest.approx(0.0176, rel=0.01)
    assert len({value.ravel()[:50].tobytes() for value in drawn.values()}) == len(drawn)  # no two tensors alike


@pytest.mark.slow
def test_recomputed_layers_give_the_same_gradients():
    """With the same dropout. TensorFlow joins other operations, so the last bits differ."""
    model, rows = Bert(configuration.read_config(GOLDENS / "span_gelu"), "span"), golden("span_gelu")[2]
    results = []
    for model.recomputes in (False, True):
        computed = Computer(model)(rows, "by length", KEY)
        results.append([*computed.scores, *computed.gradients.values()])
    largest = max(np.abs(value).max() for value in results[0])
    for kept, again in zip(*results, strict=True):
        np.testing.assert_allclose(again, kept, rtol=0, atol=1e-5 * largest)
