"""What runs on GPUs, as far as it can be known without one: kernels for every operation, bytes and
FLOP.

As a program it traces the steps and predictions of all tasks as on a GPU, and lists operations for
which TensorFlow's registry has no kernel on GPUs; it needs the GPU wheel, and no GPU. Exit status 1
if any is listed: `PYTHONPATH=.:tests python tests/soak/gpu/test_gpu_kernels.py`.
"""

import contextlib
import functools
import importlib.metadata
import itertools
import sys
from collections import Counter
from unittest import mock

import conftest  # noqa: F401  sets the environment
import pytest
import tensorflow as tf
from harness.batches import TASKS, batch_of, random_rows
from harness.jobs import install, shell
from harness.mpi import ENVIRONMENT
from tensorflow.python.framework import kernels
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from benchmarks import gpu_roofline
from bert.configuration import BertConfig
from bert.heads import HEADS
from bert.model import COMPILED_WIDTH, Bert, Tracing
from bert.optimizers.choose import make_optimizer
from bert.optimizers.rate import RateSchedule
from distributed.clock import StepClock
from distributed.collectives import Collectives
from distributed.devices import Device
from distributed.gradient import LossGradient, traced_once
from distributed.optimizer import AllreduceOptimizer
from distributed.step import SplitStep
from distributed.world import World
from tasks.runs.execute import job

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=COMPILED_WIDTH,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=256,
)
CALLS = (
    "PartitionedCall",
    "StatefulPartitionedCall",
    "If",
    "StatelessIf",
    "While",
    "StatelessWhile",
    "Case",
)
ARGUMENTS = ("Placeholder", "_Arg", "NoOp")


def without_kernel(graph):
    """Counts of "operation, dtypes", in a graph and in the functions that it calls; once in each
    loop. XLA says itself what it cannot compile."""
    found = Counter()
    for operation in graph.get_operations():
        if operation.type in CALLS:
            for value in operation.node_def.attr.values():
                for name in filter(
                    None, (value.func.name, *(function.name for function in value.list.func))
                ):
                    called = operation.graph._get_function(name)
                    if "_XlaMustCompile" not in called.definition.attr:
                        found += without_kernel(
                            called.graph or function_def_to_graph(called.definition)
                        )
        elif operation.type not in ARGUMENTS and not has_kernel(operation):
            kinds = {tensor.dtype.name for tensor in (*operation.inputs, *operation.outputs)}
            found[f"{operation.type}, {', '.join(sorted(kinds))}"] += 1
    return found


@functools.cache
def registered(name):
    return list(kernels.get_registered_kernels_for_op(name).kernel)


def has_kernel(operation):
    """Whether a GPU has a kernel for the operation's dtypes, or the operation is the host's."""
    attrs = operation.node_def.attr
    return "CPU" in operation.device or any(
        kernel.device_type in ("GPU", "DEFAULT")
        and all(
            attrs[each.name].type in (0, *each.allowed_values.list.type)
            for each in kernel.constraint
        )
        for kernel in registered(operation.type)
    )


@contextlib.contextmanager
def traced_only():
    """Collects the outermost tf.functions that are called. Those whose results have known shapes
    return ones."""
    kind, concrete_functions = type(tf.function(lambda: 0)), []
    call = kind.__call__

    def trace(function, *args, **kwargs):
        if tf.inside_function():
            return call(function, *args, **kwargs)
        concrete = function.get_concrete_function(*args, **kwargs)
        if not any(concrete is other for other in concrete_functions):
            concrete_functions.append(concrete)
        results = tf.nest.flatten(concrete.structured_outputs)
        if any(not result.shape.is_fully_defined() for result in results):
            return call(function, *args, **kwargs)
        ones = [tf.ones(result.shape, result.dtype) for result in results]
        return tf.nest.pack_sequence_as(concrete.structured_outputs, ones)

    with mock.patch.object(kind, "__call__", trace):
        yield concrete_functions


def take_step(head, precision, optimizer_name, recomputes):
    """A step of two micro-batches, and a prediction."""
    job.set_precision(precision)
    model = Bert(CONFIG, HEADS[head])
    task = TASKS[head]
    batch = batch_of(head, random_rows([60, 9, 30], 50), "by length")
    tracing = Tracing(recomputes=recomputes)
    optimizer = AllreduceOptimizer(
        make_optimizer(optimizer_name, RateSchedule(1e-4, 2, 0)),
        model.trainable_variables,
        World(device=Device("gpu")),
        Collectives(),
        scales_loss=precision == "fp16",
    )

    def loss(batch, key):
        return task.loss(model(batch, dropout_key=key, tracing=tracing), batch)

    variables = model.trainable_variables
    gradient = LossGradient(loss, task.weights, task.terms, variables, traced_once)
    SplitStep(gradient, optimizer).take([batch, batch], 1, (), StepClock(1))
    traced_once(model)(batch)


