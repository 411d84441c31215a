"""cuDNN's attention (bert/ops_cudnn.py): what is left to do around its two operations, which
harness/attention.py computes here, and what XLA is told to call. soak/gpu compiles it for an H200;
none of it has run on a GPU."""

import json
from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from harness.attention import ByHand
from harness.batches import batch_of, random_rows

from bert import ops, ops_cudnn
from bert.configuration import config_of
from bert.cudnn_check import trouble
from bert.heads import SPAN
from bert.kernels import ON_CUDNN, PLAIN
from bert.model import Bert, Tracing
from bert.ops import Dropout
from bert.ops_cudnn import attention_by
from bert.passes import MASKED_SCORE
from distributed.collectives import Collectives
from distributed.devices import Device
from distributed.run import Unwritten
from distributed.world import World
from tasks.bench.step import model_config, random_training
from tasks.runs.execute.attention import why_not_cudnn
from tasks.runs.execute.job import Job

LENGTHS = (24, 9, 1, 0)
SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 16, "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
# a global layer, and one of windows of 2 places on each side, in blocks in rows from 16 places on
MODERN = SIZES | {"model_type": "modernbert", "local_attention": 4, "global_attn_every_n_layers": 2}
MODERN |= {"pad_token_id": 0}
KEY = [1, 2]


def with_gradients(attention, heads, mask, d_context):
    with tf.GradientTape() as tape:
        tape.watch(heads)
        context = attention(heads, mask)
    return [context, *tape.gradient(context, heads, d_context)]


def plain(heads, mask):
    return ops.attention(heads, mask, None, Dropout(0.0, None, 0), None)


def padding():
    """[B, 1, 1, T]."""
    return ((1 - tf.sequence_mask(LENGTHS, dtype=tf.float32)) * MASKED_SCORE)[:, None, None]


def window():
    """[B, 1, 10, T]: ten queries in the middle, and the keys around them."""
    far = np.abs(np.arange(7, 17)[:, None] - np.arange(24)) > 3
    return padding() + tf.constant(far, tf.float32) * MASKED_SCORE


@pytest.mark.parametrize("mask", [padding, window])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-3), ("bfloat16", 2e-2), ("float16", 3e-3)]
)
def test_values_and_gradients_are_those_of_the_plain_operations(mask, dtype, tolerance):
    """In every place, also of empty rows; a score of float32 near -10,000 has an error of 1e-3."""
    mask = mask()
    length = 24 if mask.shape[2] == 1 else mask.shape[2]
    draw = np.random.default_rng(0).standard_normal
    heads = [tf.constant(draw([4, 2, n, 8], np.float32)) for n in (length, 24, 24)]
    d_context = tf.constant(draw(heads[0].shape, np.float32))
    expected = with_gradients(plain, heads, mask, d_context)
    cast = [tf.cast(x, dtype) for x in (mask, d_context)]
    fused = partial(attention_by, ByHand())
    found = with_gradients(fused, [tf.cast(x, dtype) for x in heads], *cast)
    for ours, right in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        with_tokens = slice(0, 3) if dtype != "float32" else slice(None)
        ours, right = (tf.cast(x, tf.float32)[with_tokens] for x in (ours, right))
        assert np.all(np.isfinite(ours))
        assert float(tf.norm(ours - right) / tf.norm(right)) < tolerance


@pytest.mark.parametrize("sizes", [SIZES, MODERN], ids=["bert", "modernbert"])
def test_a_model_with_it_has_the_scores_and_gradients_of_one_without(sizes):
    """Rows of different lengths and an empty one, in fixed groups."""
    model = Bert(config_of(sizes), SPAN, seed=1)
    batch = batch_of("span", random_rows([40, 9, 23], 50), "compiled")
    has_token = batch["attention_mask"][:, None]
    variables = [variable.value for variable in model.trainable_variables]

    def scores_and_gradients(kernels):
        with tf.GradientTape() as tape:
            scores = model(batch, dropout_key=KEY, tracing=Tracing(in_xla=kernels)) * has_token
            loss = tf.reduce_sum(scores**2)
        return [scores, *map(tf.convert_to_tensor, tape.gradient(loss, variables))]

    by_hand = SimpleNamespace(**vars(ops_cudnn))
    by_hand.attention = lambda heads, mask, *_: attention_by(ByHand(), heads, mask)
    pairs = zip(scores_and_gradients(by_hand), scores_and_gradients(PLAIN), strict=True)
    differences, sizes = zip(*((tf.norm(a - b), tf.norm(b)) for a, b in pairs), strict=True)
    assert differences[0] < 1e-5 * sizes[0]
    assert tf.norm(differences[1:]) < 1e-5 * tf.norm(sizes[1:])


