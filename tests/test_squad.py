"""bert-squad from the command line to its files, on a small model and generated questions, at 1, 2 and 3 ranks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ringbert.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
STEPS, SAVE_EVERY = 40, 10


@pytest.fixture(scope="module")
def docs(tmp_path_factory) -> Path:
    """The quickstart's data set."""
    folder = tmp_path_factory.mktemp("docs")
    subprocess.run([sys.executable, ROOT / "scripts/make_docs_squad.py", folder], check=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    cache = str(tmp_path_factory.mktemp("cache"))
    return {**os.environ, "PYTHONPATH": path, "RINGBERT_CACHE": cache, "CUDA_VISIBLE_DEVICES": "-1"}


def command(docs: Path, output_dir: Path, *flags: str, ranks: int = 1) -> list[str]:
    """A bert-squad command line on the generated data, under bert-launch when there are several ranks."""
    program = [
        sys.executable, "-m", "tasks.squad", f"--vocab_file={docs}/vocab.txt",
        f"--bert_config_file={docs}/bert_config.json", f"--train_file={docs}/train.json",
        f"--predict_file={docs}/dev.json", "--max_seq_length=96", "--max_query_length=24",
        "--max_train_examples=1280", "--max_predict_examples=60", f"--output_dir={output_dir}", *flags,
    ]  # fmt: skip
    launch = [sys.executable, "-m", "distributed.launch", "-np", str(ranks), "--"]
    return program if ranks == 1 else [*launch, *program]


TRAIN = (
    "--do_train", "--do_predict", "--train_batch_size=32", "--num_train_epochs=2", "--learning_rate=1e-3",
    "--lr_scaling=none", f"--save_checkpoints_steps={SAVE_EVERY}", "--log_steps=2",
)  # fmt: skip


def run(arguments: list[str], environment: dict[str, str], status: int = 0) -> str:
    """Runs a command; its standard error. Fails unless it exits with `status` (None: any but 0)."""
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert (done.returncode != 0) if status is None else (done.returncode == status), done.stdout + done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def trained(docs, environment, tmp_path_factory) -> tuple[Path, str]:
    """The folder of a run on two ranks, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, run(command(docs, folder, *TRAIN, ranks=2), environment)


def test_a_run_leaves_its_files(trained, docs):
    folder, printed = trained
    losses = [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == STEPS // 2 + 1
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    predictions = json.loads((folder / "predictions.json").read_text())
    dev = json.loads((docs / "dev.json").read_text())
    contexts = {
        qa["id"]: paragraph["context"]
        for entry in dev["data"]
        for paragraph in entry["paragraphs"]
        for qa in paragraph["qas"]
    }
    assert len(predictions) == 60
    assert all(text in contexts[id_] for id_, text in predictions.items())  # cut from the original
    nbest = json.loads((folder / "nbest_predictions.json").read_text())
    assert all(abs(sum(c["probability"] for c in listed) - 1) < 1e-6 for listed in nbest.values())
    assert all(listed[0]["text"] == predictions[id_] for id_, listed in nbest.items())
    scores = json.loads((folder / "result.json").read_text())["scores"]
    written = dict(line.split(" = ") for line in (folder / "eval_results.txt").read_text().splitlines())
    assert {name: float(value) for name, value in written.items()} == scores
    assert set(scores) == {"exact_match", "f1"}
    told = json.loads((folder / "run.json").read_text())
    assert told["plan"]["steps"] == STEPS
    assert told["plan"]["global_batch_size"] == 64
    assert list((folder / "tensorboard").glob("events.*"))
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == [
        f"rows-{64 * step:012d}" for step in range(SAVE_EVERY, STEPS + 1, SAVE_EVERY)
    ]
    assert printed.count("plan: ") == 1  # once over both ranks
    assert "1,280 rows, 2 ranks" in printed


def test_the_model_is_one_of_transformers(trained):
    from safetensors.numpy import load_file
    from transformers import AutoConfig, AutoTokenizer

    model = trained[0] / "model"
    assert AutoConfig.from_pretrained(model).architectures == ["BertForQuestionAnswering"]
    assert AutoTokenizer.from_pretrained(model)("what does it do?").input_ids
    tensors = load_file(model / "model.safetensors")
    assert tensors["qa_outputs.weight"].shape == (2, 128)
    newest = load_file(trained[0] / "checkpoints" / f"rows-{64 * STEPS:012d}" / "model.safetensors")
    assert all(np.array_equal(value, newest[name]) for name, value in tensors.items())


def test_a_finished_run_predicts_without_training(trained, docs, environment):
    folder, _ = trained
    before = {name: (folder / name).read_bytes() for name in ("predictions.json", "metrics.jsonl")}
    weights = (folder / "model" / "model.safetensors").read_bytes()
    (folder / "predictions.json").unlink()
    printed = run(command(docs, folder, *TRAIN), environment)  # on one rank this time
    assert f"checkpoint {folder}/checkpoints/rows-{64 * STEPS:012d}" in printed
    assert before == {name: (folder / name).read_bytes() for name in before}
    assert weights == (folder / "model" / "model.safetensors").read_bytes()


def test_predictions_do_not_depend_on_the_ranks(trained, docs, environment, tmp_path):
    """The fixture predicted on two ranks; one and three give the same answers and scores."""
    folder, _ = trained
    expected = json.loads((folder / "nbest_predictions.json").read_text())
    for ranks in (1, 3):
        output = tmp_path / str(ranks)
        flags = ("--do_predict", f"--init_checkpoint={folder}/model")
        run(command(docs, output, *flags, ranks=ranks), environment)
        assert (output / "predictions.json").read_bytes() == (folder / "predictions.json").read_bytes()
        assert (output / "eval_results.txt").read_bytes() == (folder / "eval_results.txt").read_bytes()
        found = json.loads((output / "nbest_predictions.json").read_text())
        for id_, listed in expected.items():
            assert [c["text"] for c in listed] == [c["text"] for c in found[id_]]
            assert np.allclose(
                [c["probability"] for c in listed], [c["probability"] for c in found[id_]], atol=1e-5
            )


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_bits(trained, docs, environment, tmp_path):
    """A rank killed by SIGKILL ends the job; the same command goes on and ends with the bits of the whole run."""
    output = tmp_path / "killed"
    arguments = command(docs, output, *TRAIN, ranks=2)
    job = subprocess.Popen(arguments, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not (output / "checkpoints" / f"rows-{64 * SAVE_EVERY:012d}").exists():
            assert time.monotonic() < deadline
            assert job.poll() is None
            time.sleep(0.02)
        os.kill(ranks_of(output)[-1], signal.SIGKILL)
        assert job.wait(timeout=30) != 0
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert not (output / "result.json").exists()
    printed = run(arguments, environment)
    assert f"checkpoint {output}/checkpoints/rows-" in printed
    resumed = (output / "model" / "model.safetensors").read_bytes()
    assert resumed == (trained[0] / "model" / "model.safetensors").read_bytes()
    steps = [json.loads(line)["step"] for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))  # no step is logged twice
    assert steps[-1] == STEPS


def ranks_of(output: Path) -> list[int]:
    """Process ids of the ranks of the job that writes to `output`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            flags, variables = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if f"--output_dir={output}".encode() in flags and b"OMPI_COMM_WORLD_RANK=" in variables:
            found.append(int(process.name))
    return sorted(found)


def test_bad_input_is_one_line_over_all_ranks(docs, environment, tmp_path):
    cut = tmp_path / "cut.json"
    cut.write_bytes((docs / "train.json").read_bytes()[:5000])
    arguments = command(docs, tmp_path / "out", *TRAIN, f"--train_file={cut}", ranks=2)
    printed = run(arguments, environment, status=None)
    lines = [line for line in printed.splitlines() if "error:" in line]
    assert len(lines) == 1, printed
    assert lines[0].startswith(f"bert-squad: error: --train_file {cut}: truncated or not JSON")
    assert "Traceback" not in printed
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.slow
def test_lambdal_threshold_recipe_predicts_with_the_trained_run(trained, docs, environment, tmp_path):
    """`--do_train=False --init_checkpoint=<the original> --output_dir=<the trained run>` takes the run's."""
    import shutil

    from test_weights import write_tf1

    from bert import weights

    folder, original = tmp_path / "run", tmp_path / "bert_model.ckpt"
    shutil.copytree(trained[0], folder)
    write_tf1(original, weights.read(trained[0] / "checkpoints" / f"rows-{64 * SAVE_EVERY:012d}"))
    answers = (folder / "predictions.json").read_bytes()
    flags = ("--do_train=False", "--do_predict=True", f"--init_checkpoint={original}")
    v2 = ("--version_2_with_negative=True", "--null_score_diff_threshold=1e9")
    run(command(docs, folder, *flags, *v2), environment)
    assert (folder / "predictions.json").read_bytes() == answers  # nothing is above this threshold
    assert len(json.loads((folder / "null_odds.json").read_text())) == 60
    scores = json.loads((folder / "result.json").read_text())["scores"]
    assert {"exact", "f1", "best_f1", "best_f1_thresh"} <= set(scores)


# -- refusals, in this process ------------------------------------------------------------------------------------


def config_of(docs: Path, output_dir: Path, **changes):
    from tasks.squad.program import Config

    values = {
        "output_dir": str(output_dir), "train_file": f"{docs}/train.json", "predict_file": f"{docs}/dev.json",
        "bert_config_file": f"{docs}/bert_config.json", "vocab_file": f"{docs}/vocab.txt", "max_seq_length": 96,
        "max_query_length": 24, "do_train": True,
    }  # fmt: skip
    return Config(**(values | changes))


@pytest.mark.parametrize(
    ("name", "value"), [("--learning_rate", 3e-5), ("--max_seq_length", 384), ("--num_train_epochs", 5.0)]
)
def test_a_changed_run_is_refused_with_both_values(trained, docs, name, value):
    from distributed.checkpoint import newest_intact
    from tasks.origin import find_start

    config = config_of(docs, trained[0])
    settings = newest_intact(trained[0] / "checkpoints", print).state.settings
    quiet = SimpleNamespace(say=lambda text: None)
    assert find_start(config, settings, quiet).state.step == STEPS
    with pytest.raises(ValueError, match=rf"{name} = {settings[name]}.*{value}.*--resume never"):
        find_start(config, settings | {name: value}, quiet)


def test_a_folder_of_a_tensorflow_1_run_is_refused(docs, tmp_path):
    from tasks.origin import find_start

    (tmp_path / "model.ckpt-1000.index").touch()
    with pytest.raises(InputError, match=r"TensorFlow 1 run.*--init_checkpoint .*model\.ckpt-1000"):
        find_start(config_of(docs, tmp_path), {}, SimpleNamespace(say=print))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "no/such/model"}, "no such folder or checkpoint"),
        ({"model": "someone/not-in-the-cache"}, "--model someone/not-in-the-cache .*the hub did not give it"),
        ({"bert_config_file": None}, "no model configuration: give --bert_config_file"),
        ({"vocab_file": None}, "no vocabulary: give --vocab_file"),
        ({"vocab_file": "missing.txt"}, r"missing.txt: no such file \(--vocab_file\)"),
        ({"max_seq_length": 500}, "--max_seq_length 500 exceeds the model's"),
    ],
)
def test_model_files_that_do_not_fit(docs, tmp_path, changes, message):
    from tasks.origin import find_model_files

    with pytest.raises(InputError, match=message):
        find_model_files(config_of(docs, tmp_path, **changes), SimpleNamespace(say=print))


