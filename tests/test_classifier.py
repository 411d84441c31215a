"""bert-classifier from its flags to its files, on a tiny model and generated texts; scikit-learn is the referee.

One launch over two ranks trains on files of the user's. Most other tests run the program in this process, on one
rank: what `start.run_on_ranks` does, without MPI.
"""

import csv
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import texts
from real_data import real
from texts import KINDS

from ringbert.errors import InputError
from tasks import flags
from tasks.classifier import program as classifier
from tasks.classifier.tasks import TASKS

ROOT = Path(__file__).resolve().parent.parent
STEPS = 40
LEARN = ("--do_train", "--learning_rate=1e-3", "--lr_scaling=none", "--global_batch_size=32", "--log_steps=5")


def write_rows(path: Path, header: list[str], rows: list, delimiter: str = "\t") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Vocabulary and configuration, train.csv, dev.tsv, test.jsonl; the caches of this file's runs are new."""
    folder = tmp_path_factory.mktemp("data")
    texts.write_model(folder)
    columns = ["body", "more", "kind"]
    write_rows(folder / "train.csv", columns, [(e.first, e.second, e.kind) for e in TRAIN], ",")
    write_rows(folder / "dev.tsv", columns, [(e.first, e.second, e.kind) for e in DEV])
    lines = [json.dumps({"more": e.second, "body": e.first}) for e in TEST]
    (folder / "test.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield folder


TRAIN, DEV, TEST = texts.make_examples(960, 1), texts.make_examples(90, 2), texts.make_examples(50, 3)


def model_flags(data: Path) -> list[str]:
    return [f"--vocab_file={data}/vocab.txt", f"--bert_config_file={data}/bert_config.json", "--max_seq_length=32"]


def own_files(data: Path) -> list[str]:
    return [
        *(f"--train_file={data}/train.csv", f"--dev_file={data}/dev.tsv", f"--predict_file={data}/test.jsonl"),
        *("--text_column=body", "--text_pair_column=more", "--label_column=kind"),
    ]


def classify(output_dir: Path, *given: str) -> dict[str, float] | None:
    """The program in this process. An error of the user's ends it as from the shell: one line, SystemExit."""
    from distributed.collectives.local import LocalCollectives
    from distributed.run import Run
    from distributed.world import World
    from tasks.job import Job

    config = flags.parse(
        classifier.Config, [*given, f"--output_dir={output_dir}"], prog="bert-classifier", description=""
    )
    with World(program="bert-classifier", user_errors=(InputError,)) as world:
        run = Run.of(config.output_dir, world)
        function = classifier.run_classifier if config.seeds is None else classifier.run_seeds
        scores = function(config, Job(world, LocalCollectives(), run))
        run.close()
    return scores


def command(output_dir: Path, *given: str, ranks: int = 1) -> list[str]:
    """The same as a command line, under bert-launch when there are several ranks."""
    program = [sys.executable, "-m", "tasks.classifier", *given, f"--output_dir={output_dir}"]
    return program if ranks == 1 else [sys.executable, "-m", "distributed.launch", f"-np={ranks}", "--", *program]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}


def shell(arguments: list[str], status: int = 0) -> str:
    """Runs a command; its standard error."""
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr


def scores_in(folder: Path) -> dict[str, float]:
    """Without what only Google's form of the file has."""
    lines = (folder / "eval_results.txt").read_text().splitlines()
    found = {name: float(value) for name, value in (line.split(" = ") for line in lines)}
    assert found.pop("loss") == found["eval_loss"]
    assert found.pop("global_step", 1) > 0
    return found