def main():
    """The exit status."""
    # It once cost the attention of every layer a way to the host and back.
    split = tf.function(lambda x: tf.split(x, [1, 2])).get_concrete_function(
        tf.TensorSpec([3], tf.int8)
    )
    assert [name[:6] for name in without_kernel(split.graph)] == ["SplitV"]
    found = Counter()
    number = 0
    gpus = [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]
    visible = tf.config.get_visible_devices
    as_with_gpu = {"get_visible_devices": lambda kind: gpus if kind == "GPU" else visible(kind)}
    variants = [(bits, "adamw", False) for bits in job.POLICIES]
    variants += [("fp32", "lamb", False), ("fp32", "adamw", True)]
    for head, variant in itertools.product(TASKS, variants):
        with mock.patch.multiple(tf.config, **as_with_gpu), traced_only() as functions:
            take_step(head, *variant)
        for traced in functions:
            if "_XlaMustCompile" not in traced.function_def.attr:
                number += 1
                found.update(
                    {
                        f"{head} {variant}: {what}": n
                        for what, n in without_kernel(traced.graph).items()
                    }
                )
    print(*(f"{count} {what}" for what, count in found.items()), sep="\n")
    print(f"{number} functions, {len(found)} operations without a kernel on GPUs")
    return int(bool(found) or number == 0)


@pytest.mark.timeout(3600)
def test_gpus_have_a_kernel_for_every_operation(tmp_path):
    """With TensorFlow's GPU wheel, without CUDA, 2 GB, in a folder that goes before the installed
    packages."""
    package = importlib.metadata.packages_distributions()["tensorflow"][0]
    wheel = f"tensorflow=={importlib.metadata.version(package)}"
    install("--no-deps", "--no-cache-dir", wheel, into=tmp_path)
    path = f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"
    done = shell(sys.executable, __file__, PYTHONPATH=path, wait_s=1500)
    assert done.stdout.splitlines()[-1].endswith(
        " functions, 0 operations without a kernel on GPUs"
    )


def test_bytes_and_flop_of_compiled_code(goldens):
    """`goldens/roofline.hlo` is what XLA made for an H200 (JAX 0.10.2, `benchmarks/jax_compile.py`)
    of

    y = x @ w                    bfloat16 [64, 128] by [128, 256], in four parts that are summed by
    the next kernel z = tanh(y + b)              float32 [64, 256] z[:, :64] * 2, z.sum(0),
    table[ids] + 1, with a table [1000, 32] and 64 ids
    """
    parts = 4 * 64 * 256 * 4
    found = gpu_roofline.kernels((goldens / "roofline.hlo").read_text())
    assert {kernel.name: (kernel.bytes_moved, kernel.flops) for kernel in found} == {
        "gemm_fusion_dot": (64 * 128 * 2 + 128 * 256 * 2 + parts, 2 * 64 * 128 * 256),
        "loop_tanh_fusion": (parts + 256 * 4 + 64 * 256 * 4, 0),  # it sums the parts
        "loop_convert_fusion": (64 * 64 * 4 + 64 * 64 * 2, 0),  # only the slice is read
        "input_reduce_fusion": (64 * 256 * 4 + 256 * 4, 0),
        # 64 rows of the table, and the ids
        "loop_add_fusion": (64 * 32 * 4 + 64 * 4 + 64 * 32 * 4, 0),
    }


LOOPS = """HloModule loops

%turn (state: f32[8,8]) -> f32[8,8] {
  %state = f32[8,8]{1,0} parameter(0)
  ROOT %dot = f32[8,8]{1,0} dot(%state, %state), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0} parameter(0)
  %first = f32[8,8]{1,0} while(%x), body=%turn, backend_config={"known_trip_count":{"n":"16"}}
  ROOT %second = f32[8,8]{1,0} while(%first), body=%turn
}
"""


def test_loops_count_as_often_as_they_turn():
    """The second is like a gradient's, whose number of turns XLA does not know."""
    found = gpu_roofline.kernels(LOOPS)
    assert [kernel.flops for kernel in found] == [2 * 8**3] * 32


ATTENTION = """HloModule attention

ENTRY %main (q: bf16[2,8,3,4], k: bf16[2,6,3,4]) -> f32[] {
  %q = bf16[2,8,3,4]{3,2,1,0} parameter(0)
  %k = bf16[2,6,3,4]{3,2,1,0} parameter(1)
  %forward = (bf16[2,3,8,4]{3,2,1,0}, f32[2,3,8]{2,1,0}, u8[0]{0}) custom-call(%q, %k, %k), custom_call_target="__cudnn$fmhaSoftmax"
  %o = bf16[2,3,8,4]{3,2,1,0} get-tuple-element(%forward), index=0
  %sums = f32[2,3,8]{2,1,0} get-tuple-element(%forward), index=1
  ROOT %backward = (bf16[2,3,8,4]{3,2,1,0}, bf16[2,3,6,4]{3,2,1,0}, bf16[2,3,6,4]{3,2,1,0}, u8[0]{0}) custom-call(%q, %k, %k, %sums, %q, %q), custom_call_target="__cudnn$fmhaSoftmaxBackward"
}
"""  # noqa: E501 (a line of HLO is one line)


def test_cudnns_attention_is_two_products_and_five():
    """Of 2 x 3 matrices of 8 queries by 6 keys, in heads of 4; it reads and writes its arrays."""
    product = 2 * 2 * 3 * 8 * 6 * 4
    query, key, sums = 2 * 2 * 8 * 3 * 4, 2 * 2 * 6 * 3 * 4, 4 * 2 * 3 * 8
    found = [(each.kind, each.flops, each.bytes_moved) for each in gpu_roofline.kernels(ATTENTION)]
    assert found == [
        ("product", 2 * product, 2 * query + 2 * key + sums),
        ("product", 5 * product, 4 * query + 4 * key + sums),
    ]


if __name__ == "__main__":
    sys.exit(main())
