"""Dropout, seen from outside: weights are chosen so that the scores of a model show which elements
were dropped.

Plain operations compute narrow models, those for CPUs wide ones, and those for GPUs what XLA
compiles as a whole. Each of the three has a random generator of its own.
"""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from harness.batches import Computer, random_rows
from harness.models import KEY

from bert.configuration import BertConfig, unnamed_labels
from bert.heads import HEADS
from bert.model import COMPILED_WIDTH, Bert, Tracing
from distributed.gradient import dropout_key

RATE = 0.1
SLOW_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("cpu", "compiled")]
KINDS = pytest.mark.parametrize("kind", ["plain", "cpu", SLOW_KINDS[1]])
MOSTLY_SLOW = pytest.mark.parametrize("kind", ["plain", *SLOW_KINDS])
ROWS = random_rows([60, 41, 64, 25, 9, 8], vocab_size=50)


def grouping(kind):
    return "compiled" if kind == "compiled" else "by length"


def make(head, kind, num_layers, hidden_rate, attention_rate, **more):
    config = BertConfig(
        vocab_size=50,
        hidden_size=COMPILED_WIDTH if kind == "cpu" else 32,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=72,
        hidden_dropout_prob=hidden_rate,
        attention_probs_dropout_prob=attention_rate,
        **more,
    )
    return Computer(Bert(config, HEADS[head], seed=2))


@functools.cache
def revealing(kind, layer, part, rate=RATE):
    """A model whose result is near 1 or -1 where this dropout of its last layer kept something,
    else near 0.

    What it drops is 100 and -100 in turn, and next to nothing is added to it.
    """
    compute = make("features", kind, layer + 1, rate, 0.0)
    scope = (
        "bert/embeddings/LayerNorm/beta"
        if part == "embeddings"
        else f"layer_{layer}/{part}/dense/bias"
    )
    for name, variable in compute.model.named_tensors().items():
        if name.endswith(scope):
            variable.assign(np.resize([100.0, -100.0], variable.shape))
        elif name.startswith(f"bert/encoder/layer_{layer}") and "output/dense" in name:
            variable.assign(tf.zeros(variable.shape))
    return compute


def mask_of(compute, kind, key=KEY):
    """What was kept, bool [tokens, H]."""
    values = np.abs(np.concatenate(compute(ROWS, grouping(kind), key).scores))
    assert not ((values > 0.65) & (values < 0.75)).any()
    return values > 0.7


def assert_random(mask, rate):
    """The share of what is dropped, in all and in each row, and pairs at all distances: all within
    five (six where there are hundreds) standard deviations of what independent draws give."""
    dropped = ~mask - rate
    deviation = rate * (1 - rate)
    assert abs(dropped.mean()) < 5 * np.sqrt(deviation / dropped.size)
    assert np.abs(dropped.mean(1)).max() < 6 * np.sqrt(deviation / dropped.shape[1]) + 0.02
    assert np.abs(dropped.mean(0)).max() < 6 * np.sqrt(deviation / dropped.shape[0]) + 0.02
    width = dropped.shape[1]
    power = np.abs(np.fft.rfft(dropped, n=2 * width)) ** 2
    pairs = np.fft.irfft(power.sum(0))[1:width] / deviation
    assert (np.abs(pairs) < 6 * np.sqrt(len(dropped) * np.arange(width - 1, 0, -1))).all()
    for distance in (1, 2, 8, 64):
        both = dropped[distance:] * dropped[:-distance]
        assert abs(both.sum()) < 6 * deviation * np.sqrt(both.size)


@pytest.mark.parametrize("rate", [RATE, pytest.param(0.01, marks=pytest.mark.slow)])
@KINDS
def test_the_share_of_what_is_dropped_is_the_rate_and_nothing_else_is_regular(kind, rate):
    """To within 2 %, as few random bits are drawn: for 0.1 a rate of 26 / 256."""
    assert_random(
        mask_of(revealing(kind, 0, "output", rate), kind), 26 / 256 if rate == RATE else rate
    )


@KINDS
def test_random_numbers_are_a_function_of_key_and_place(kind):
    compute = revealing(kind, 0, "output")
    masks = [mask_of(compute, kind, key) for key in (KEY, [3, 6], [4, 5], [5, 3])]
    np.testing.assert_array_equal(masks[0], mask_of(compute, kind))
    places = [(0, "embeddings"), (0, "attention/output"), (1, "output")]
    masks += [
        mask_of(revealing(kind, *place), kind) for place in places[: 1 if kind == "compiled" else 3]
    ]
    differing = 2 * 26 / 256 * 230 / 256  # the share where one of two independent masks drops
    for first, second in itertools.combinations(masks, 2):
        assert abs((first != second).mean() - differing) < 6 * np.sqrt(
            differing * (1 - differing) / first.size
        )