def calls_of(sizes, precision):
    """The custom calls in the graph of a gradient as on a GPU, which nothing compiles."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        model = Bert(config_of(sizes), SPAN)
    finally:
        keras.config.set_dtype_policy(before)
    batch = batch_of("span", random_rows([40, 9, 23], 50), "compiled")
    variables = [variable.value for variable in model.trainable_variables]

    @partial(tf.function, jit_compile=True, autograph=False)
    def gradients(key):
        with tf.GradientTape() as tape:
            scores = model(batch, dropout_key=key, tracing=Tracing(in_xla=ON_CUDNN))
        return tape.gradient(scores, variables)

    graph = gradients.get_concrete_function(tf.constant(KEY)).graph
    return [each for each in graph.get_operations() if each.type == "XlaCustomCallV2"]


@pytest.mark.parametrize(
    ("sizes", "precision", "names"),
    [
        # a group of one row of 40 places, and one of three rows of 24, of which one is empty
        (SIZES, "mixed_bfloat16", {"Softmax": 4, "SoftmaxBackward": 4}),
        (
            MODERN,
            "mixed_float16",
            {"Softmax": 2, "SoftmaxBackward": 2}
            | {"ScaleBiasSoftmax": 2, "ScaleBiasSoftmaxBackward": 2},
        ),
    ],
    ids=["bert", "modernbert"],
)
def test_what_the_graph_tells_xla_to_call(sizes, precision, names):
    """The operands and results of each, in the order of XLA's cudnn_custom_call_compiler.cc; the
    configuration's products multiply shapes that fit."""
    calls = calls_of(sizes, precision)
    found = [call.get_attr("call_target_name").decode() for call in calls]
    prefix = "__cudnn$fmha"
    assert {name: found.count(prefix + name) for name in names} == names
    assert len(calls) == sum(names.values())
    dtype = tf.bfloat16 if "bfloat16" in precision else tf.float16
    for name, call in zip(found, calls, strict=True):
        config = json.loads(call.get_attr("backend_config"))["cudnn_fmha_backend_config"]
        shapes = [x.shape.as_list() for x in call.inputs]
        query, key, value = shapes[:3]
        rows, length, num_heads, size = query
        num_keys = key[1]
        matrix = [rows, num_heads, length, num_keys]
        lengths = [] if "Bias" in name else [[rows], [rows]]
        bias = [[rows, 1, length, num_keys]] if "Bias" in name else []
        sums = [rows, num_heads, length]
        of_result = [rows, num_heads, length, size], [rows, num_heads, num_keys, size]
        # the names of the factors of each product, and its result
        shape = {"q": query, "k": key, "v": value, "matrix": matrix, "o": query}
        if name.endswith("Backward"):
            assert shapes[3:] == [sums, query, *bias, query, *lengths]
            results = [of_result[0], of_result[1], of_result[1], [0]]
            products = {
                "bmm1_grad_gemm1": ("matrix", "q", of_result[1]),
                "bmm1_grad_gemm2": ("matrix", "k", of_result[0]),
                "bmm2_grad_gemm1": ("matrix", "o", of_result[1]),
                "bmm2_grad_gemm2": ("o", "v", matrix),
            }
        else:
            assert shapes[3:] == [*bias, *lengths]
            results = [of_result[0], sums, [0]]
            products = {
                "bmm1": ("q", "k", matrix),
                "bmm2": ("matrix", "v", of_result[0]),
            }
        assert [x.shape.as_list() for x in call.outputs] == results
        assert {x.dtype for x in call.inputs[:3]} == {dtype} == {call.outputs[0].dtype}
        assert {x.dtype for x in call.inputs if x.shape.rank == 1} <= {tf.int32}
        assert config["mask_type"] == ("NO_MASK" if bias else "PADDING")
        assert config["fmha_scale"] == size**-0.5
        assert config["dropout_rate"] == config["sliding_window_length"] == 0
        of_matrix = config["intermediate_tensor_shape"]
        assert list(map(int, of_matrix["dimensions"])) == matrix
        assert of_matrix["element_type"] == ("BF16" if dtype == tf.bfloat16 else "F16")
        for product, (left, right, result) in products.items():
            numbers = config[f"{product}_dot_dimension_numbers"]
            assert dot_shape(numbers, shape[left], shape[right]) == result
    assert any("Bias" in name for name in found) == (sizes is MODERN)


