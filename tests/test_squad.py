"""bert-squad from the command line to its files, on a tiny model and generated questions.

One run on two ranks is what most tests look at. What one rank does, they do in this process.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from program_runs import ROOT, command, environment, error_of, in_process, metrics_in, shell, weights_in
from squad_files import make_entries, read_file, write_squad
from texts import write_model

from bert.text import tokenizer
from distributed.rows import Rows
from tasks.squad.program import Config, main, run_squad
from tasks.squad.settings import WindowSettings
from tasks.squad.windows import windows

NUM_DEV = 40
STEPS, SAVE_EVERY, BATCH = 24, 8, 32  # over both ranks
TRAIN = (
    "--do_train", "--do_predict", f"--train_batch_size={BATCH // 2}", f"--num_train_steps={2 * STEPS}",
    "--learning_rate=2e-3", "--lr_scaling=none", f"--save_checkpoints_steps={SAVE_EVERY}", "--log_steps=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Vocabulary and configuration, train.json and dev.json; the caches of this file's runs are new."""
    folder = tmp_path_factory.mktemp("data")
    write_model(folder, num_layers=1)
    write_squad(folder / "train.json", make_entries(600, 1))
    write_squad(folder / "dev.json", make_entries(NUM_DEV + 5, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield folder


def flags_of(data: Path, output_dir: Path) -> list[str]:
    return [
        f"--vocab_file={data}/vocab.txt", f"--bert_config_file={data}/bert_config.json", "--max_seq_length=40",
        f"--train_file={data}/train.json", f"--predict_file={data}/dev.json", "--max_query_length=16",
        "--doc_stride=12", f"--max_predict_examples={NUM_DEV}", f"--output_dir={output_dir}",
    ]  # fmt: skip


def squad_command(data: Path, output_dir: Path, *flags: str, ranks: int = 1) -> list[str]:
    return command("tasks.squad", *flags_of(data, output_dir), *flags, ranks=ranks)


def squad(data: Path, output_dir: Path, *flags: str) -> dict[str, float]:
    """The program in this process, on one rank."""
    return in_process("bert-squad", Config, run_squad, output_dir, *flags_of(data, output_dir), *flags)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory) -> tuple[Path, str]:
    """The folder of a run on two ranks, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, shell(squad_command(data, folder, *TRAIN, ranks=2))


def checkpoint(step: int) -> str:
    return f"rows-{BATCH * step:012d}"


def test_a_run_leaves_its_files(trained, data):
    folder, printed = trained
    losses = [line["loss"] for line in metrics_in(folder)]
    assert len(losses) == STEPS // 2 + 1
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    predictions = json.loads((folder / "predictions.json").read_text())
    entries = make_entries(NUM_DEV + 5, 2)
    assert list(predictions) == [f"q{number}" for number in range(NUM_DEV)]
    assert all(predictions[f"q{number}"] in entries[number][0] for number in range(NUM_DEV))
    nbest = json.loads((folder / "nbest_predictions.json").read_text())
    assert all(abs(sum(c["probability"] for c in listed) - 1) < 1e-6 for listed in nbest.values())
    assert all(listed[0]["text"] == predictions[id_] for id_, listed in nbest.items())
    scores = json.loads((folder / "result.json").read_text())["scores"]
    written = dict(line.split(" = ") for line in (folder / "eval_results.txt").read_text().splitlines())
    assert {name: float(value) for name, value in written.items()} == scores
    right = [predictions[f"q{number}"] == entries[number][2] for number in range(NUM_DEV)]
    assert scores["exact_match"] == 100 * np.mean(right)
    assert set(scores) == {"exact_match", "f1"}
    plan = json.loads((folder / "run.json").read_text())["plan"]
    assert (plan["steps"], plan["global_batch_size"]) == (STEPS, BATCH)
    assert list((folder / "tensorboard").glob("events.*"))
    steps = range(SAVE_EVERY, STEPS + 1, SAVE_EVERY)
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == [*map(checkpoint, steps)]
    assert printed.count("plan: ") == 1  # once over both ranks
    assert " rows, 2 ranks" in printed


def test_the_report_draws_the_run(trained):
    from tasks import report

    with pytest.raises(SystemExit) as stop:
        report.main([str(trained[0])])
    assert stop.value.code == 0
    page = (trained[0] / "report.html").read_text()
    scores = json.loads((trained[0] / "result.json").read_text())["scores"]
    assert f"{STEPS} of {STEPS}" in page
    assert f"{scores['f1']:.2f}" in page
    assert "data:image/png;base64,iVBOR" in page


def test_the_model_is_one_of_transformers(trained):
    from safetensors.numpy import load_file
    from transformers import AutoConfig, AutoTokenizer

    model = trained[0] / "model"
    assert AutoConfig.from_pretrained(model).architectures == ["BertForQuestionAnswering"]
    assert AutoTokenizer.from_pretrained(model)("the tool").input_ids
    tensors = load_file(model / "model.safetensors")
    assert tensors["qa_outputs.weight"].shape == (2, 64)
    newest = load_file(trained[0] / "checkpoints" / checkpoint(STEPS) / "model.safetensors")
    assert all(np.array_equal(value, newest[name]) for name, value in tensors.items())


def test_a_finished_run_predicts_the_same_on_another_number_of_ranks(trained, data, capsys):
    """On two ranks it was trained and predicted; the same command on one does not train again."""
    folder = trained[0]
    names = ("predictions.json", "eval_results.txt", "metrics.jsonl", "model/model.safetensors")
    before = {name: (folder / name).read_bytes() for name in names}
    expected = json.loads((folder / "nbest_predictions.json").read_text())
    (folder / "predictions.json").unlink()
    squad(data, folder, *TRAIN)
    assert f"checkpoint {folder}/checkpoints/{checkpoint(STEPS)}" in capsys.readouterr().err
    assert before == {name: (folder / name).read_bytes() for name in names}
    assert_same_candidates(expected, json.loads((folder / "nbest_predictions.json").read_text()))


def assert_same_candidates(expected: dict, nbest: dict) -> None:
    """float32 rounds batches of other shapes differently."""
    assert expected.keys() == nbest.keys()
    for id_, listed in expected.items():
        assert [c["text"] for c in listed] == [c["text"] for c in nbest[id_]]
        probabilities = [[c["probability"] for c in candidates] for candidates in (listed, nbest[id_])]
        np.testing.assert_allclose(*probabilities, atol=1e-5)


@pytest.mark.slow
def test_three_ranks_predict_the_same(trained, data, tmp_path):
    folder = trained[0]
    shell(squad_command(data, tmp_path, "--do_predict", f"--init_checkpoint={folder}/model", ranks=3))
    for name in ("predictions.json", "eval_results.txt"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    nbest = [json.loads((path / "nbest_predictions.json").read_text()) for path in (folder, tmp_path)]
    assert_same_candidates(*nbest)


def test_a_changed_rate_is_refused(trained, data, capsys):
    with pytest.raises(SystemExit) as stop:
        squad(data, trained[0], *TRAIN, "--learning_rate=3e-5")
    assert stop.value.code == 1
    error = error_of(capsys.readouterr().err, "bert-squad")
    assert "--learning_rate = 0.002" in error
    assert "3e-05" in error
    assert (trained[0] / "result.json").exists()


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_bits(data, tmp_path):
    """A rank killed by SIGKILL ends the job; the same command goes on and ends with the bits of a whole run."""
    flags = (*TRAIN, "--num_train_steps=160")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    shell(squad_command(data, whole, *flags, ranks=2))
    arguments = squad_command(data, killed, *flags, ranks=2)
    job = subprocess.Popen(
        arguments, env=environment(), cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while not (killed / "checkpoints" / checkpoint(SAVE_EVERY)).exists():
            assert time.monotonic() < deadline
            assert job.poll() is None
            time.sleep(0.01)
        os.kill(ranks_of(killed)[-1], signal.SIGKILL)
        assert job.wait(timeout=30) != 0
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert not (killed / "result.json").exists()
    assert f"checkpoint {killed}/checkpoints/rows-" in shell(arguments)
    assert weights_in(killed / "model") == weights_in(whole / "model")
    steps = [line["step"] for line in metrics_in(killed)]
    assert steps == sorted(set(steps))  # no step is logged twice
    assert steps[-1] == 80


def ranks_of(output_dir: Path) -> list[int]:
    """Process ids of the ranks of the job that writes to a folder."""
    ids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            flags, variables = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if f"--output_dir={output_dir}".encode() in flags and b"OMPI_COMM_WORLD_RANK=" in variables:
            ids.append(int(process.name))
    return sorted(ids)


@pytest.mark.slow
def test_lambdal_threshold_recipe_predicts_with_the_trained_run(trained, data, tmp_path):
    """`--do_train=False --init_checkpoint=<the original> --output_dir=<the trained run>` takes the run's."""
    from weight_files import write_tf1

    from bert import weights

    folder, original = tmp_path / "run", tmp_path / "bert_model.ckpt"
    shutil.copytree(trained[0], folder)
    write_tf1(original, weights.read(folder / "checkpoints" / checkpoint(SAVE_EVERY)))
    answers = (folder / "predictions.json").read_bytes()
    flags = ("--do_train=False", "--do_predict=True", f"--init_checkpoint={original}")
    v2 = ("--version_2_with_negative=True", "--null_score_diff_threshold=1e9")
    squad(data, folder, *flags, *v2)
    assert (folder / "predictions.json").read_bytes() == answers  # nothing is above this threshold
    assert len(json.loads((folder / "null_odds.json").read_text())) == NUM_DEV
    scores = json.loads((folder / "result.json").read_text())["scores"]
    assert {"exact", "f1", "best_f1", "best_f1_thresh"} <= set(scores)


# -- benchmarks on its windows and its model ----------------------------------------------------------------------


@pytest.mark.slow
def test_comparing_measures_us_and_names_who_is_absent(trained, data, tmp_path):
    flags = (
        f"--model={trained[0]}/model", f"--train_file={data}/train.json", "--max_train_examples=100",
        "--max_seq_length=96", "--batch_size=8", "--num_ranks=1", "--num_warmup=1", "--num_steps=2", "--repeat=1",
        "--precision=fp32", "--rival_python=/bin/false", f"--output_file={tmp_path}/figures",
    )  # fmt: skip
    printed = shell(command("benchmarks.compare", *flags))
    assert printed.count("left out: /bin/false has no ") == 5
    figures = json.loads((tmp_path / "figures").read_text())
    assert list(figures) == ["ringbert", "sums"]
    assert "all-reduce: left out: it needs several ranks" in printed
    assert figures["ringbert"]["windows_per_s"] > 0
    assert figures["ringbert"]["ratio"] == 1


def test_rivals_see_the_windows_that_we_train_on(data, tmp_path, run):
    from benchmarks.rivals import batches
    from distributed.order import Order

    settings = WindowSettings(max_seq_length=64, max_query_length=16)
    words = tokenizer.load(str(data / "vocab.txt"))
    key = windows(settings, read_file(data / "train.json"), words, tmp_path, run)
    path = tmp_path / key / "windows.arrow"
    rows = Rows.open(path)
    load = {"windows": str(path), "batch_size": 8, "num_warmup": 1, "num_steps": 2, "seed": 42}
    load |= {"max_seq_length": 72}
    padded = list(batches(load, by_length=False, padded=True))
    order = Order(len(rows), 42).rows_at(0, 24)
    assert len(padded) == 3
    for number, batch in enumerate(padded):
        assert batch["input_ids"].shape == (8, 72)
        ours = rows.take(order[8 * number : 8 * number + 8])
        assert batch["start_position"].tolist() == ours["start_position"].tolist()
        np.testing.assert_array_equal(batch["input_ids"][batch["example_ids"] == 1], ours["input_ids"][0])
    grouped = [batch["example_ids"].sum(1) for batch in batches(load, by_length=True, padded=False)]
    spread = max(int(lengths.max() - lengths.min()) for lengths in grouped)
    assert spread < rows.lengths("input_ids").max() - rows.lengths("input_ids").min()


# -- refusals -----------------------------------------------------------------------------------------------------


def cut_file(data: Path, folder: Path) -> Path:
    path = folder / "cut.json"
    path.write_bytes((data / "train.json").read_bytes()[:5000])
    return path


def test_bad_input_is_one_line(data, tmp_path, capsys):
    cut, output_dir = cut_file(data, tmp_path), tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        squad(data, output_dir, *TRAIN, f"--train_file={cut}")
    assert stop.value.code == 1
    message = f"--train_file {cut}: not valid JSON ("
    assert message in error_of(capsys.readouterr().err, "bert-squad")
    assert not list(output_dir.iterdir())


@pytest.mark.slow
def test_bad_input_is_one_line_over_all_ranks(data, tmp_path):
    cut = cut_file(data, tmp_path)
    printed = shell(squad_command(data, tmp_path / "out", *TRAIN, f"--train_file={cut}", ranks=2), status=None)
    assert f"--train_file {cut}: not valid JSON (" in error_of(printed, "bert-squad")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output_dir=x"], "nothing to do"),
        (["--output_dir=x", "--do_train"], "--do_train needs --train_file"),
        (["--output_dir=x", "--do_predict"], "--do_predict needs --predict_file"),
        (
            ["--output_dir=x", "--do_train", "--train_file=t", "--max_seq_length=60"],
            "must exceed --max_query_length",
        ),
        (["--output_dir=x", "--do_train", "--train_file=t", "--learning_rat=1"], "did you mean --learning_rate"),
        (["--output_dir=x", "--do_train", "--train_file=t", "--seed=-1"], "--seed must be at least 0, got -1"),
        (
            ["--output_dir=x", "--do_train", "--train_file=t", "--max_train_examples=-5"],
            "--max_train_examples must be at least 1, got -5",
        ),
        (
            ["--output_dir=x", "--do_predict", "--predict_file=p", "--n_best_size=0"],
            "--n_best_size must be at least 1",
        ),
        (["--output_dir=x", "--do_predict", "--predict_file=p", "--metric=squad_v2"], "--version_2_with_negative"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(flags, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(flags)
    printed = capsys.readouterr().err
    assert stop.value.code == 2
    assert printed.count("\n") == 1
    assert message in error_of(printed, "bert-squad")