def test_a_key_is_a_function_of_seed_step_micro_batch_and_rank():
    places = [range(4)] * 4
    keys = [dropout_key(*place).tobytes() for place in itertools.product(*places)]
    assert len(set(keys)) == 4**4
    assert keys == [dropout_key(*place).tobytes() for place in itertools.product(*places)]
    assert dropout_key(0, 0, 0, 0).dtype == np.int32


def test_the_pooled_vector_is_dropped_and_scaled_too():
    """What is kept is divided by 1 - rate."""
    classifier = make(
        "classifier", "plain", 1, 0.0, 0.0, labels=unnamed_labels(32), classifier_dropout=0.5
    )
    tensors = classifier.model.named_tensors()
    tensors["bert/pooler/dense/bias"].assign(np.full(32, 20.0))  # of which tanh is 1
    tensors["output_weights"].assign(np.eye(32))
    scores = np.array(classifier(random_rows([9] * 300, vocab_size=50), "by length", KEY).scores)
    np.testing.assert_array_equal(np.unique(scores), [0, 2])
    assert_random(scores > 0, 0.5)


@KINDS
def test_what_is_kept_is_divided_by_1_minus_the_rate(kind):
    """Added to 1 and -1 in turn, 2 and -2 become 5 of it at the rate 0.5, and would become 3, as
    without a key."""
    compute = make("features", kind, 1, 0.5, 0.0)
    for name, variable in compute.model.named_tensors().items():
        if name.endswith(("attention/output/LayerNorm/beta", "layer_0/output/dense/bias")):
            variable.assign(
                np.resize([1.0, -1.0], variable.shape) * (2 if name.endswith("bias") else 1)
            )
        elif name.endswith(("attention/output/LayerNorm/gamma", "layer_0/output/dense/kernel")):
            variable.assign(tf.zeros(variable.shape))
    values, without = (
        np.abs(np.concatenate(compute(ROWS, grouping(kind), key).scores)) for key in (KEY, None)
    )
    is_kept = values > 0.8  # 5 and 1 divided by the standard deviation of both, sqrt(13)
    assert np.median(values[is_kept]) / np.median(values[~is_kept]) == pytest.approx(5, rel=0.1)
    np.testing.assert_allclose(without, 1, atol=1e-5)


@MOSTLY_SLOW
def test_the_mean_over_many_keys_is_attention_without_dropout(kind):
    """A missing factor of 1 / (1 - rate) would show."""
    compute = make("features", kind, 1, 0.0, 0.3)
    for name, variable in compute.model.named_tensors().items():
        if "attention" in name and name.endswith("kernel"):
            variable.assign(5 * variable)
    without = np.concatenate(compute(ROWS, grouping(kind)).scores)
    off = [
        np.concatenate(compute(ROWS, grouping(kind), [7, n]).scores) - without for n in range(60)
    ]
    assert np.linalg.norm(np.mean(off, 0)) < 0.4 * np.linalg.norm(off[0])
    assert np.linalg.norm(off[0]) > 1e-2 * np.linalg.norm(without)


@pytest.mark.parametrize(
    "kind", ["plain", *SLOW_KINDS, pytest.param("recomputed", marks=pytest.mark.slow)]
)
def test_the_gradient_with_dropout_is_the_slope_of_the_loss(kind):
    """The masks of the backward pass are those of the forward pass. The slope is that along each
    tensor's gradient, between two points so near that the loss is all but straight."""
    compute = make("span", kind, 1, 0.3, 0.3, initializer_range=0.1)
    compute = Computer(compute.model, Tracing(recomputes=kind == "recomputed"))
    at = compute(ROWS, grouping(kind), KEY)
    tensors = compute.model.named_tensors()
    norms = {name: np.linalg.norm(gradient) for name, gradient in at.gradients.items()}
    checked = [name for name, norm in norms.items() if norm > 1e-2 * max(norms.values())]
    assert len(checked) > len(norms) / 2
    for name in checked:
        value, losses = tensors[name].numpy(), []
        for side in (1, -1):
            tensors[name].assign(
                value + side * 2e-3 / norms[name] * at.gradients[name] / norms[name]
            )
            losses.append(compute(ROWS, grouping(kind), KEY).loss)
        tensors[name].assign(value)
        assert (losses[0] - losses[1]) / 4e-3 == pytest.approx(1, rel=0.02), name