def test_a_vocabulary_larger_than_the_model_is_refused(docs, tmp_path):
    from tasks.origin import find_model_files

    longer = tmp_path / "longer.txt"
    longer.write_text((docs / "vocab.txt").read_text() + "one\nmore\n")
    with pytest.raises(
        InputError, match=r"longer.txt has \d+ entries, the model's configuration \d+: --vocab_file"
    ):
        find_model_files(config_of(docs, tmp_path, vocab_file=str(longer)), SimpleNamespace(say=print))


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
        (["--output_dir=x", "--do_train", "--train_file=t", "--seed=-1"], "--seed is -1"),
        (
            ["--output_dir=x", "--do_train", "--train_file=t", "--max_train_examples=-5"],
            "--max_train_examples is -5",
        ),
        (["--output_dir=x", "--do_predict", "--predict_file=p", "--metric=squad_v2"], "--version_2_with_negative"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(flags, message, capsys):
    from tasks.squad.program import main

    with pytest.raises(SystemExit) as stop:
        main(flags)
    printed = capsys.readouterr().err
    assert stop.value.code == 2
    assert printed.count("\n") == 1
    assert printed.startswith("bert-squad: error: ")
    assert message in printed


def test_resume_of_another_run_goes_on_with_its_own_progress(trained, docs, tmp_path):
    """--resume PATH starts from PATH; stopped and given again, the command takes its own newest checkpoint."""
    import shutil

    from tasks.origin import newest_checkpoint

    config = config_of(docs, tmp_path / "new", resume=str(trained[0]))
    assert newest_checkpoint(config, print).path == trained[0] / "checkpoints" / f"rows-{64 * STEPS:012d}"
    own = tmp_path / "new" / "checkpoints" / f"rows-{64 * SAVE_EVERY:012d}"
    shutil.copytree(trained[0] / "checkpoints" / own.name, own)
    assert newest_checkpoint(config, print).path == own
    with pytest.raises(ValueError, match=r"--resume .*nowhere: no intact checkpoint there"):
        newest_checkpoint(config_of(docs, tmp_path / "other", resume=f"{tmp_path}/nowhere"), print)


@pytest.mark.slow
def test_bench_compare_measures_us_and_names_who_is_absent(trained, docs, environment, tmp_path):
    flags = (
        f"--model={trained[0]}/model", f"--train_file={docs}/train.json", "--max_train_examples=100",
        "--max_seq_length=96", "--batch_size=8", "--num_ranks=1", "--num_warmup=1", "--num_steps=2", "--repeat=1",
        "--precision=fp32", "--rival_python=/bin/false", f"--output_file={tmp_path}/figures",
    )  # fmt: skip
    printed = run([sys.executable, "-m", "benchmarks.compare", *flags], environment)
    assert printed.count("left out: /bin/false has no ") == 5
    figures = json.loads((tmp_path / "figures").read_text())
    assert list(figures) == ["ringbert", "sums"]
    assert "all-reduce: left out: it needs several ranks" in printed
    assert figures["ringbert"]["windows_per_s"] > 0
    assert figures["ringbert"]["ratio"] == 1


def test_rivals_see_the_windows_that_we_train_on(trained, environment):
    from benchmarks.rivals import batches
    from distributed.order import Order
    from distributed.rows import Rows

    windows = max(
        Path(environment["RINGBERT_CACHE"]).glob("*/windows.arrow"), key=lambda path: path.stat().st_size
    )
    rows = Rows.open(windows)
    settings = {"windows": str(windows), "batch_size": 8, "num_warmup": 1, "num_steps": 2, "seed": 42}
    settings |= {"max_seq_length": 120}
    padded = list(batches(settings, by_length=False, padded=True))
    order = Order(len(rows), 42).rows_at(0, 24)
    assert len(padded) == 3
    for number, batch in enumerate(padded):
        assert batch["input_ids"].shape == (8, 120)
        mine = rows.take(order[8 * number : 8 * number + 8])
        assert batch["start_position"].tolist() == mine["start_position"].tolist()
        np.testing.assert_array_equal(batch["input_ids"][batch["example_ids"] == 1], mine["input_ids"][0])
    grouped = [batch["example_ids"].sum(1) for batch in batches(settings, by_length=True, padded=False)]
    spread = max(int(lengths.max() - lengths.min()) for lengths in grouped)
    assert spread < rows.lengths("input_ids").max() - rows.lengths("input_ids").min()
