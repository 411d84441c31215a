"""Traces every training, update, evaluation and prediction function of the programs as on a GPU, and lists the
operations that GPUs have no kernel for, and those that TensorFlow computes on the host.

Run it where TensorFlow's GPU wheel is installed; no GPU is needed: `python tests/programs/gpu_kernels.py`. The
exit status is 1 if an operation has no kernel, or if the host waits for a result in the middle of a function.
Operations outside of functions are not seen.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import conftest  # noqa: F401, E402  sets the environment
import tensorflow as tf  # noqa: E402
import texts  # noqa: E402
from classifier_runs import write_rows  # noqa: E402
from gpu_graphs import Findings, traced_only  # noqa: E402
from squad_files import make_entries, write_squad  # noqa: E402

from bert import configuration, weights  # noqa: E402
from bert.model import Bert  # noqa: E402
from bert.text import tokenizer  # noqa: E402
from distributed.collectives.local import LocalCollectives  # noqa: E402
from distributed.run import Run  # noqa: E402
from distributed.world import World  # noqa: E402
from tasks import corpus, features, flags, job  # noqa: E402
from tasks.classifier import program as classifier  # noqa: E402
from tasks.pretraining import program as pretraining  # noqa: E402
from tasks.squad import program as squad  # noqa: E402

MODEL = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 256}  # wide enough for compiled parts
MODEL |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
PRECISIONS = ("fp32", "bf16", "fp16")


class OverlappingCollectives(LocalCollectives):
    """Sums during the backward pass with NCCL, as on two ranks. The graph is only built."""

    def __init__(self):
        from distributed.collectives.tensorflow import TensorflowCollectives

        self.sum_in_graph = TensorflowCollectives(World(size=2), "nccl").sum_in_graph


def write_data(folder: Path) -> None:
    """Small files for all programs."""
    texts.write_model(folder, num_layers=1)
    config = json.loads((folder / "bert_config.json").read_text()) | MODEL
    (folder / "bert_config.json").write_text(json.dumps(config))
    write_squad(folder / "squad.json", make_entries(60, 1))
    examples = texts.make_examples(60, 1)
    write_rows(folder / "labels.tsv", ["a", "b", "label"], [(e.first, e.second, e.kind) for e in examples])
    write_rows(folder / "numbers.tsv", ["a", "b", "label"], [(e.first, e.second, len(e.first)) for e in examples])
    lines = [line for e in examples for line in (e.first, e.second, "")]
    texts.write_lines(folder / "text.txt", *lines)
    model = Bert(configuration.config_from_file(folder / "bert_config.json"), "features")
    weights.save(model, folder / "model", tokenizer.load(str(folder / "vocab.txt")))
    settings = ("--max_seq_length=32", "--max_predictions_per_seq=5", "--num_workers=1", "--num_shards=1")
    files = (
        f"--input_file={folder}/text.txt",
        f"--vocab_file={folder}/vocab.txt",
        f"--output_dir={folder}/shards",
    )
    corpus.main(["build", *files, *settings])


@dataclass(frozen=True)
class Program:
    """A program, and its flags without those that change from case to case."""

    name: str
    config_class: type
    function: Callable
    argv: tuple[str, ...]


def programs(folder: Path) -> list[Program]:
    """The programs with training."""
    model = (f"--vocab_file={folder}/vocab.txt", f"--bert_config_file={folder}/bert_config.json")
    train = ("--do_train", "--max_seq_length=32", "--num_train_steps=1", "--num_warmup_steps=0")
    train += ("--train_batch_size=8",)
    spans = (f"--train_file={folder}/squad.json", f"--predict_file={folder}/squad.json", "--do_predict")
    columns = ("--text_column=a", "--text_pair_column=b", "--label_column=label", "--do_eval")

    def classify(name: str, table: str, *flags: str) -> Program:
        files = (f"--train_file={folder}/{table}.tsv", f"--dev_file={folder}/{table}.tsv")
        argv = (*model, *train, *columns, *files, *flags)
        return Program(f"bert-classifier {name}", classifier.Config, classifier.run_classifier, argv)

    return [
        Program(
            "bert-squad", squad.Config, squad.run_squad,
            (*model, *train, *spans, "--max_query_length=16", "--doc_stride=12"),
        ),
        classify("labels", "labels", "--class_weights=balanced"),
        classify("numbers", "numbers", "--regression"),
        Program(
            "bert-pretraining", pretraining.Config, pretraining.run_pretraining,
            (model[1], *train, f"--input_file={folder}/shards/*.arrow", "--do_eval"),
        ),
    ]  # fmt: skip


def cases(folder: Path) -> Iterator[Program]:
    """Each program in each precision, with and without `--xla`, and what else changes a graph."""
    whole = [(f"--precision={precision}", f"--xla={xla}") for xla in ("off", "on") for precision in PRECISIONS]
    more = ("--packing=off", "--recompute", "--optimizer=lamb", "--gradient_accumulation_steps=2")
    others = [("--precision=bf16", f"--xla={xla}", flag) for xla in ("off", "on") for flag in more]
    others += [
        ("--precision=fp16", "--xla=on", "--overlap=compiled"),
        ("--precision=bf16", "--xla=off", "--overlap=off"),
    ]
    for program in programs(folder):
        is_squad = program.config_class is squad.Config  # the graphs of the other programs differ in the loss only
        for flags_of_case in whole + others if is_squad else (whole[1], whole[-1]):
            name, argv = " ".join((program.name, *flags_of_case)), (*program.argv, *flags_of_case)
            yield Program(name, program.config_class, program.function, argv)
    argv = (f"--model={folder}/model", f"--input_file={folder}/text.txt", "--layers=-1", "--max_seq_length=32")
    for precision in PRECISIONS:
        flag = f"--precision={precision}"
        yield Program(f"bert-features {flag}", features.Config, features.run_features, (*argv, flag))


def traced(program: Program, folder: Path) -> list:
    """The concrete functions of a run."""
    is_features = program.config_class is features.Config
    output = f"--output_file={folder}/out.json" if is_features else f"--output_dir={folder}"
    config = flags.parse(program.config_class, [*program.argv, output], prog=program.name, description="")
    job.set_precision(config.precision)
    gpus = [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]  # even where TensorFlow sees none
    visible = tf.config.get_visible_devices
    as_with_gpu = mock.patch.object(
        tf.config, "get_visible_devices", lambda kind=None: gpus if kind == "GPU" else visible(kind)
    )
    with as_with_gpu, World(device="gpu", program=program.name) as world, traced_only() as functions:
        run = Run.of(folder, world)
        program.function(config, job.Job(world, OverlappingCollectives(), run))
        run.close()
    return functions


def table(title: str, counts: Counter) -> None:
    """Prints counts by operation, dtypes, and what else tells them apart."""
    for key, count in counts.most_common():
        print(f"  {title:12} {count:5} {', '.join(key)}")


def main(argv: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="", help="only cases whose name contains this text")
    options.add_argument("--host", action="store_true", help="also list operations on the host and copies from it")
    options = options.parse_args(argv)
    num_functions = num_bad = 0
    with tempfile.TemporaryDirectory() as path, contextlib.chdir(path):
        os.environ["RINGBERT_CACHE"] = path
        folder = Path(path)
        write_data(folder)
        for number, case in enumerate(cases(folder)):
            for function in traced(case, folder / str(number)) if options.only in case.name else []:
                findings = Findings.of(function)
                print(f"{case.name}: {function.function_def.signature.name}: {findings}", flush=True)
                table("no kernel", findings.no_kernel)
                table("from the GPU", findings.down)
                if options.host:
                    table("on the host", findings.host)
                    table("to the GPU", findings.up)
                num_functions, num_bad = num_functions + 1, num_bad + bool(findings.no_kernel or findings.down)
    print(f"{num_functions} functions, {num_bad} of them not for GPUs")
    sys.exit(num_bad > 0 or num_functions == 0)


if __name__ == "__main__":
    main()
