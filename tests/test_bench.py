"""bert-bench step, scaling and allreduce."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from texts import BERT_CONFIG, SPECIAL_TOKENS

from distributed.plan import PlanSettings, make_plan
from distributed.world import World
from ringbert.errors import InputError
from tasks.bench import products
from tasks.bench import program as bench
from tasks.bench.allreduce import AllreduceConfig, bench_allreduce
from tasks.bench.load import RandomBatches, StepLoad
from tasks.bench.scaling import layouts
from tasks.bench.step import StepConfig, bench_step

ROOT = Path(__file__).resolve().parent.parent


def run_bench(*arguments: str, num_ranks: int = 1) -> str:
    """What bert-bench prints in processes of its own."""
    launch = ("-m", "distributed.launch", "-np", str(num_ranks), "--", sys.executable) if num_ranks > 1 else ()
    done = subprocess.run(
        [sys.executable, *launch, "-m", "tasks.bench", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"},
        cwd=ROOT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_figures_of_a_step(capsys, monkeypatch):
    monkeypatch.setattr(products, "TIMED_S", 0.005)
    monkeypatch.setattr(products, "PEAK_SIZE", 256)
    load = {"model_size": "tiny", "batch_size": 2, "seq_length": 32, "num_warmup": 1, "num_steps": 3}
    figures = bench_step(StepConfig(**load, num_pairs=2, device="cpu"), World())
    printed = capsys.readouterr().err
    assert f"total examples/sec: {figures['examples_per_s']:.2f} +- " in printed
    assert "(median of 2 pairs)" in printed
    embeddings, layer = (30522 + 2 + 512 + 2) * 128, 4 * 128 * 128 + 2 * 128 * 512 + 9 * 128 + 512
    assert figures["parameters"] == embeddings + 2 * layer + 2 * 128 + 2
    # No time is compared with another: on a busy machine any of these few steps may be the longest.
    for name in ("examples_per_s", "compute_s", "data_s", "products_alone_s", "peak_flop_per_s"):
        assert figures[name] > 0, name
    # A multiplication and an addition for each weight and token, the scores and their use; three times as much
    # with the backward pass.
    flop = 3 * 2 * (64 * (4 * 128 * 128 + 2 * 128 * 512) + 64 * 2 * 32 * 128) * 2
    assert figures["flop_per_s"] == pytest.approx(flop * figures["examples_per_s"] / 2, rel=0.5)
    assert (figures["padding"], figures["tokens_per_s"]) == (0, pytest.approx(32 * figures["examples_per_s"]))


def test_random_batches_all_differ():
    load = StepLoad(batch_size=2, seq_length=8, gradient_accumulation_steps=2, num_warmup=1, num_steps=1)
    plan = make_plan(PlanSettings(global_batch_size=8, num_train_steps=2, gradient_accumulation_steps=2), 16, 2)
    source = RandomBatches(load, vocab_size=1000)
    batches = [b for rank in range(2) for step in range(2) for b in source.micro_batches(plan, rank, 8 * step)]
    assert len({batch["input_ids"].tobytes() for batch in batches}) == 8
    assert all(batch["input_ids"].shape == (2, 8) for batch in batches)
    (again, _) = source.micro_batches(plan, 1, 8, is_fixed=True)
    np.testing.assert_array_equal(again["input_ids"], batches[6]["input_ids"].reshape(-1))


def test_layouts_of_the_scaling_table():
    cores = [2, 3, 5, 7, 8, 9]
    assert [(row.ranks, sorted(row.cores)) for row in layouts(None, cores, 0)] == [
        (1, [2]), (2, [2, 3]), (4, [2, 3, 5, 7]), (6, cores), (1, cores),
    ]  # fmt: skip
    assert [row.ranks for row in layouts(3, cores, 0)] == [1, 2, 3, 1]
    assert [row.ranks for row in layouts(None, cores, 4)] == [1, 2, 4]
    assert [row.ranks for row in layouts(None, [4], 0)] == [1]


def test_the_allreduce_needs_ranks():
    message = "bert-bench allreduce needs several ranks: mpirun -np 2 bert-bench allreduce"
    with pytest.raises(InputError, match=message):
        bench_allreduce(AllreduceConfig(), World())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["step", "--num_pairs=0"], "--num_pairs must be at least 1, got 0"),
        (["step", "--train_file=t"], "--train_file needs --model, a folder with its tokenizer"),
        (
            ["allreduce", "--megabytes=1,none"],
            "--megabytes must be positive numbers, at most 100,000, separated by commas, got '1,none'",
        ),
        (["scaling", "--backend=local"], "--backend local cannot sum over several ranks"),
        (["compare", "--model=m"], "bert-bench compare is now `python -m benchmarks.compare`"),
        (["update"], "bert-bench update is now `python -m benchmarks.update`"),
    ],
)
def test_bad_flags_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        bench.main(arguments)
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.slow
def test_a_step_on_two_ranks(tmp_path):
    load = ("--model_size=tiny", "--batch_size=2", "--seq_length=32", "--num_steps=3")
    printed = run_bench("step", *load, f"--output_file={tmp_path}/figures", num_ranks=2)
    figures = json.loads((tmp_path / "figures").read_text())
    assert figures["world_size"] == 2
    assert figures["examples_per_s"] == pytest.approx(sum(mean for mean, _ in figures["of_ranks"]))
    assert figures["reduce_s"] > 0
    assert "rank 1: " in printed


@pytest.fixture(scope="module")
def squad(tmp_path_factory) -> Path:
    """A folder with `model` and train.json: 64 questions of two lengths."""
    folder = tmp_path_factory.mktemp("squad")
    (folder / "model").mkdir()
    words = [*SPECIAL_TOKENS, *"abcdefgh"]
    (folder / "model/vocab.txt").write_text("\n".join(words))
    (folder / "model/config.json").write_text(json.dumps(BERT_CONFIG | {"vocab_size": len(words)}))
    paragraphs = [
        {
            "context": "a b " + "c d " * (4 + 16 * (number % 2)),
            "qas": [{"id": str(number), "question": "e f", "answers": [{"text": "b", "answer_start": 2}]}],
        }
        for number in range(64)
    ]
    (folder / "train.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("packing", "xla", "padding"),
    [("auto", "off", (0, 0.2)), ("off", "off", (0.2, 0.5)), ("auto", "on", (0, 0.25))],
)
def test_a_step_on_real_windows(squad, tmp_path, packing, xla, padding):
    """A step of 2 ranks x 2 micro-batches x 8 rows has half of the windows."""
    run_bench(
        "step", f"--model={squad}/model", f"--train_file={squad}/train.json", "--gradient_accumulation_steps=2",
        "--batch_size=8", "--seq_length=64", "--num_warmup=0", "--num_steps=2", f"--packing={packing}",
        f"--xla={xla}", f"--output_file={tmp_path}/figures", num_ranks=2,
    )  # fmt: skip
    figures = json.loads((tmp_path / "figures").read_text())
    assert padding[0] <= figures["padding"] < padding[1]
    # 15 and 47 tokens, [CLS], two [SEP] and the question among them, half of the rows each.
    assert 15 < figures["tokens_per_s"] / figures["examples_per_s"] < 47
    assert figures["times_products"] > 0


@pytest.mark.slow
def test_the_allreduce_on_two_ranks(tmp_path):
    run_bench("allreduce", "--megabytes=0.5,4", "--repeat=2", f"--output_file={tmp_path}/figures", num_ranks=2)
    figures = json.loads((tmp_path / "figures").read_text())
    assert set(figures) == {"0.5", "4"}
    assert all(sums["ours_s"] > 0 and sums["ratio"] > 0 for sums in figures.values())


@pytest.mark.slow
def test_scaling_runs_every_layout_and_draws(tmp_path):
    """1 rank on a core, 2 ranks, 1 rank on both cores, the all-reduce of the 2; small."""
    printed = run_bench(
        "scaling", "--model_size=tiny", "--batch_size=2", "--seq_length=32", "--num_steps=2", "--num_warmup=1",
        "--repeat=1", "--megabytes=1,4", "--max_ranks=2", f"--picture={tmp_path}/picture.png",
        f"--output_file={tmp_path}/figures",
    )  # fmt: skip
    figures = json.loads((tmp_path / "figures").read_text())
    rows = figures["layouts"]
    assert list(rows)[:2] == ["1 rank, a core each", "2 ranks, a core each"]
    for label, row in rows.items():
        line = next(line for line in printed.splitlines() if line.startswith(label))
        assert f"{row['examples_per_s']:8.2f}" in line
    first, second = list(rows.values())[:2]
    assert first["speedup"] == 1
    assert second["speedup"] == pytest.approx(second["examples_per_s"] / first["examples_per_s"])
    assert second["efficiency"] == pytest.approx(second["speedup"] / 2)
    assert second["reduce_s"] > 0
    assert set(figures["allreduce"]) == {"1", "4"}
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
