"""Compiles a training step for an NVIDIA H200 on a machine without a GPU: kernels, memory and a
predicted time.

    python -m benchmarks.gpu_compile --jax_python JAX/bin/python --size base --batch_size 32
      --precision bf16

JAX is the folder of an environment with `jax[cuda12]` (5.4 GB); its XLA compiles what TensorFlow
exports here as StableHLO, with the branches for GPUs: the gradient of bert-squad's loss, clipping
and the update. Without JAX it only exports; `benchmarks/jax_step.py` runs the exported step on a
GPU, without TensorFlow. TensorFlow has another version of XLA, and without a GPU none tries out
which kernel of a product is fastest, so TensorFlow's code may differ. `benchmarks/gpu_roofline.py`
says how the time is predicted; it also reads HLO that is there already: `python -m
benchmarks.gpu_roofline step.hlo`.
"""

import argparse
import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from benchmarks.gpu_roofline import MEMORY_BYTES, predict
from bert import ops
from bert.batch import Layouts
from bert.heads import SPAN
from bert.kernels import ON_CUDNN, ON_GPU
from bert.model import Bert, Stage, Tracing, no_stage
from bert.optimizers.adamw import AdamWeightDecay
from bert.sizes import SIZES
from ringbase.settings import made
from tasks.bench.settings import LoadSettings
from tasks.bench.step import config_of, random_rows
from tasks.runs.execute.job import POLICIES, set_precision
from tasks.squad.settings import WindowSettings
from tasks.squad.task import SpanTask

FOLDER = Path(__file__).resolve().parent
KERNELS = {"own": ON_GPU, "cudnn": ON_CUDNN}
# TensorFlow writes variables through this operation, which JAX does not parse. A reshape to the
# same shape costs nothing.
# In a module that StableHLO finds fault with, the code has another form.
COPY = re.compile(r'"?mhlo\.copy"?[ (](%[^\s)]+)\)? : \(?(tensor<[^>]*>)\)?(?: -> tensor<[^>]*>)?')


class Parts(NamedTuple):
    """What a step is made of."""

    task: SpanTask
    variables: list[keras.Variable]  # the model's
    optimizer: AdamWeightDecay
    # the loss sum of a batch with a dropout key, and what stands before each layer
    loss: Callable[[Any, tf.Tensor, Stage], Mapping[str, tf.Tensor]]
    names: list[str]  # of the variables
    num_rows: int


# A step of a batch with a dropout key.
Step = Callable[[Any, tf.Tensor], list[tf.Tensor]]


def alone(parts: Parts) -> Step:
    """The step of one rank, which gives the loss and the norm of its gradient."""

    def step(batch: Any, key: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = parts.loss(batch, key, no_stage)["loss"] / parts.num_rows
        gradients = tape.gradient(loss, [variable.value for variable in parts.variables])
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)
        rate = parts.optimizer.learning_rate
        parts.optimizer.update_scaled(gradients, 1.0 / tf.maximum(norm, 1.0), rate)
        return [loss, norm]

    return step


