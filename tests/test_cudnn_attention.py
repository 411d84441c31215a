"""Attention by cuDNN: its calls against JAX's, and what surrounds them against plain attention.

No GPU computes here. `interpreted` computes a call in TensorFlow as its configuration and NVIDIA's documentation
of scaled dot product attention say; wherever they promise nothing, it gives NaN.
"""

import json
import re
from pathlib import Path

import pytest
import tensorflow as tf
from models import KEY, error, wide_model
from transformers import BertConfig

from bert import cudnn_attention, ops
from bert.cudnn_attention import BACKWARD, FORWARD, CustomCall, attention
from bert.dropout import Dropout
from bert.inputs import MASKED_SCORE, row_lengths
from bert.packing import FixedGroups
from distributed.world import World
from ringbert.errors import InputError
from tasks.bench.step import StepConfig, bench_step
from tasks.squad.program import span_loss

JAX_CALLS = Path(__file__).parent / "goldens" / "cudnn_calls.hlo"  # made by scripts/jax_cudnn_calls.py


# -- the calls ----------------------------------------------------------------------------------------------------


def calls_of(hlo: str) -> dict[str, list[tuple]]:
    """For each target the results, the operands and the configuration of its calls, without names and metadata."""
    calls: dict[str, list[tuple]] = {FORWARD: [], BACKWARD: []}
    for line in hlo.splitlines():
        if not (target := re.search(r'custom_call_target="(__cudnn[^"]*)"', line)):
            continue
        results = re.search(r"= \((.*?)\) custom-call", line)
        operands = re.search(r"operand_layout_constraints=\{(.*?\})\}, ", line)
        version = re.search(r"api_version=(\w+)", line)
        assert results, line
        assert operands, line
        assert version, line
        config = json.loads(line[line.index("backend_config=") + len("backend_config=") :])
        calls[target[1]].append((results[1], operands[1], version[1], config))
    return calls


def hlo_of(function, *arguments) -> str:
    """What TensorFlow gives to XLA."""
    compiled = tf.function(function, jit_compile=True, autograph=False)
    return compiled.experimental_get_compiler_ir(*arguments)(stage="hlo")


def gradient_of_sum(query, key, value, lengths):
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        total = tf.reduce_sum(tf.cast(attention(query, key, value, lengths), tf.float32))
    return tape.gradient(total, [query, key, value])


def test_the_calls_are_those_of_jax():
    matrix, lengths = tf.zeros([4, 24, 12, 64], tf.bfloat16), tf.constant([24, 20, 3, 0])
    expected = calls_of(JAX_CALLS.read_text())
    assert [len(calls) for calls in expected.values()] == [1, 1]
    assert calls_of(hlo_of(gradient_of_sum, matrix, matrix, matrix, lengths)) == expected


def batch_of(lengths: list[list[int]], widths: list[int]):
    """Rows of these lengths in groups of these widths, with inputs and labels of a model for spans."""
    inside = tf.concat(
        [tf.reshape(tf.sequence_mask(part, width), [-1]) for part, width in zip(lengths, widths, strict=True)], 0
    )
    place = tf.concat([tf.tile(tf.range(w), [len(part)]) for part, w in zip(lengths, widths, strict=True)], 0)
    numbers = tf.range(inside.shape[0])
    real = [length for part in lengths for length in part]
    return {
        "input_ids": numbers * 7 % 50,
        "token_type_ids": tf.cast(place > 3, tf.int32),
        "position_ids": place,
        "example_ids": tf.cast(inside, tf.int32),
        "start_position": tf.constant([min(1, length) for length in real]),
        "end_position": tf.constant([max(length - 2, 0) for length in real]),
        "groups": FixedGroups(tuple((len(part), width) for part, width in zip(lengths, widths, strict=True))),
    }


def loss_and_gradients(model, batch):
    with tf.GradientTape() as tape:
        loss = span_loss(model(batch, dropout_key=KEY), batch)
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    return [loss, *map(tf.convert_to_tensor, gradients)]


def test_a_gradient_calls_cudnn_in_both_directions_for_each_layer_and_group():
    model = wide_model("mixed_bfloat16", num_hidden_layers=1, attention_probs_dropout_prob=0.0)
    model.calls_cudnn = True
    batch = batch_of([[24, 20], [8, 3, 0]], [24, 8])
    groups = batch.pop("groups")
    calls = calls_of(hlo_of(lambda batch: loss_and_gradients(model, batch | {"groups": groups}), batch))
    for target in (FORWARD, BACKWARD):
        configs = [config["cudnn_fmha_backend_config"] for *_, config in calls[target]]
        shapes = sorted(config["intermediate_tensor_shape"]["dimensions"] for config in configs)
        assert shapes == [["2", "4", "24", "24"], ["3", "4", "8", "8"]]
        for config in configs:
            assert config["intermediate_tensor_shape"]["element_type"] == "BF16"
            assert (config["fmha_scale"], config["mask_type"], config["dropout_rate"]) == (0.125, "PADDING", 0.0)