def dot_shape(numbers, left, right):
    """The shape of StableHLO's dot_general: the batch, what is left of the left, of the right."""
    free, batches, contracted = [], [], []
    for side, shape in (("lhs", left), ("rhs", right)):
        of_batch = [int(number) for number in numbers[f"{side}_batch_dimensions"]]
        summed = [int(number) for number in numbers[f"{side}_contracting_dimensions"]]
        batches.append([shape[number] for number in of_batch])
        contracted.append([shape[number] for number in summed])
        free += [size for place, size in enumerate(shape) if place not in [*of_batch, *summed]]
    assert batches[0] == batches[1]
    assert contracted[0] == contracted[1]
    return batches[0] + free


# -- whether it is used ----------------------------------------------------------------------------


class Wrong(ByHand):
    """Gradients without the softmax's sums."""

    def backward(self, heads, seen, sums, context, d_context):
        return super().backward(heads, seen, sums, 0.0 * context, d_context)


class Undefined(ByHand):
    """A context that is never written."""

    def forward(self, heads, seen):
        context, sums = super().forward(heads, seen)
        return context * float("nan"), sums


@pytest.mark.slow
def test_the_check_finds_what_is_wrong_and_nothing_else():
    assert trouble(2, 8, "bfloat16", ByHand()) == ""
    assert trouble(2, 8, "bfloat16", Wrong()).startswith("whole rows: Q or its gradient differs by")
    assert "context or its gradient differs by nan" in trouble(2, 8, "bfloat16", Undefined())


def test_the_check_says_what_xla_says():
    """XLA for CPUs knows no such operation."""
    assert "custom call to __cudnn$fmhaSoftmax for Host" in trouble(2, 8, "bfloat16")


GPU = World(device=Device("gpu"))


@pytest.mark.parametrize(
    ("world", "is_compiled", "size", "dropout", "precision", "reason"),
    [
        (World(), True, "tiny", 0.0, "mixed_bfloat16", "XLA compiles for a GPU"),
        (GPU, False, "tiny", 0.0, "mixed_bfloat16", "XLA compiles for a GPU"),
        (GPU, True, "tiny", 0.1, "mixed_bfloat16", "--attention_probs_dropout_prob 0"),
        (GPU, True, "tiny", 0.0, "float32", "--precision bf16 or fp16"),
        (GPU, True, "tiny", 0.0, "mixed_float16", "on rank 0 it does not compute what it should"),
        (GPU, True, "modernbert-base", None, "float32", "--precision bf16 or fp16"),
    ],
)
def test_why_a_training_keeps_its_own(world, is_compiled, size, dropout, precision, reason):
    others = {} if dropout is None else {"attention_probs_dropout_prob": dropout}
    config = model_config(size, **others)
    model = SimpleNamespace(config=config, compute_dtype=keras.DTypePolicy(precision).compute_dtype)
    assert reason in why_not_cudnn(model, world, is_compiled)


def test_a_training_whose_check_fails_says_so_in_a_line_and_keeps_its_own():
    """On a machine that takes its CPU for a GPU."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        values = {"global_batch_size": 2, "num_train_steps": 1, "attention": "cudnn", "xla": "on"}
        job = Job(GPU, Collectives(), Unwritten())
        training = random_training(config_of(SIZES), 16, values, job)
    finally:
        keras.config.set_dtype_policy(before)
    start = "note: --attention cudnn changes nothing: on rank 0 it does not compute what it should"
    assert training.attention_note.startswith(start)
    assert "\n" not in training.attention_note