def exported(
    load: LoadSettings, step_of: Callable[[Parts], Step] = alone
) -> tuple[str, list[dict[str, Any]]]:
    """A step as StableHLO, and its arguments in order: those of the batch with their values,
    variables with mean and standard deviation."""
    set_precision(load.machine.precision)
    # as on a GPU
    tf.config.experimental.enable_tensor_float_32_execution(load.machine.precision != "fp32")
    config = config_of(load)
    tracing = Tracing(in_xla=KERNELS[load.step.attention])
    count, length = load.batch_size, load.seq_length
    rows = random_rows(count, length, config.vocab_size).take(np.arange(count))
    task = SpanTask(WindowSettings(max_seq_length=length, max_query_length=1))
    batch = task.batch(rows, Layouts([], count, length))
    with mock.patch.object(ops, "on_cpu", return_value=False):
        ops._softmax_computes_in_float32.cache_clear()
        model, optimizer = Bert(config, SPAN), AdamWeightDecay(1e-4)
        tensors = model.named_tensors()
        variables = [*tensors.values()]
        optimizer.build(variables)

        def loss(batch: Any, key: tf.Tensor, stage: Stage) -> Mapping[str, tf.Tensor]:
            staged = replace(tracing, stage=stage)
            return task.loss(model(batch, dropout_key=key, tracing=staged), batch)

        step = step_of(Parts(task, variables, optimizer, loss, [*tensors], count))
        groups = {"groups": batch.pop("groups")}  # fixed, as the training passes them

        def of_arrays(arrays: dict[str, tf.Tensor], key: tf.Tensor) -> list[tf.Tensor]:
            return step(arrays | groups, key)

        arguments = tf.nest.map_structure(tf.constant, (batch, np.array([1, 2], np.int32)))
        compiled = tf.function(of_arrays, jit_compile=True, autograph=False)
        text = compiled.experimental_get_compiler_ir(*arguments)(stage="stablehlo")
        handles = compiled.get_concrete_function(*arguments).captured_inputs
    by_handle = {id(each.value.handle): each for each in [*variables, *optimizer.variables]}
    of_variables = [described(by_handle[id(handle)].numpy()) for handle in handles]
    arrays = [tensor.numpy() for tensor in tf.nest.flatten(arguments)]
    of_batch = [described(array) | {"values": array.ravel().tolist()} for array in arrays]
    return COPY.sub(r"stablehlo.reshape \1 : (\2) -> \2", text), [*of_batch, *of_variables]


def described(array: np.ndarray) -> dict[str, Any]:
    """An argument of the step, without its values: a model has too many of them for a file."""
    return {
        "shape": array.shape,
        "dtype": array.dtype.name,
        "mean": float(array.mean()),
        "deviation": float(array.std()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--jax_python", help="Python of an environment with jax[cuda12]; without it, only export"
    )
    parser.add_argument(
        "--size", choices=SIZES, default="base", help="published model size (default: base)"
    )
    parser.add_argument("--batch_size", type=int, default=32, help="rows (default: 32)")
    parser.add_argument("--seq_length", type=int, default=384, help="tokens per row (default: 384)")
    parser.add_argument("--precision", choices=POLICIES, default="bf16", help="(default: bf16)")
    parser.add_argument(
        "--attention",
        choices=KERNELS,
        default="own",
        help="cudnn: cuDNN's, for a model without dropout in its attention (default: own)",
    )
    parser.add_argument(
        "--attention_probs_dropout_prob", type=float, help="(default: the model's own)"
    )
    parser.add_argument(
        "--output_file", default="step", help="path of the files to write (default: step)"
    )
    options = parser.parse_args()
    path = Path(options.output_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = {
        "batch_size": options.batch_size,
        "seq_length": options.seq_length,
        "precision": options.precision,
        "attention": options.attention,
        "attention_probs_dropout_prob": options.attention_probs_dropout_prob,
    }
    load = made(LoadSettings, {"model_size": options.size, "xla": "on", **shape})
    text, arguments = exported(load)
    module = path.with_name(f"{path.name}.mlir")
    module.write_text(text)
    facts = {"rows": options.batch_size, "arguments": arguments}
    module.with_suffix(".json").write_text(json.dumps(facts))
    print(f"{module}: {len(text):,} characters")
    if not options.jax_python:
        return
    command = [
        options.jax_python,
        str(FOLDER / "jax_compile.py"),
        str(FOLDER / "h200.txtpb"),
        str(module),
    ]
    subprocess.run(command, check=True)
    memory = json.loads(module.with_suffix(".memory.json").read_text())
    whole = memory["arguments"] + memory["temporary"]  # TensorFlow writes variables in place
    print(
        f"compiled in {memory['seconds']:.0f} s; memory {whole / 1e9:.2f} of"
        f" {MEMORY_BYTES / 1e9:.0f} GB, {memory['temporary'] / 1e9:.2f} GB of it"
        f" temporary\n\n{predict(module.with_suffix('.hlo').read_text())}"
    )


if __name__ == "__main__":
    main()