def test_a_pass_that_xla_does_not_compile_as_a_whole_calls_no_cudnn(monkeypatch):
    monkeypatch.setattr(cudnn_attention, "run", None)
    model = wide_model("mixed_bfloat16", num_hidden_layers=1, attention_probs_dropout_prob=0.0)
    model.calls_cudnn = True
    batch = batch_of([[24, 20]], [24])
    rows = {name: tf.reshape(batch[name], [2, 24]) for name in batch if name.endswith("_ids")}
    assert tf.reduce_all(tf.math.is_finite(model(rows)))


# -- what surrounds the calls -------------------------------------------------------------------------------------


def interpreted(call: CustomCall, operands) -> list[tf.Tensor]:
    """The results of a call. The statistics have the dtype of the matrices, so that float64 stays exact."""
    for described, operand in zip(call.operands, operands, strict=True):
        assert operand.shape == described.shape
        assert described.dtype in (operand.dtype, tf.float32)
    config = call.config["cudnn_fmha_backend_config"]
    assert config["mask_type"] == "PADDING"

    def product(name, left, right):
        numbers = config[f"{name}_dot_dimension_numbers"]
        sides = {
            side: [
                [int(dimension) for dimension in numbers[f"{side}_{kind}_dimensions"]]
                for kind in ("batch", "contracting")
            ]
            for side in ("lhs", "rhs")
        }
        left_letters, right_letters = list("abcd"), list("wxyz")
        for kind in (0, 1):
            for one, other in zip(sides["lhs"][kind], sides["rhs"][kind], strict=True):
                right_letters[other] = left_letters[one]
        common = [left_letters[dimension] for dimension in sides["lhs"][0]]
        free = [letter for letter in left_letters if letter not in right_letters]
        free += [letter for letter in right_letters if letter not in left_letters]
        joined = [f"{''.join(part)}" for part in (left_letters, right_letters, common + free)]
        return tf.einsum(f"{joined[0]},{joined[1]}->{joined[2]}", left, right)

    *tensors, query_lengths, key_lengths = operands
    tf.debugging.assert_positive([query_lengths, key_lengths])
    query, key, value = tensors[:3]
    length = query.shape[1]
    queries = tf.sequence_mask(query_lengths, length)[:, None, :, None]
    keys = tf.sequence_mask(key_lengths, length)[:, None, None, :]
    scores = tf.einsum("btnd,bsnd->bnts", query, key) * config["fmha_scale"]
    nan = tf.constant(float("nan"), query.dtype)
    if call.target == FORWARD:
        assert tf.reduce_all(product("bmm1", query, key) * config["fmha_scale"] == scores)
        masked = tf.where(keys, scores, tf.constant(float("-inf"), query.dtype))
        output = product("bmm2", tf.nn.softmax(masked), value)
        results = [tf.where(queries, output, nan), tf.where(queries[..., 0], tf.reduce_logsumexp(masked, -1), nan)]
    else:
        logs, d_output, output = tensors[3:]
        probs = tf.where(queries & keys, tf.exp(scores - logs[..., None]), tf.zeros([], query.dtype))
        sums = tf.einsum("btnd,btnd->bnt", d_output, output)[..., None]
        d_scores = probs * (product("bmm2_grad_gemm2", d_output, value) - sums) * config["fmha_scale"]
        inside = (queries, tf.transpose(keys, [0, 1, 3, 2]), tf.transpose(keys, [0, 1, 3, 2]))
        gradients = (
            product("bmm1_grad_gemm2", d_scores, key),
            product("bmm1_grad_gemm1", d_scores, query),
            product("bmm2_grad_gemm1", probs, d_output),
        )
        results = [tf.where(there, gradient, nan) for there, gradient in zip(inside, gradients, strict=True)]
    assert [tuple(result.shape) for result in results] == [described.shape for described in call.results]
    return results