def table_in(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


def metrics_in(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights_in(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


# -- files of the user's ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory) -> tuple[Path, str]:
    """The folder of a run on two ranks, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    arguments = [*model_flags(data), *own_files(data), *LEARN, f"--num_train_steps={STEPS}"]
    return folder, shell(command(folder, *arguments, "--do_eval", "--do_predict", ranks=2))


def test_a_run_leaves_its_files(trained):
    folder, printed = trained
    assert printed.count("plan: 960 rows, 2 ranks") == 1
    scores = scores_in(folder)
    assert set(scores) == {"eval_accuracy", "eval_mcc", "eval_loss"}
    assert json.loads((folder / "result.json").read_text())["scores"] == scores
    assert scores["eval_accuracy"] > 0.8  # chance: 0.33; measured 0.93
    probabilities = np.loadtxt(folder / "test_results.tsv", delimiter="\t")
    assert probabilities.shape == (len(TEST), len(KINDS))
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)  # a softmax in float64
    header, *rows = table_in(folder / "predictions.tsv")
    assert header == ["index", "prediction"]
    assert [index for index, _ in rows] == [str(number) for number in range(len(TEST))]
    assert [label for _, label in rows] == [sorted(KINDS)[number] for number in probabilities.argmax(1)]
    right = [label == example.kind for (_, label), example in zip(rows, TEST, strict=True)]
    assert np.mean(right) > 0.8
    losses = [line["loss"] for line in metrics_in(folder)]
    assert np.mean(losses[-2:]) < 0.5 * losses[0]


def test_the_model_is_one_of_transformers(trained):
    from safetensors.numpy import load_file
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(trained[0] / "model")
    assert config.architectures == ["BertForSequenceClassification"]
    assert config.id2label == dict(enumerate(sorted(KINDS)))
    assert config.label2id == {label: number for number, label in enumerate(sorted(KINDS))}
    assert config.problem_type == "single_label_classification"
    assert load_file(trained[0] / "model" / "model.safetensors")["classifier.weight"].shape == (3, 64)
    ids = AutoTokenizer.from_pretrained(trained[0] / "model")("bear", "axe").input_ids
    assert len(ids) == 5


def test_evaluation_alone_gives_the_same_bits(trained, data, tmp_path):
    """Two ranks scored in the fixture; here one does, from output_dir and from model/."""
    folder = tmp_path / "run"
    shutil.copytree(trained[0], folder)
    expected = scores_in(folder), (folder / "test_results.tsv").read_bytes()
    (folder / "eval_results.txt").unlink()
    classify(folder, *model_flags(data), *own_files(data), "--do_eval", "--do_predict")
    assert (scores_in(folder), (folder / "test_results.tsv").read_bytes()) == expected
    classify(tmp_path / "new", f"--model={trained[0]}/model", "--max_seq_length=32", *own_files(data), "--do_eval")
    assert scores_in(tmp_path / "new") == expected[0]


def test_scores_are_scikit_learns(trained, data, tmp_path):
    """The labelled dev set given as --predict_file: its probabilities give its scores."""
    from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef

    model = [f"--model={trained[0]}/model", "--max_seq_length=32"]
    found = classify(tmp_path, *model, *own_files(data), f"--predict_file={data}/dev.tsv", "--do_predict")
    probabilities = np.loadtxt(tmp_path / "test_results.tsv", delimiter="\t")
    labels = np.array([sorted(KINDS).index(example.kind) for example in DEV])
    expected = scores_in(trained[0])
    assert accuracy_score(labels, probabilities.argmax(1)) == expected["eval_accuracy"]
    assert matthews_corrcoef(labels, probabilities.argmax(1)) == pytest.approx(expected["eval_mcc"], rel=1e-12)
    # Both in float64, one from written probabilities, one from scores.
    assert log_loss(labels, probabilities) == pytest.approx(expected["eval_loss"], rel=1e-9)
    assert found == {name.replace("eval", "predict"): value for name, value in expected.items()}
    assert not (tmp_path / "eval_results.txt").exists()


@pytest.mark.slow
def test_three_ranks_evaluate_to_the_same_bits(trained, data, tmp_path):
    arguments = [
        f"--model={trained[0]}/model",
        "--max_seq_length=32",
        *own_files(data),
        "--do_eval",
        "--do_predict",
    ]
    shell(command(tmp_path, *arguments, ranks=3))
    assert scores_in(tmp_path) == scores_in(trained[0])
    for name in ("test_results.tsv", "predictions.tsv"):
        assert (tmp_path / name).read_bytes() == (trained[0] / name).read_bytes()


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_bits(data, tmp_path):
    """SIGKILL after the second evaluation; the same command ends with the weights and history of a whole run."""
    given = [
        *model_flags(data), *own_files(data), *LEARN, "--num_train_steps=100", "--eval_steps=10",
        "--load_best_model_at_end", "--keep_checkpoints=2",
    ]  # fmt: skip
    shell(command(tmp_path / "whole", *given))
    killed = tmp_path / "killed"
    job = subprocess.Popen(command(killed, *given), env=environment(), cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (killed / "checkpoints" / f"rows-{32 * 20:012d}").exists():
            assert time.monotonic() < deadline
            assert job.poll() is None
            time.sleep(0.02)
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    assert not (killed / "result.json").exists()
    assert not (killed / "model").exists()
    printed = shell(command(killed, *given))
    assert f"checkpoint {killed}/checkpoints/rows-" in printed
    newest = f"checkpoints/rows-{32 * 100:012d}"
    for folder in ("model", newest):
        assert weights_in(killed / folder) == weights_in(tmp_path / "whole" / folder)
    states = [json.loads((run / newest / "state.json").read_text()) for run in (killed, tmp_path / "whole")]
    assert states[0] == states[1]
    assert len(states[0]["evaluations"]) == 10
    steps = [line["step"] for line in metrics_in(killed) if "loss" in line]
    assert steps == sorted(set(steps))


# -- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dev.tsv", "body\tmore\tkind\ncat\tdog\tanimal\ncat\taxe\tplant\n", "line 3: label 'plant' is none of"),
        ("dev.tsv", "body\tmore\ncat\tdog\n", "no column 'kind', only body, more"),
        ("train.csv", "body,kind\ncat,animal\n", "no column 'more', only body, kind"),
        ("train.csv", "body,more,kind\ncat,dog,animal\ncat,dog\n", "line 3 has 2 columns, needed are 3"),
        ("train.csv", "", "the file is empty"),
        ("train.csv", "body,more,kind\n", "the file has no row after its header"),
        ("train.csv", "body,more,kind\ncat,dog,\n", "line 2: kind is '', needed is a label"),
        ("test.jsonl", '{"body": "cat"\n', "line 1 is not JSON"),
        ("test.jsonl", '{"body": "cat", "more": "dog", "kind": "plant"}\n', "label 'plant' is none of animal"),
        ("test.jsonl", None, "no such file"),
        ("dev.tsv", b"body\tmore\tkind\ncat\td\xffg\tanimal\n", "line 2 is not UTF-8"),
    ],
)  # fmt: skip
def test_bad_files_are_one_line(data, tmp_path, capsys, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    flag = {"train.csv": "train_file", "dev.tsv": "dev_file", "test.jsonl": "predict_file"}[name]
    given = [*model_flags(data), *own_files(data), f"--{flag}={path}", *LEARN, "--do_eval", "--do_predict"]
    with pytest.raises(SystemExit) as stop:
        classify(tmp_path / "out", *given)
    assert stop.value.code == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert errors[0].startswith("bert-classifier: error: ")
    assert str(path) in errors[0]
    assert message in errors[0]
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.slow
def test_bad_input_from_the_shell(trained, data, tmp_path):
    """Of all that the program prints the last line is the error; a finished run's files stay."""
    folder, bad = tmp_path / "run", tmp_path / "dev.tsv"
    shutil.copytree(trained[0], folder)
    write_rows(bad, ["body", "more", "kind"], [("cat", "dog", "plant")])
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    printed = shell(command(folder, *model_flags(data), *own_files(data), f"--dev_file={bad}", "--do_eval"), 1)
    told = f"bert-classifier: error: {bad}: line 2: label 'plant' is none of animal, colour, tool"
    assert printed.splitlines()[-1] == told
    assert "Traceback" not in printed
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--output_dir=x"], "nothing to do: give --do_train"),
        (["--do_train"], "--output_dir"),
        (["--output_dir=x", "--do_train"], "--do_train needs --train_file"),
        (["--output_dir=x", "--do_train", "--train_file=t", "--eval_steps=5"], "needs --dev_file"),
        (["--output_dir=x", "--do_predict"], "--do_predict needs --predict_file"),
        (["--output_dir=x", "--do_eval", "--task_name=MRPC"], "--task_name needs --data_dir"),
        (["--output_dir=x", "--do_eval", "--task_name=MRPC", "--data_dir=d", "--dev_file=f"], "exclude each"),
        (["--output_dir=x", "--do_eval", "--dev_file=f", "--from_hub"], "--from_hub needs --task_name"),
        (["--output_dir=x", "--do_eval", "--task_name=MRPC", "--data_dir=d", "--regression"], "--regression is"),
        (["--output_dir=x", "--do_eval", "--dev_file=f", "--max_seq_length=3"], "--max_seq_length is 3"),
        (["--output_dir=x", "--do_eval", "--dev_file=f", "--eval_batch_size=0"], "--eval_batch_size is 0"),
        (["--output_dir=x", "--do_eval", "--dev_file=f", "--early_stopping_patience=0"], "patience is 0"),
        (["--output_dir=x", "--do_eval", "--dev_file=f", "--seeds=1,two"], "--seeds 1,two"),
        (["--output_dir=x", "--do_eval", "--dev_file=f", "--seeds=1,2,01"], "--seeds 1,2,01: different numbers"),
        (["--output_dir=x", "--do_eval", "--dev_fil=f"], "did you mean --dev_file"),
    ],
)  # fmt: skip
def test_flags_that_do_not_fit_are_one_line(given, message, capsys):
    with pytest.raises(SystemExit) as stop:
        classifier.main(given)
    printed = capsys.readouterr().err
    assert stop.value.code == 2
    assert printed.count("\n") == 1
    assert printed.startswith("bert-classifier: error: ")
    assert message in printed


# -- named tasks --------------------------------------------------------------------------------------------------


def glue_row(columns: dict[str, object], header: list[str]) -> list[object]:
    """A row of a GLUE file: the columns that matter, filling elsewhere."""
    return [columns.get(name, "-") for name in header]


def quick(data: Path, glue: Path, task: str, steps: int = 4) -> list[str]:
    return [*model_flags(data), f"--data_dir={glue}", f"--task_name={task}", *LEARN, f"--num_train_steps={steps}"]


def test_mrpc(data, tmp_path):
    """A folder as GLUE lays it out; scores by scikit-learn from test_results.tsv; labels in Google's order."""
    from sklearn.metrics import accuracy_score, f1_score

    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    for name, examples in (("train", TRAIN[:64]), ("dev", DEV[:24])):
        rows = [glue_row({"Quality": int(e.kind == "tool"), "#1 String": e.first, "#2 String": e.second}, header)
                for e in examples]  # fmt: skip
        write_rows(tmp_path / f"glue/MRPC/{name}.tsv", header, rows)
    header = ["index", *header[1:]]
    rows = [[3 * n, n, n, e.first, e.second] for n, e in enumerate(DEV[:24])]  # the dev set, without its labels
    write_rows(tmp_path / "glue/MRPC/test.tsv", header, rows)
    given = [*quick(data, tmp_path / "glue", "MRPC"), "--eval_steps=auto"]
    scores = classify(tmp_path / "out", *given, "--do_eval", "--do_predict")
    measured = [line for line in metrics_in(tmp_path / "out") if "eval_f1" in line]
    assert [line["step"] for line in measured] == [4]  # 24 examples once are more than 2 % of 4 steps
    assert {name: measured[0][name] for name in scores} == scores
    probabilities = np.loadtxt(tmp_path / "out/test_results.tsv", delimiter="\t")
    labels, predicted = np.array([int(e.kind == "tool") for e in DEV[:24]]), probabilities.argmax(1)
    accuracy, f1 = accuracy_score(labels, predicted), f1_score(labels, predicted, zero_division=0.0)
    loss = scores.pop("eval_loss")
    assert scores == {"eval_accuracy": accuracy, "eval_f1": f1, "eval_acc_and_f1": (accuracy + f1) / 2}
    assert loss == pytest.approx(-np.log(probabilities[np.arange(24), labels]).mean(), rel=1e-9)
    submitted = table_in(tmp_path / "out/MRPC.tsv")
    assert submitted == [["index", "prediction"], *([str(3 * n), str(p)] for n, p in enumerate(predicted))]
    assert json.loads((tmp_path / "out/model/config.json").read_text())["id2label"] == {"0": "0", "1": "1"}


NLI = dict(zip(KINDS, TASKS["mnli"].labels, strict=True))


@pytest.fixture(scope="module")
def mnli(data, tmp_path_factory) -> tuple[Path, Path, dict[str, float]]:
    """GLUE folder of MNLI and the diagnostic set, the folder of a run on it, and its scores."""
    folder = tmp_path_factory.mktemp("mnli")
    header = ["index", "pairID", "sentence1", "sentence2", "label1", "gold_label"]
    dev, other = DEV[:30], DEV[30:70]
    for name, examples in (("train", TRAIN), ("dev_matched", dev), ("dev_mismatched", other)):
        rows = [glue_row({"sentence1": e.first, "sentence2": e.second, "gold_label": NLI[e.kind]}, header)
                for e in examples]  # fmt: skip
        write_rows(folder / f"glue/MNLI/{name}.tsv", header, rows)
    for name, examples in (
        ("MNLI/test_matched", dev),
        ("MNLI/test_mismatched", other),
        ("diagnostic/diagnostic", DEV),
    ):
        rows = [[n + 100, e.first, e.second] for n, e in enumerate(examples)]
        write_rows(folder / f"glue/{name}.tsv", ["index", "sentence1", "sentence2"], rows)
    given = [*quick(data, folder / "glue", "mnli", 16), "--eval_steps=8", "--load_best_model_at_end"]
    return folder / "glue", folder / "out", classify(folder / "out", *given, "--do_eval", "--do_predict")


def test_mnli_scores_and_submits_both_sets(mnli):
    _, out, scores = mnli
    names = [f"eval{suffix}_{name}" for suffix in ("", "_mismatched") for name in ("accuracy", "loss")]
    assert sorted(scores) == sorted(names)
    sets = (("", "MNLI-m.tsv", DEV[:30]), ("_mismatched", "MNLI-mm.tsv", DEV[30:70]))
    for suffix, submission, examples in sets:
        probabilities = np.loadtxt(out / f"test_results{suffix}.tsv", delimiter="\t")
        labels = np.array([TASKS["mnli"].labels.index(NLI[e.kind]) for e in examples])
        assert scores[f"eval{suffix}_accuracy"] == np.mean(probabilities.argmax(1) == labels)
        loss = -np.log(probabilities[np.arange(len(labels)), labels]).mean()
        assert scores[f"eval{suffix}_loss"] == pytest.approx(loss, rel=1e-9)
        header, *rows = table_in(out / submission)
        assert header == ["index", "prediction"]
        named = ("contradiction", "entailment", "neutral")  # the order of run_classifier.py
        assert rows == [[str(n + 100), named[p]] for n, p in enumerate(probabilities.argmax(1))]
    assert scores["eval_accuracy"] != scores["eval_mismatched_accuracy"]  # the two are told apart


def test_the_diagnostic_set_is_predicted_by_an_mnli_model(mnli, tmp_path, capsys):
    glue, out, _ = mnli
    given = [f"--model={out}/model", "--max_seq_length=32", "--task_name=ax", f"--data_dir={glue}"]
    assert classify(tmp_path / "ax", *given, "--do_predict") == {}
    rows = table_in(tmp_path / "ax/AX.tsv")[1:]
    known = table_in(out / "MNLI-m.tsv")[1:]  # its first 30 rows are the diagnostic set's
    assert rows[:30] == known
    assert len(rows) == len(DEV)
    for flag in ("--do_eval", "--do_train"):
        with pytest.raises(SystemExit) as stop:
            classify(tmp_path / "none", *given, flag)
        assert stop.value.code == 1
        assert f"--task_name ax has no {'dev' if flag == '--do_eval' else 'train'} set" in capsys.readouterr().err


@pytest.mark.slow
def test_sts_b(data, tmp_path):
    """Regression: scipy referees; the submission is clipped to 0…5, test_results.tsv is not."""
    from scipy.stats import pearsonr, spearmanr

    header = ["index", "genre", "sentence1", "sentence2", "score"]
    number = {"animal": -9.5, "colour": 2.5, "tool": 14.0}  # beyond the range: what is learnt from them is clipped
    for name, examples in (("train", TRAIN), ("dev", DEV)):
        rows = [glue_row({"sentence1": e.first, "sentence2": e.second, "score": number[e.kind]}, header)
                for e in examples]  # fmt: skip
        write_rows(tmp_path / f"STS-B/{name}.tsv", header, rows)
    write_rows(tmp_path / "STS-B/test.tsv", header[:4], [[n, "-", e.first, e.second] for n, e in enumerate(DEV)])
    given = quick(data, tmp_path / "STS-B", "stsb", STEPS)  # the task's own folder will do, too
    scores = classify(tmp_path / "out", *given, "--do_eval", "--do_predict")
    predicted = np.loadtxt(tmp_path / "out/test_results.tsv", delimiter="\t")
    labels = np.array([number[e.kind] for e in DEV])
    pearson, spearman = pearsonr(labels, predicted).statistic, spearmanr(labels, predicted).statistic
    expected = {
        "eval_pearson": pearson,
        "eval_spearmanr": spearman,
        "eval_corr": (pearson + spearman) / 2,
        "eval_loss": np.mean(np.square(predicted - labels)),
    }
    assert scores == pytest.approx(expected, rel=1e-9)
    assert predicted.min() < 0  # so that the clipping is seen
    assert predicted.max() > 5
    submitted = [float(prediction) for _, prediction in table_in(tmp_path / "out/STS-B.tsv")[1:]]
    np.testing.assert_allclose(submitted, predicted.clip(0, 5), atol=0.0005 + 1e-9)  # three decimals
    config = json.loads((tmp_path / "out/model/config.json").read_text())
    assert config["problem_type"] == "regression"
    assert list(config["id2label"]) == ["0"]


@pytest.mark.slow
def test_real_mrpc(tmp_path):
    glue, model = real("glue_data/MRPC").parent, real("minilm")
    given = [f"--data_dir={glue}", "--task_name=MRPC", f"--model={model}", "--max_train_examples=64"]
    limits = ["--max_predict_examples=64", "--num_train_epochs=1", "--max_seq_length=64"]
    scores = classify(tmp_path, *given, *limits, "--do_train", "--do_eval", "--do_predict")
    assert all(math.isfinite(value) for value in scores.values())
    assert set(scores) == {"eval_accuracy", "eval_f1", "eval_acc_and_f1", "eval_loss"}
    submitted = table_in(tmp_path / "MRPC.tsv")
    assert [index for index, _ in submitted[1:]] == [str(number) for number in range(64)]
    assert {label for _, label in submitted[1:]} <= {"0", "1"}


# -- labels -------------------------------------------------------------------------------------------------------


def test_predictions_are_in_the_order_of_the_checkpoint(data, mnli, tmp_path):
    """An MNLI model whose outputs stand in another order, and whose id2label says so, predicts the same labels."""
    from safetensors.numpy import load_file, save_file

    glue, out, scores = mnli
    order = [1, 2, 0]
    shutil.copytree(out / "model", tmp_path / "model")
    tensors = load_file(tmp_path / "model/model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = tensors[name][order].copy()
    save_file(tensors, tmp_path / "model/model.safetensors")
    config = json.loads((tmp_path / "model/config.json").read_text())
    names = [TASKS["mnli"].labels[number] for number in order]
    config |= {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    # Flags of Google's form: the configuration file says nothing of labels, config.json beside the weights does.
    given = [*model_flags(data), f"--init_checkpoint={tmp_path}/model", "--task_name=mnli", f"--data_dir={glue}"]
    found = classify(tmp_path / "out", *given, "--do_eval", "--do_predict")
    assert (tmp_path / "out/MNLI-m.tsv").read_bytes() == (out / "MNLI-m.tsv").read_bytes()
    mine, theirs = (np.loadtxt(folder / "test_results.tsv", delimiter="\t") for folder in (tmp_path / "out", out))
    # Another order of outputs rounds the last product and the sum of the softmax differently.
    np.testing.assert_allclose(mine, theirs[:, order], rtol=1e-5)
    assert found == pytest.approx(scores, rel=1e-5)


@pytest.mark.parametrize(
    "others",
    [
        ("one", "two"),
        ("one", "two", "three"),
    ],
)
def test_a_head_that_starts_anew_has_initial_values(trained, data, tmp_path, others):
    """With a rate of 0 the saved head is the one that training started from: not the old one, as wide or not."""
    from safetensors.numpy import load_file

    write_rows(tmp_path / "train.csv", ["body", "kind"], [(e.first, others[n % len(others)])
               for n, e in enumerate(TRAIN[:32])], ",")  # fmt: skip
    given = [f"--model={trained[0]}/model", "--max_seq_length=32", f"--train_file={tmp_path}/train.csv"]
    columns = ["--text_column=body", "--label_column=kind"]
    classify(tmp_path / "out", *given, *columns, *LEARN, "--learning_rate=0", "--num_train_steps=1")
    old, new = (load_file(folder / "model/model.safetensors") for folder in (trained[0], tmp_path / "out"))
    np.testing.assert_array_equal(old["bert.pooler.dense.weight"], new["bert.pooler.dense.weight"])
    assert new["classifier.weight"].shape == (len(others), 64)
    assert not new["classifier.bias"].any()
    assert not np.array_equal(old["classifier.weight"], new["classifier.weight"])


# -- loss and class weights ---------------------------------------------------------------------------------------


def test_class_weights_reach_the_training(data, tmp_path):
    """With nearly all weight on one label that label alone is learnt: everything is called so."""
    given = [*model_flags(data), *own_files(data), *LEARN, "--num_train_steps=20", "--do_predict"]
    classify(tmp_path, *given, "--class_weights=animal=0.0001,colour=1000,tool=0.0001")
    assert {label for _, label in table_in(tmp_path / "predictions.tsv")[1:]} == {"colour"}


# -- seeds --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_seeds_give_mean_and_deviation(data, tmp_path):
    given = [*model_flags(data), *own_files(data), *LEARN, "--num_train_steps=10", "--do_eval"]
    classify(tmp_path / "both", *given, "--seeds=1,2")
    runs = [scores_in(tmp_path / "both" / f"seed-{seed}") for seed in (1, 2)]
    assert runs[0] != runs[1]
    result = json.loads((tmp_path / "both/result.json").read_text())
    assert result["seeds"] == {"1": runs[0], "2": runs[1]}
    written = dict(line.split(" = ") for line in (tmp_path / "both/eval_results.txt").read_text().splitlines())
    assert set(written) == set(runs[0])
    for name, told in written.items():
        values = [run[name] for run in runs]
        mean, deviation = statistics.mean(values), statistics.stdev(values)
        assert told == f"{mean:.4f} ± {deviation:.4f} (2 seeds)"
        assert deviation == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
        assert result["scores"][name] == pytest.approx(mean)
        assert result["standard_deviations"][name] == pytest.approx(deviation)
    alone = classify(tmp_path / "alone", *given, "--seed=2")
    assert alone == runs[1]
    assert weights_in(tmp_path / "alone/model") == weights_in(tmp_path / "both/seed-2/model")


# -- the best model, and stopping early ---------------------------------------------------------------------------


def test_the_best_model_is_kept_and_training_stops(data, tmp_path, capsys):
    """Trained on wrong labels the dev score falls: the best evaluation is an early one, and training stops."""
    wrong = dict(zip(KINDS, (*KINDS[1:], KINDS[0]), strict=True))
    columns = ["body", "more", "kind"]
    write_rows(tmp_path / "train.csv", columns, [(e.first, e.second, wrong[e.kind]) for e in TRAIN], ",")
    out = tmp_path / "out"
    given = [
        *model_flags(data), *own_files(data), f"--train_file={tmp_path}/train.csv", *LEARN, "--num_train_steps=60",
        "--eval_steps=4", "--early_stopping_patience=3", "--keep_checkpoints=1", "--do_eval",
    ]  # fmt: skip
    scores = classify(out, *given)
    measured = {line["step"]: line["eval_accuracy"] for line in metrics_in(out) if "eval_accuracy" in line}
    best = max(measured, key=lambda step: (measured[step], -step))
    last = max(measured)
    assert best + 3 * 4 == last < 60
    assert list(measured) == list(range(4, last + 1, 4))
    assert max(line["step"] for line in metrics_in(out)) == last  # no step was trained after it
    assert f"stopped after step {last}: no better eval_accuracy in 3 evaluations" in capsys.readouterr().err
    checkpoints = {int(path.name.removeprefix("rows-")) // 32: path for path in (out / "checkpoints").iterdir()}
    assert sorted(checkpoints) == [best, last]  # one is kept, and the best
    assert weights_in(out / "model") == weights_in(checkpoints[best])
    assert weights_in(out / "model") != weights_in(checkpoints[last])
    assert scores["eval_accuracy"] == measured[best] > measured[last]
    state = json.loads((checkpoints[last] / "state.json").read_text())
    assert state["evaluations"] == [[32 * step, value] for step, value in measured.items()]

    def files() -> dict[Path, bytes]:
        """All but those that tell of the last command."""
        told = ("result.json", "run.json")
        return {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name not in told}

    before = files()
    assert classify(out, *given) == scores  # the same command does not train on
    assert (
        classify(out, *model_flags(data), *own_files(data), "--do_eval") == scores
    )  # nor is the last model scored
    assert before == files()
