"""The programs' outsides: what importing them pulls in, bench, report, out of memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from texts import BERT_CONFIG, SPECIAL_TOKENS

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"tensorflow", "keras", "mpi4py", "transformers", "datasets", "matplotlib"}


def python(*arguments: str, path: str = str(ROOT), cwd: Path = ROOT) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, timeout=200
    )


PROGRAMS = ("squad", "classifier", "pretraining", "features", "corpus", "bench", "report")


@pytest.mark.parametrize("module", [*(f"tasks.{name}" for name in PROGRAMS), "distributed.launch"])
def test_help_needs_no_heavy_import(module):
    done = python("-c", f"import sys, {module}; print(*sys.modules)")
    assert not HEAVY & set(done.stdout.split()), done.stderr
    helped = python("-m", module, "--help")
    assert helped.returncode == 0
    assert "usage: bert-" in helped.stdout


def test_without_tensorflow_one_line_names_the_extras(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ModuleNotFoundError(\"No module named 'tensorflow'\")\n")
    flags = (f"--output_dir={tmp_path}/x", "--do_predict", "--predict_file=y")
    done = python("-m", "tasks.squad", *flags, path=f"{tmp_path}:{ROOT}")
    assert done.returncode == 1
    assert done.stderr.startswith("bert-squad: error: TensorFlow is not installed")
    assert "pip install '.[cpu]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_bench_step_prints_total_and_split(tmp_path):
    flags = (
        "--model_size=tiny",
        "--batch_size=2",
        "--seq_length=32",
        "--num_steps=3",
        "--num_pairs=2",
        f"--output_file={tmp_path}/f",
    )
    done = python("-m", "tasks.bench", "step", *flags)
    assert done.returncode == 0, done.stderr
    assert "total examples/sec: " in done.stderr
    assert "(median of 2 pairs)" in done.stderr
    figures = json.loads((tmp_path / "f").read_text())
    assert figures["examples_per_s"] > 0
    embeddings, layer = (30522 + 2 + 512 + 2) * 128, 4 * 128 * 128 + 2 * 128 * 512 + 9 * 128 + 512
    assert figures["parameters"] == embeddings + 2 * layer + 2 * 128 + 2
    # No time is compared with another: on a busy machine any of these few steps may be the longest.
    for time in ("compute_s", "data_s", "products_alone_s"):
        assert figures[time] > 0, time
    # A multiplication and an addition for each weight and token, the scores and their use; three times as much
    # with the backward pass.
    flop = 3 * 2 * (64 * (4 * 128 * 128 + 2 * 128 * 512) + 64 * 2 * 32 * 128) * 2
    assert figures["flop_per_s"] == pytest.approx(flop * figures["examples_per_s"] / 2, rel=0.5)
    assert figures["peak_flop_per_s"] > 0
    assert (figures["padding"], figures["tokens_per_s"]) == (0, pytest.approx(32 * figures["examples_per_s"]))


@pytest.mark.slow
def test_bench_scaling_runs_every_layout_and_draws(tmp_path):
    """1 rank on a core, 2 ranks, 1 rank on both cores, the all-reduce of the 2; small."""
    flags = (
        "--model_size=tiny", "--batch_size=2", "--seq_length=32", "--num_steps=2", "--num_warmup=1", "--repeat=1",
        "--megabytes=1,4", "--max_ranks=2", f"--picture={tmp_path}/p.png", f"--output_file={tmp_path}/f",
    )  # fmt: skip
    done = python("-m", "tasks.bench", "scaling", *flags)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "f").read_text())
    found = figures["layouts"]
    assert list(found)[:2] == ["1 rank, a core each", "2 ranks, a core each"]
    for label, row in found.items():
        assert f"{row['examples_per_s']:8.2f}" in next(x for x in done.stderr.splitlines() if x.startswith(label))
    first, second = list(found.values())[:2]
    assert first["speedup"] == 1
    assert second["speedup"] == pytest.approx(second["examples_per_s"] / first["examples_per_s"])
    assert second["efficiency"] == pytest.approx(second["speedup"] / 2)
    assert second["reduce_s"] > 0
    assert set(figures["allreduce"]) == {"1", "4"}
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_layouts_of_the_scaling_table():
    from tasks.bench.scaling import layouts

    cores = [2, 3, 5, 7, 8, 9]
    assert [(row.ranks, sorted(row.cores)) for row in layouts(None, cores, 0)] == [
        (1, [2]), (2, [2, 3]), (4, [2, 3, 5, 7]), (6, cores), (1, cores),
    ]  # fmt: skip
    assert [row.ranks for row in layouts(3, cores, 0)] == [1, 2, 3, 1]
    assert [row.ranks for row in layouts(None, cores, 4)] == [1, 2, 4]
    assert [row.ranks for row in layouts(None, [4], 0)] == [1]


def test_bench_allreduce_needs_ranks():
    done = python("-m", "tasks.bench", "allreduce")
    assert done.returncode == 1
    needed = "bert-bench allreduce needs several ranks: mpirun -np 2 bert-bench allreduce"
    assert done.stderr == f"bert-bench: error: {needed}\n"


def test_out_of_memory_names_the_flags():
    import numpy as np
    import tensorflow as tf

    from distributed.gradient import out_of_memory_is_input_error
    from ringbert.errors import InputError
    from tasks.fit import MEMORY_ADVICE

    batch = {"input_ids": np.zeros((32, 384), np.int32)}
    message = r"shape \(32, 384\): lower --train_batch_size .*, or raise --gradient_accumulation_steps"
    with pytest.raises(InputError, match=message), out_of_memory_is_input_error(batch, MEMORY_ADVICE):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")


@pytest.mark.slow
def test_bench_on_two_ranks(tmp_path):
    launch = ("-m", "distributed.launch", "-np", "2", "--", sys.executable, "-m", "tasks.bench")
    flags = (
        "--model_size=tiny",
        "--batch_size=2",
        "--seq_length=32",
        "--num_steps=3",
        f"--output_file={tmp_path}/step",
    )
    done = python(*launch, "step", *flags)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "step").read_text())
    assert figures["world_size"] == 2
    assert figures["examples_per_s"] == pytest.approx(sum(mean for mean, _ in figures["of_ranks"]))
    assert figures["reduce_s"] > 0
    assert "rank 1: " in done.stderr
    # Real windows: 64 questions of 2 lengths, of which a step of 2 x 2 x 8 rows has most.
    (tmp_path / "model").mkdir()
    words = [*SPECIAL_TOKENS, *"abcdefgh"]
    (tmp_path / "model/vocab.txt").write_text("\n".join(words))
    (tmp_path / "model/config.json").write_text(json.dumps(BERT_CONFIG | {"vocab_size": len(words)}))
    paragraphs = [
        {
            "context": "a b " + "c d " * (4 + 16 * (number % 2)),
            "qas": [{"id": str(number), "question": "e f", "answers": [{"text": "b", "answer_start": 2}]}],
        }
        for number in range(64)
    ]
    (tmp_path / "train.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    real = (
        f"--model={tmp_path}/model", f"--train_file={tmp_path}/train.json", "--gradient_accumulation_steps=2",
        "--batch_size=8", "--seq_length=64", "--num_warmup=0", "--num_steps=2", f"--output_file={tmp_path}/step",
    )  # fmt: skip
    cases = (("auto", "off", (0, 0.2)), ("off", "off", (0.2, 0.5)), ("auto", "on", (0, 0.25)))
    for packing, xla, padding in cases:
        done = python(*launch, "step", *real, f"--packing={packing}", f"--xla={xla}")
        assert done.returncode == 0, done.stderr
        figures = json.loads((tmp_path / "step").read_text())
        assert padding[0] <= figures["padding"] < padding[1]
        # 15 and 47 tokens, [CLS], two [SEP] and the question among them, half of the rows each.
        assert 15 < figures["tokens_per_s"] / figures["examples_per_s"] < 47
        assert figures["times_products"] > 0
    done = python(*launch, "allreduce", "--megabytes=0.5,4", "--repeat=2", f"--output_file={tmp_path}/sum")
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "sum").read_text())
    assert set(figures) == {"0.5", "4"}
    assert all(figure["ours_s"] > 0 and figure["ratio"] > 0 for figure in figures.values())