@pytest.fixture
def without_gpu(monkeypatch):
    """`attention` computes here, in every dtype."""
    monkeypatch.setattr(cudnn_attention, "run", interpreted)
    for dtype, name in ((tf.float32, "F32"), (tf.float64, "F64")):
        monkeypatch.setitem(cudnn_attention.ELEMENT_TYPES, dtype, name)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(tf.float64, 1e-12), (tf.float32, 1e-5)],  # sums in another order: some units in the last place
)
def test_output_and_gradients_are_those_of_plain_attention(dtype, tolerance, without_gpu):
    lengths = tf.constant([24, 11, 1, 0])
    query, key, value, weights = (
        tf.random.stateless_normal([4, 24, 3, 16], [number, 0], dtype=dtype) for number in range(4)
    )
    inside = tf.sequence_mask(lengths, 24)
    weights = tf.where(inside[:, :, None, None], weights, tf.zeros([], dtype))  # no loss reads padding

    def plain(*tensors):
        mask = tf.cast(inside[:, None, :, None] != inside[:, None, None, :], dtype) * MASKED_SCORE
        by_head = (tf.transpose(tensor, [0, 2, 1, 3]) for tensor in tensors)
        context_BNTD = ops.attention(*by_head, mask, None, Dropout(0.0, None, 0))
        return tf.transpose(context_BNTD, [0, 2, 1, 3])

    results = []
    for function in (plain, lambda *tensors: attention(*tensors, lengths)):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            context = function(query, key, value)
        results.append([context, *tape.gradient(context, [query, key, value], weights)])
    (expected, *d_expected), (actual, *d_actual) = results
    padding = ~inside
    assert error(actual[inside], expected[inside]) < tolerance
    assert not tf.reduce_any(tf.boolean_mask(actual, padding) != 0)
    for one, other in zip(d_actual, d_expected, strict=True):
        assert error(one, other) < tolerance
        assert not tf.reduce_any(tf.boolean_mask(one, padding) != 0)


def test_loss_and_gradients_of_a_model_are_those_with_plain_attention(without_gpu):
    """So neither depends on what padding positions give, which differs."""
    model = wide_model("float32", attention_probs_dropout_prob=0.0)
    batch = batch_of([[24, 20], [8, 3, 0]], [24, 8])
    expected = loss_and_gradients(model, batch)
    model.calls_cudnn = True
    names = ["loss", *(variable.name for variable in model.trainable_variables)]
    for name, one, other in zip(names, loss_and_gradients(model, batch), expected, strict=True):
        if not name.endswith("key.bias"):  # it adds the same to all scores of a row: its gradient is only rounding
            assert error(one, other) < 1e-5, name


def test_several_examples_in_a_row_give_nan(without_gpu):
    example_ids = tf.constant([1, 1, 0, 1, 2, 2, 1, 1, 1])
    (lengths,) = row_lengths({"example_ids": example_ids, "groups": FixedGroups(((3, 3),))})
    assert lengths.numpy().tolist() == [2, -1, 3]
    matrix = tf.ones([3, 3, 1, 8])
    assert tf.math.is_nan(attention(matrix, matrix, matrix, lengths))[:, :, 0, 0].numpy().tolist() == [
        [False] * 3, [True] * 3, [False] * 3,
    ]  # fmt: skip


# -- the flag -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 0.1}, "attention_probs_dropout_prob must be 0 in the model's configuration, got 0.1"),
        ({"heads": 64}, "the head size must be a multiple of 8 up to 128, got 12"),
        ({"heads": 4}, "the head size must be a multiple of 8 up to 128, got 192"),
        ({"dtype": "float32"}, "the precision must be bf16 or fp16, got float32 (--precision)"),
        ({"capability": None}, "it needs an NVIDIA GPU"),
        ({"capability": (7, 5)}, "it needs a GPU of compute capability 8.0 or higher, got 7.5"),
        ({"xla": "off"}, "it needs --xla on, got off"),
        ({}, None),
    ],
)
def test_cudnn_is_refused_where_it_cannot_compute(changes, message, monkeypatch):
    case = {"rate": 0.0, "heads": 12, "dtype": "bfloat16", "capability": (9, 0), "xla": "auto"} | changes
    monkeypatch.setattr(cudnn_attention, "_compute_capability", lambda: case["capability"])
    config = BertConfig(attention_probs_dropout_prob=case["rate"], num_attention_heads=case["heads"])
    arguments = case["xla"], config, case["dtype"]
    for flag in ("auto", "plain"):
        assert not cudnn_attention.is_chosen(flag, *arguments)
    if message is None:
        assert cudnn_attention.is_chosen("cudnn", *arguments)
        return
    with pytest.raises(InputError, match=rf"^--attention cudnn: {re.escape(message)}$"):
        cudnn_attention.is_chosen("cudnn", *arguments)


@pytest.mark.usefixtures("mixed_bfloat16")  # which the run sets and does not reset
def test_a_run_with_the_flag_is_refused_here():
    load = {"model_size": "tiny", "batch_size": 2, "seq_length": 32, "attention": "cudnn", "precision": "bf16"}
    with pytest.raises(InputError, match=r"^--attention cudnn: attention_probs_dropout_prob must be 0"):
        bench_step(StepConfig(**load, device="cpu"), World())
