"""Traces the programs' functions as on a GPU and lists the operations for which GPUs have no kernel, and those for
which the host waits: int32, which TensorFlow computes on the host, read from the GPU's memory.

Kernels are those of TensorFlow's registry: run it where TensorFlow's GPU wheel is installed; no GPU is needed.
`PYTHONPATH=.:tests python tests/soak/gpu/gpu_kernels.py [PART OF A NAME]`; exit status 1 if anything is listed.
"""

import contextlib
import functools
import itertools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import conftest  # noqa: F401  sets the environment
import tensorflow as tf
from harness import texts
from harness.classifier_runs import write_rows
from harness.squad_files import make_entries, write_squad
from tensorflow.python.framework import kernels
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from distributed.collectives.local import LocalCollectives
from distributed.devices import Device
from distributed.run import Run
from distributed.world import World
from tasks import flags, job
from tasks.classifier import program as classifier
from tasks.corpus.__main__ import main as corpus
from tasks.pretraining import program as pretraining
from tasks.squad import program as squad

HOST, GPU, XLA = "host", "GPU", "XLA_GPU_JIT"
CALLS = ("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "While", "StatelessWhile", "Case")
ARGUMENTS = ("Placeholder", "_Arg", "NoOp")


# -- graphs -------------------------------------------------------------------------------------------------------


@dataclass
class Findings:
    """Counts of (operation, dtypes) without a kernel, and of those that the host waits for; once in each loop."""

    no_kernel: Counter = field(default_factory=Counter)
    waits: Counter = field(default_factory=Counter)

    def add(self, graph: tf.Graph, in_xla: bool = False) -> None:
        """Looks at a graph, and at the functions that it calls."""
        places: dict[str, list[str]] = {}  # operation -> the memory of each output
        for operation in graph.get_operations():
            inputs, outputs = (
                [of_argument(x.dtype) for x in part] for part in (operation.inputs, operation.outputs)
            )
            if operation.type in CALLS:
                if self._add_called(operation, in_xla):
                    inputs, outputs = [GPU] * len(inputs), [GPU] * len(outputs)
            elif operation.type not in ARGUMENTS:
                kernel = kernel_of(operation, (XLA,) if in_xla else ("GPU", "DEFAULT"))
                if "CPU" in operation.device or kernel is None:
                    inputs, outputs = [HOST] * len(inputs), [HOST] * len(outputs)
                    if "CPU" not in operation.device or in_xla:
                        self.no_kernel[operation.type, dtypes(operation)] += 1
                elif not in_xla:
                    on_host = set(kernel.host_memory_arg)
                    inputs = memory_of(operation, operation.op_def.input_arg, on_host)
                    outputs = memory_of(operation, operation.op_def.output_arg, on_host)
            places[operation.name] = outputs
            if not in_xla:
                for tensor, here in zip(operation.inputs, inputs, strict=True):
                    there = places[tensor.op.name][tensor.value_index]
                    if (here, there) == (HOST, GPU) and tensor.dtype != tf.resource:
                        self.waits[tensor.op.type, f"{tensor.dtype.name} for {operation.type}"] += 1
        for result in getattr(graph, "outputs", []) if not in_xla else []:
            if of_argument(result.dtype) == HOST and places[result.op.name][result.value_index] == GPU:
                self.waits[result.op.type, f"{result.dtype.name} as a result"] += 1

    def _add_called(self, operation: tf.Operation, in_xla: bool) -> bool:
        """Looks at the functions that an operation calls; whether XLA compiles them."""
        compiles = in_xla
        for value in operation.node_def.attr.values():
            for name in filter(None, (value.func.name, *(function.name for function in value.list.func))):
                called = operation.graph._get_function(name)
                compiles = in_xla or "_XlaMustCompile" in called.definition.attr
                self.add(called.graph or function_def_to_graph(called.definition), compiles)
        return compiles


def of_argument(dtype: tf.DType) -> str:
    """The memory in which functions on GPUs take and give it."""
    return HOST if dtype.base_dtype in (tf.int32, tf.resource) else GPU


def memory_of(operation: tf.Operation, arguments, on_host: set[str]) -> list[str]:
    """The memory of each tensor: an argument of the definition may be a list of tensors."""
    places: list[str] = []
    for argument in arguments:
        count = operation.get_attr(argument.number_attr) if argument.number_attr else 1
        count = len(operation.get_attr(argument.type_list_attr)) if argument.type_list_attr else count
        places += [HOST if argument.name in on_host else GPU] * count
    return places


def dtypes(operation: tf.Operation) -> str:
    kinds = [attr.type for attr in operation.node_def.attr.values() if attr.type]
    kinds += itertools.chain(*(attr.list.type for attr in operation.node_def.attr.values()))
    return ", ".join(sorted({tf.as_dtype(kind).name for kind in kinds}))


@functools.cache
def registered(name: str) -> list:
    with tf.init_scope():  # XLA registers its kernels, for all devices, when it compiles for the first time
        tf.function(lambda x: x + 1, jit_compile=True, autograph=False)(1.0)
    return list(kernels.get_registered_kernels_for_op(name).kernel)


def kernel_of(operation: tf.Operation, devices: tuple[str, ...]):
    """The operation's kernel for its dtypes on the first device that has one; None if none has."""
    attrs = operation.node_def.attr
    for device, kernel in itertools.product(devices, registered(operation.type)):
        if kernel.device_type == device and all(
            not attrs[each.name].type or attrs[each.name].type in each.allowed_values.list.type
            for each in kernel.constraint
        ):
            return kernel
    return None


@contextlib.contextmanager
def traced_only() -> Iterator[list]:
    """Collects the outermost tf.functions that are called. Those whose results have known shapes return ones."""
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


# -- programs -----------------------------------------------------------------------------------------------------


def write_data(folder: Path) -> None:
    texts.write_model(folder, num_layers=1)
    config = json.loads((folder / "bert_config.json").read_text())
    config |= {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 256}  # wide: parts are compiled
    config |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    (folder / "bert_config.json").write_text(json.dumps(config))
    write_squad(folder / "squad.json", make_entries(60, 1))
    examples = texts.make_examples(60, 1)
    write_rows(folder / "labels.tsv", ["a", "b", "label"], [(e.first, e.second, e.kind) for e in examples])
    texts.write_lines(folder / "text.txt", *(line for e in examples for line in (e.first, e.second, "")))
    files = (
        f"--input_file={folder}/text.txt",
        f"--vocab_file={folder}/vocab.txt",
        f"--output_dir={folder}/shards",
    )
    corpus(["build", *files, "--max_seq_length=32", "--max_predictions_per_seq=5", "--num_workers=1"])


def cases(folder: Path) -> Iterator[tuple[str, type, Callable, list[str]]]:
    """Name, configuration, function and flags of each case."""
    train = [f"--bert_config_file={folder}/bert_config.json", "--do_train", "--max_seq_length=32"]
    train += ["--num_train_steps=1", "--num_warmup_steps=0", "--train_batch_size=8"]
    words = f"--vocab_file={folder}/vocab.txt"
    spans = [words, f"--train_file={folder}/squad.json", f"--predict_file={folder}/squad.json", "--do_predict"]
    labels = [words, f"--train_file={folder}/labels.tsv", f"--dev_file={folder}/labels.tsv", "--do_eval"]
    labels += ["--text_column=a", "--text_pair_column=b", "--label_column=label"]
    shards = [f"--input_file={folder}/shards/*.arrow", "--do_eval"]
    programs = [
        ("bert-squad", squad.SquadConfig, squad.run_squad, [*spans, "--max_query_length=16", "--doc_stride=12"]),
        ("bert-classifier", classifier.ClassifierConfig, classifier.run_classifier, labels),
        ("bert-pretraining", pretraining.PretrainingConfig, pretraining.run_pretraining, shards),
    ]
    variants = [[f"--precision={bits}"] for bits in ("fp32", "bf16", "fp16")]
    variants += [["--optimizer=lamb"], ["--recompute"], ["--gradient_accumulation_steps=2"]]
    for (name, config_class, function, argv), variant, xla in itertools.product(programs, variants, ("off", "on")):
        more = [*variant, f"--xla={xla}"]
        if name == "bert-squad" or variant == ["--precision=fp16"]:  # only the loss differs
            yield " ".join((name, *more)), config_class, function, [*argv, *train, *more]


def main(only: str = "") -> int:
    """The exit status."""
    num_functions = num_bad = 0
    with tempfile.TemporaryDirectory() as path, contextlib.chdir(path):
        os.environ["RINGBERT_CACHE"] = path
        write_data(Path(path))
        gpus, visible = [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")], tf.config.get_visible_devices
        for number, (name, config_class, function, argv) in enumerate(cases(Path(path))):
            if only not in name:
                continue
            config = flags.parse(config_class, [*argv, f"--output_dir={path}/{number}"], prog=name)
            job.set_precision(config.machine.precision)
            as_with_gpu = mock.patch.object(
                tf.config, "get_visible_devices", lambda k: gpus if k == "GPU" else visible(k)
            )
            with as_with_gpu, World(device=Device("gpu"), program=name) as world, traced_only() as functions:
                run = Run.of(config.output_dir, world)
                function(config, job.Job(world, LocalCollectives(), run))
                run.close()
            for traced in functions:
                findings = Findings()
                findings.add(traced.graph, "_XlaMustCompile" in traced.function_def.attr)
                num_functions, num_bad = num_functions + 1, num_bad + bool(findings.no_kernel or findings.waits)
                for title in ("no_kernel", "waits"):
                    for (operation, what), count in getattr(findings, title).most_common():
                        print(f"{name}: {title}: {count} {operation}, {what}", flush=True)
    print(f"{num_functions} functions, {num_bad} of them not for GPUs")
    return int(num_bad > 0 or num_functions == 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
