"""Traces the programs' functions as on a GPU and lists the operations for which GPUs have no kernel.

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
from collections.abc import Iterator
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

CALLS = ("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "While", "StatelessWhile", "Case")
ARGUMENTS = ("Placeholder", "_Arg", "NoOp")
PROGRAMS = {
    "bert-squad": (squad.SquadConfig, squad.run_squad),
    "bert-classifier": (classifier.ClassifierConfig, classifier.run_classifier),
    "bert-pretraining": (pretraining.PretrainingConfig, pretraining.run_pretraining),
}


def without_kernel(graph: tf.Graph, in_xla: bool) -> Counter:
    """Counts of "operation, dtypes", in a graph and in the functions that it calls; once in each loop."""
    found: Counter = Counter()
    for operation in graph.get_operations():
        if operation.type in CALLS:
            for value in operation.node_def.attr.values():
                for name in filter(None, (value.func.name, *(function.name for function in value.list.func))):
                    called = operation.graph._get_function(name)
                    compiles = in_xla or "_XlaMustCompile" in called.definition.attr
                    found += without_kernel(called.graph or function_def_to_graph(called.definition), compiles)
        elif operation.type not in ARGUMENTS and not has_kernel(operation, in_xla):
            kinds = {tensor.dtype.name for tensor in (*operation.inputs, *operation.outputs)}
            found[f"{operation.type}, {', '.join(sorted(kinds))}"] += 1
    return found


@functools.cache
def registered(name: str) -> list:
    with tf.init_scope():  # XLA registers its kernels, for all devices, when it compiles for the first time
        tf.function(lambda x: x + 1, jit_compile=True, autograph=False)(1.0)
    return list(kernels.get_registered_kernels_for_op(name).kernel)


def has_kernel(operation: tf.Operation, in_xla: bool) -> bool:
    """Whether a GPU has a kernel for the operation's dtypes, or the operation is the host's."""
    attrs = operation.node_def.attr
    return ("CPU" in operation.device and not in_xla) or any(
        kernel.device_type in (("XLA_GPU_JIT",) if in_xla else ("GPU", "DEFAULT"))
        and all(attrs[each.name].type in (0, *each.allowed_values.list.type) for each in kernel.constraint)
        for kernel in registered(operation.type)
    )


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
    names = {"input_file": "text.txt", "vocab_file": "vocab.txt", "output_dir": "shards"}
    files = [f"--{flag}={folder / name}" for flag, name in names.items()]
    corpus(["build", *files, "--max_seq_length=32", "--max_predictions_per_seq=5", "--num_workers=1"])


def cases(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Program and flags of each case."""
    train = [f"--bert_config_file={folder}/bert_config.json", "--do_train", "--max_seq_length=32"]
    train += ["--num_train_steps=1", "--num_warmup_steps=0", "--train_batch_size=8"]
    words = f"--vocab_file={folder}/vocab.txt"
    spans = [words, f"--train_file={folder}/squad.json", f"--predict_file={folder}/squad.json", "--do_predict"]
    labels = [words, f"--train_file={folder}/labels.tsv", f"--dev_file={folder}/labels.tsv", "--do_eval"]
    labels += ["--text_column=a", "--text_pair_column=b", "--label_column=label"]
    own = {
        "bert-squad": [*spans, "--max_query_length=16", "--doc_stride=12"],
        "bert-classifier": labels,
        "bert-pretraining": [f"--input_file={folder}/shards/*.arrow", "--do_eval"],
    }
    variants = [f"--precision={bits}" for bits in ("fp16", "bf16", "fp32")]
    variants += ["--optimizer=lamb", "--recompute", "--gradient_accumulation_steps=2"]
    for name, variant, xla in itertools.product(own, variants, ("off", "on")):
        if name == "bert-squad" or variant == "--precision=fp16":  # only the loss differs
            yield name, [*own[name], *train, variant, f"--xla={xla}"]


def main(only: str = "") -> int:
    """The exit status."""
    num_functions, found = 0, Counter()
    with tempfile.TemporaryDirectory() as path, contextlib.chdir(path):
        os.environ["RINGBERT_CACHE"] = path
        write_data(Path(path))
        gpus, visible = [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")], tf.config.get_visible_devices
        as_with_gpu = {"get_visible_devices": lambda kind: gpus if kind == "GPU" else visible(kind)}
        for number, (name, argv) in enumerate(cases(Path(path))):
            if only not in " ".join((name, *argv[-2:])):
                continue
            config_class, function = PROGRAMS[name]
            config = flags.parse(config_class, [*argv, f"--output_dir={path}/{number}"], prog=name)
            job.set_precision(config.machine.precision)
            with (
                mock.patch.multiple(tf.config, **as_with_gpu),
                World(device=Device("gpu"), program=name) as world,
                traced_only() as functions,
            ):
                run = Run(Path(config.output_dir), world.rank == 0)
                function(config, job.Job(world, LocalCollectives(), run))
                run.close()
            num_functions += len(functions)
            for traced in functions:
                missing = without_kernel(traced.graph, "_XlaMustCompile" in traced.function_def.attr)
                found.update({f"{' '.join((name, *argv[-2:]))}: {what}": count for what, count in missing.items()})
    print(*(f"{count} {what}" for what, count in found.items()), sep="\n")
    print(f"{num_functions} functions, {len(found)} operations without a kernel on GPUs")
    return int(bool(found) or num_functions == 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
