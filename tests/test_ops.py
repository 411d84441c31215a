"""The modules of operations compute the same; attention against automatic differentiation."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
from models import FOLDED, error

from bert import ops, ops_cpu, ops_gpu, ops_xla
from bert.dropout import Dropout
from bert.inputs import MASKED_SCORE

DTYPES = pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16], ids=lambda dtype: dtype.name)
# Sums in another order: some units of 6e-8; and bfloat16 rounds to 2^-9 of a value, in other places.
TOLERANCES = {tf.float64: 1e-12, tf.float32: 1e-5, tf.bfloat16: 0.02}
ROWS, WIDTH = 64, 384


def normal(shape, number: int, dtype=tf.float32) -> tf.Tensor:
    return tf.cast(tf.random.stateless_normal(shape, [1, number], dtype=tf.float64), dtype)


class DropoutForGpus(Dropout):
    """With the draws of `ops_gpu`."""

    def kept(self, x):
        return ops_gpu.kept(self, tf.shape(x))


def with_gradients(function, *inputs, compiled=False) -> list[tf.Tensor]:
    """The result and the gradients of the inputs, in a graph, compiled as a whole or not."""

    @tf.function(autograph=False, jit_compile=compiled)
    def run():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            result = function(*inputs)
        return [result, *tape.gradient(result, inputs, normal(tf.shape(result), 99, result.dtype))]

    return run()


def assert_equal(found, expected, dtype) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert error(tf.cast(ours, tf.float64), tf.cast(theirs, tf.float64)) < TOLERANCES[dtype]


# -- the modules --------------------------------------------------------------------------------------------------


def test_the_modules_have_the_same_functions():
    modules = (ops, ops_xla, ops_cpu, ops_gpu)
    for name in ("padding_rows", "random_words", "biased", "activated", "residual", "attention"):
        functions = [function for module in modules if (function := getattr(module, name))]
        assert len(functions) == (3 if name == "random_words" else 4)  # ops_gpu computes them where they are used
        parameters = [list(inspect.signature(function).parameters) for function in functions]
        common = parameters[2]
        assert all(each[: len(common)] == common for each in parameters), name
    for name in ("padding_rows", "biased", "activated", "residual"):  # so that these are tested once
        assert getattr(ops_cpu, name) is getattr(ops_xla, name)
    for name in ("random_words", "attention"):
        assert getattr(ops_xla, name) is getattr(ops, name)


@DTYPES
def test_bias(dtype):
    inputs = normal([ROWS, WIDTH], 0, dtype), normal([WIDTH], 1, dtype)
    assert_equal(with_gradients(ops_xla.biased, *inputs), with_gradients(ops.biased, *inputs), dtype)


@DTYPES
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_activation(dtype, activation):
    inputs = normal([ROWS, WIDTH], 0, dtype), normal([WIDTH], 1, dtype)

    def run(module):
        return with_gradients(lambda x, bias: module.activated(x, bias, ops.ACTIVATIONS[activation]), *inputs)

    assert_equal(run(ops_xla), run(ops), dtype)


@pytest.mark.parametrize(
    ("dtype", "rate", "on_cpu"),
    [
        (tf.float64, 0.1, True),
        (tf.float32, 0.0, True),
        (tf.float32, 0.1, True),
        (tf.float32, 0.1, False),
        (tf.bfloat16, 0.1, True),
    ],
)
def test_residual_and_layer_normalisation(dtype, rate, on_cpu, monkeypatch):
    """With the sums for CPUs and for GPUs. The gradient of the plain one is that of automatic differentiation."""
    monkeypatch.setattr(ops, "on_cpu", lambda: on_cpu)
    ops_xla._compiled_residual.cache_clear()
    of_norm = tf.float32 if dtype == tf.bfloat16 else dtype
    vectors = [normal([WIDTH], 2, dtype), 1 + 0.1 * normal([WIDTH], 3, of_norm), normal([WIDTH], 4, of_norm)]
    inputs = [normal([ROWS, WIDTH], 0, dtype), normal([ROWS, WIDTH], 1, dtype), *vectors]
    dropout = Dropout(rate, FOLDED, 3)  # one generator for all modules

    def run(module):
        return with_gradients(lambda *tensors: module.residual(*tensors, 1e-12, dropout), *inputs)

    assert_equal(run(ops_xla), run(ops), dtype)


@DTYPES
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_attention_of_long_rows(dtype, rate):
    inputs = [normal([3, 4, 130, 16], number, dtype) for number in range(3)]
    mask = tf.cast(np.where(np.arange(130) < 100, 0.0, MASKED_SCORE), dtype) * tf.ones([3, 1, 130, 1], dtype)
    dropout = Dropout(rate, FOLDED, 3)
    draws = dropout.draws([3, 4, 130, 130]) if rate else None

    def run(module):
        return with_gradients(lambda *tensors: module.attention(*tensors, mask, draws, dropout), *inputs)

    assert_equal(run(ops_cpu), run(ops), dtype)


# -- the operations for GPUs --------------------------------------------------------------------------------------

GPU_DTYPES = pytest.mark.parametrize(
    "dtype", [tf.float64, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (tf.float32, tf.bfloat16))],
    ids=lambda dtype: dtype.name,
)  # fmt: skip
RATES = pytest.mark.parametrize("rate", [0.0, 0.1])


@GPU_DTYPES
def test_bias_and_activation_for_gpus(dtype):
    inputs = normal([ROWS, WIDTH], 0, dtype), normal([WIDTH], 1, dtype)
    found, expected = (with_gradients(module.biased, *inputs, compiled=True) for module in (ops_gpu, ops))
    assert_equal(found, expected, dtype)
    for activation in ("gelu", "gelu_new"):

        def run(module, function=ops.ACTIVATIONS[activation]):
            return with_gradients(lambda *x: module.activated(*x, function), *inputs, compiled=True)

        assert_equal(run(ops_gpu), run(ops), dtype)


@GPU_DTYPES
@RATES
def test_residual_and_layer_normalisation_for_gpus(dtype, rate):
    of_norm = tf.float32 if dtype == tf.bfloat16 else dtype
    vectors = [normal([WIDTH], 2, dtype), 1 + 0.1 * normal([WIDTH], 3, of_norm), normal([WIDTH], 4, of_norm)]
    inputs = [normal([ROWS, WIDTH], 0, dtype), normal([ROWS, WIDTH], 1, dtype), *vectors]
    dropout = DropoutForGpus(rate, FOLDED, 3)

    def run(module):
        return with_gradients(lambda *tensors: module.residual(*tensors, 1e-12, dropout), *inputs, compiled=True)

    assert_equal(run(ops_gpu), run(ops), dtype)


@GPU_DTYPES
@RATES
def test_attention_for_gpus(dtype, rate):
    inputs = [normal([3, 4, 130, 16], number, dtype) for number in range(3)]
    mask = tf.cast(np.where(np.arange(130) < 100, 0.0, MASKED_SCORE), dtype) * tf.ones([3, 1, 130, 1], dtype)
    dropout = DropoutForGpus(rate, FOLDED, 3, group=1)

    def run(module):
        def attention(*tensors):
            draws = None
            if rate:
                kept = ops_gpu.kept(dropout, tf.constant([3, 4, 130, 130]))
                draws = tf.where(kept, dropout.highest_kept, dropout.highest_kept + 1)
            return module.attention(*tensors, mask, draws, dropout)

        return with_gradients(attention, *inputs, compiled=True)

    assert_equal(run(ops_gpu), run(ops), dtype)


# -- attention ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads_per_turn", [0, 1, 2, 4])
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_the_gradient_of_attention_is_that_of_automatic_differentiation(rate, heads_per_turn, monkeypatch):
    monkeypatch.setattr(ops_cpu, "IN_TURNS_FROM", 7)
    monkeypatch.setattr(ops_cpu, "TURN_BYTES", heads_per_turn * 7 * 7 * 8)
    query, key, value, weight = (normal([2, 4, 7, 3], number, tf.float64) for number in range(4))
    mask = tf.constant(np.where(np.arange(7) < [[5], [7]], 0.0, -1e4)[:, None, None, :] * np.ones([1, 1, 7, 1]))
    dropout = Dropout(rate, FOLDED, 0)
    draws = dropout.draws([2, 4, 7, 7]) if rate else None

    def plain(query, key, value):
        probs = tf.nn.softmax(tf.einsum("bnqd,bnkd->bnqk", query, key) / 3**0.5 + mask)
        if rate:
            probs *= tf.cast(dropout.draws([2, 4, 7, 7]) <= dropout.highest_kept, tf.float64)
        return tf.einsum("bnqk,bnkd->bnqd", probs, value)

    def ours(*tensors):
        return (ops_cpu if heads_per_turn else ops).attention(*tensors, mask, draws, dropout)

    results = []
    for function in (plain, ours):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            context = function(query, key, value)
        results.append([context, *tape.gradient(context, [query, key, value], weight)])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("available", "threads", "taken"), [(0, 1, 1), (5, 0, 4), (5, 2, 6), (100, 1, 12)])
def test_a_turn_of_attention_takes_as_many_heads_as_stay_in_the_cache(available, threads, taken, monkeypatch):
    shapes, compiled = [], ops_cpu.COMPILED

    def dropped(highest_kept, probs, draws=None):
        shapes.append(tuple(probs.shape))
        return compiled.dropped(highest_kept, probs, draws)

    monkeypatch.setattr(ops_cpu, "TURN_BYTES", available * 128 * 128 * 4)
    monkeypatch.setattr(ops_cpu, "COMPILED", compiled._replace(dropped=dropped))
    monkeypatch.setattr("tensorflow.config.threading.get_intra_op_parallelism_threads", lambda: threads)
    x = normal([2, 12, 128, 4], 0)
    ops_cpu.attention(x, x, x, tf.zeros([2, 1, 128, 128]), None, Dropout(0.0, FOLDED, 0))
    assert shapes == [(taken, 128, 128)] * (2 * 12 // taken)


@pytest.mark.parametrize("module", [ops, ops_cpu], ids=lambda module: module.__name__)
def test_the_gradient_of_attention_in_bfloat16_is_nearly_as_exact_as_with_one_in_float32(module, monkeypatch):
    monkeypatch.setattr(ops_cpu, "IN_TURNS_FROM", 96)
    exact = [normal([4, 2, 96, 32], number, tf.float64) for number in range(4)]
    rounded = [tf.cast(tensor, tf.bfloat16) for tensor in exact]
    mask, dropout = tf.zeros([4, 1, 96, 96], tf.bfloat16), Dropout(0.1, FOLDED, 0)
    draws, kept = dropout.draws([4, 2, 96, 96]), dropout.draws([4, 2, 96, 96]) <= dropout.highest_kept

    def plain(query, key, value):
        kind = query.dtype
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), max(kind, tf.float32, key=lambda k: k.size))
        probs = tf.cast(tf.nn.softmax(scores / 32**0.5), kind)
        return tf.matmul(tf.where(kept, probs, tf.zeros([], kind)), value)

    def gradients(function, *tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors[:3])
            context = function(*tensors[:3])
        return [tf.cast(g, tf.float64) for g in tape.gradient(context, tensors[:3], tensors[3])]

    expected = gradients(plain, *(tf.cast(tensor, tf.float64) for tensor in rounded))
    ours = gradients(lambda *tensors: module.attention(*tensors, mask, draws, dropout), *rounded)
    theirs = gradients(plain, *rounded)
    for right, mine, other in zip(expected, ours, theirs, strict=True):
        off, others = (float(tf.norm(found - right) / tf.norm(right)) for found in (mine, other))
        assert off < 1.5 * others  # dP - rowsum is rounded too
        assert off < 0.02


def test_softmax_of_bfloat16_is_computed_in_float32():
    scores = tf.cast(3 * normal([50, 384], 0), tf.bfloat16)
    actual = tf.function(ops.softmax, autograph=False)(scores)
    expected = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), tf.bfloat16)
    assert actual.dtype == tf.bfloat16
    off = np.abs(tf.cast(actual, tf.float32).numpy() / tf.cast(expected, tf.float32).numpy() - 1)
    assert off.max() < 2.0**-7  # one unit in the last place
    assert (off > 0).mean() < 0.01


def test_attention_takes_no_rows_too():
    unknown = tf.TensorSpec([None] * 4)

    @tf.function(input_signature=[unknown, unknown], autograph=False)
    def gradient(x, mask):
        with tf.GradientTape() as tape:
            tape.watch(x)
            x4 = tf.ensure_shape(x, [None, None, None, 4])
            context = ops_cpu.attention(x4, x, x, mask, None, Dropout(0.0, FOLDED, 0))
        return context, tape.gradient(context, x)

    for result in gradient(tf.zeros([0, 2, 200, 4]), tf.zeros([0, 1, 200, 200])):
        assert result.shape == (0, 2, 200, 4)


# -- rows of padding ----------------------------------------------------------------------------------------------


def test_compiled_parts_get_few_shapes_and_little_padding():
    rows = np.r_[1:1100, 1100:5000:7, 100_000, 1 << 20]
    padding_rows = tf.function(ops_xla.padding_rows, input_signature=[tf.TensorSpec([], tf.int32)])
    padded = np.array([row + int(padding_rows(row)) for row in rows.astype(np.int32)])
    assert (padded >= rows).all()
    assert (padded % 64 == 0).all()
    assert ((padded - rows)[rows >= 1024] <= rows[rows >= 1024] / 16).all()
    for size in (2048, 2500):
        assert len(np.unique(padded[(rows >= size) & (rows < 2 * size)])) <= 17
