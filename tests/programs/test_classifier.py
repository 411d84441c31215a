"""bert-classifier on files of the user's, from its flags to its files, on a tiny model; scikit-learn referees."""

import json
import math
import os
import shutil
import statistics
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from harness import classifier_runs as own
from harness import program_runs as programs
from harness.classifier_runs import TEST, classify, scores_in, table_in, write_rows
from harness.mpi import ENVIRONMENT
from harness.program_runs import files_in, metrics_in, refusal, weights_in
from harness.texts import KINDS
from safetensors.numpy import load_file
from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef
from transformers import AutoConfig, AutoTokenizer

STEPS = 40
PREDICTED = ("test_results.tsv", "predictions.tsv", "eval_results.txt")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return own.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def flags(data):
    """Those of a training, without its length."""
    return (*own.model_flags(data), *own.own_files(data), *own.LEARN)


@pytest.fixture(scope="module")
def trained(flags, tmp_path_factory):
    """A run; scores that it returned."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, classify(folder, *flags, f"--num_train_steps={STEPS}", "--do_eval", "--do_predict")


@pytest.fixture
def model(trained):
    return (f"--model={trained[0]}/model", "--max_seq_length=32")


def test_a_run_learns_and_leaves_its_files(trained):
    folder, returned = trained
    scores = scores_in(folder)
    assert scores == returned == json.loads((folder / "result.json").read_text())["scores"]
    assert set(scores) == {"eval_accuracy", "eval_mcc", "eval_loss"}
    assert scores["eval_accuracy"] > 0.8  # chance: 0.33; measured 0.93
    probabilities = np.loadtxt(folder / "test_results.tsv", delimiter="\t")
    assert probabilities.shape == (len(TEST), len(KINDS))
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)  # a softmax in float64
    header, *rows = table_in(folder / "predictions.tsv")
    assert header == ["index", "prediction"]
    assert rows == [[str(row), sorted(KINDS)[best]] for row, best in enumerate(probabilities.argmax(1))]
    assert np.mean([label == example.kind for (_, label), example in zip(rows, TEST, strict=True)]) > 0.8
    losses = [line["loss"] for line in metrics_in(folder)]
    assert np.mean(losses[-2:]) < 0.5 * losses[0]


def test_the_model_is_one_of_transformers(trained):
    config = AutoConfig.from_pretrained(trained[0] / "model")
    assert config.architectures == ["BertForSequenceClassification"]
    assert config.id2label == dict(enumerate(sorted(KINDS)))
    assert config.label2id == {label: number for number, label in enumerate(sorted(KINDS))}
    assert config.problem_type == "single_label_classification"
    assert load_file(trained[0] / "model/model.safetensors")["classifier.weight"].shape == (3, 64)
    assert len(AutoTokenizer.from_pretrained(trained[0] / "model")("bear", "axe").input_ids) == 5


def test_evaluation_alone_changes_nothing_that_the_training_wrote(trained, data, tmp_path):
    folder, scores = shutil.copytree(trained[0], tmp_path / "run"), trained[1]
    expected = [(folder / name).read_bytes() for name in PREDICTED[:2]]
    for flag, found in (("--do_eval", scores), ("--do_predict", {})):
        assert classify(folder, *own.model_flags(data), *own.own_files(data), flag) == found
        assert json.loads((folder / "predict_result.json").read_text())["scores"] == found
    assert scores_in(folder) == scores
    assert [(folder / name).read_bytes() for name in PREDICTED[:2]] == expected
    assert files_in(folder, *PREDICTED, "predict_result.json") == files_in(trained[0], *PREDICTED)


def test_scores_are_scikit_learns_whatever_the_form_of_the_file(trained, model, data, tmp_path):
    """The labelled dev set given as --predict_file: its probabilities give its scores. Three rows in a batch."""
    values = ([e.first for e in own.DEV], [e.second for e in own.DEV], [e.kind for e in own.DEV])
    columns = dict(zip(own.COLUMNS, values, strict=True))
    pa.parquet.write_table(pa.table(columns), tmp_path / "dev.parquet")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_rows(tmp_path / "dev.csv", own.COLUMNS, [list(row.values()) for row in rows], ",")
    for name in ("dev.csv", "dev.jsonl", "dev.parquet"):
        file, out = (f"--predict_file={tmp_path}/{name}", "--predict_batch_size=3"), tmp_path / f"{name}.out"
        scores = classify(out, *model, *own.own_files(data), *file, "--do_predict")
        probabilities = np.loadtxt(out / "test_results.tsv", delimiter="\t")
        labels = np.array([sorted(KINDS).index(example.kind) for example in own.DEV])
        assert accuracy_score(labels, probabilities.argmax(1)) == scores["predict_accuracy"]
        correlation = matthews_corrcoef(labels, probabilities.argmax(1))
        assert scores["predict_mcc"] == pytest.approx(correlation, rel=1e-12)
        # Both in float64, one from written probabilities, one from scores.
        assert log_loss(labels, probabilities) == pytest.approx(scores["predict_loss"], rel=1e-9)
        expected = {name.replace("eval", "predict"): value for name, value in trained[1].items()}
        assert scores == pytest.approx(expected, rel=1e-5)  # batches of 32 rows there: float32 rounds differently


@pytest.mark.slow
def test_a_head_for_other_labels_starts_anew(trained, model, tmp_path):
    """With a rate of 0 the saved head is the one that training started from."""
    rows = [(e.first, ("one", "two")[n % 2]) for n, e in enumerate(own.TRAIN[:32])]
    write_rows(tmp_path / "train.csv", ["body", "kind"], rows, ",")
    file = (f"--train_file={tmp_path}/train.csv", "--text_column=body", "--label_column=kind")
    classify(tmp_path / "out", *model, *file, *own.LEARN, "--learning_rate=0", "--num_train_steps=1")
    old, new = (load_file(folder / "model/model.safetensors") for folder in (trained[0], tmp_path / "out"))
    np.testing.assert_array_equal(old["bert.pooler.dense.weight"], new["bert.pooler.dense.weight"])
    assert new["classifier.weight"].shape == (2, 64)
    assert not new["classifier.bias"].any()


@pytest.mark.slow
def test_class_weights_reach_the_training(flags, tmp_path):
    """With nearly all weight on one label that label alone is learnt: everything is called so."""
    heavy = "--class_weights=animal=0.0001,colour=1000,tool=0.0001"
    classify(tmp_path, *flags, "--num_train_steps=20", "--do_predict", heavy)
    assert {label for _, label in table_in(tmp_path / "predictions.tsv")[1:]} == {"colour"}


@pytest.mark.slow
def test_seeds_give_mean_and_deviation(flags, tmp_path):
    flags = (*flags, "--num_train_steps=10", "--do_eval")
    classify(tmp_path / "both", *flags, "--seeds=1,2")
    runs = [scores_in(tmp_path / f"both/seed-{seed}") for seed in (1, 2)]
    assert runs[0] != runs[1]
    result = json.loads((tmp_path / "both/result.json").read_text())
    assert result["seeds"] == {"1": runs[0], "2": runs[1]}
    written = dict(line.split(" = ") for line in (tmp_path / "both/eval_results.txt").read_text().splitlines())
    assert set(written) == set(runs[0])
    for name, text in written.items():
        values = [run[name] for run in runs]
        mean, deviation = statistics.mean(values), abs(values[0] - values[1]) / math.sqrt(2)
        assert text == f"{mean:.4f} ± {deviation:.4f} (2 seeds)"
        assert result["scores"][name] == pytest.approx(mean)
        assert result["standard_deviations"][name] == pytest.approx(deviation)
    assert classify(tmp_path / "alone", *flags, "--seed=2") == runs[1]
    assert weights_in(tmp_path / "alone/model") == weights_in(tmp_path / "both/seed-2/model")


@pytest.mark.slow
def test_the_best_model_is_kept_and_training_stops_also_in_two_parts(data, flags, tmp_path):
    """Trained on wrong labels the dev score falls: the best evaluation is an early one. A run that is broken off
    has its history of evaluations from the checkpoint."""
    wrong = dict(zip(KINDS, (*KINDS[1:], KINDS[0]), strict=True))
    write_rows(tmp_path / "train.csv", own.COLUMNS, [(e.first, e.second, wrong[e.kind]) for e in own.TRAIN], ",")
    out = tmp_path / "out"
    flags = (*flags, f"--train_file={tmp_path}/train.csv", "--num_train_steps=60", "--eval_steps=4",
             "--early_stopping_patience=3", "--do_eval")  # fmt: skip
    scores = classify(out, *flags, "--keep_checkpoints=2")
    measured = {line["step"]: line["eval_accuracy"] for line in metrics_in(out) if "eval_accuracy" in line}
    best, last = max(measured, key=lambda step: (measured[step], -step)), max(measured)
    assert best + 3 * 4 == last < 60
    assert list(measured) == list(range(4, last + 1, 4))
    assert max(line["step"] for line in metrics_in(out)) == last  # no step was trained after it
    kept = {int(path.name.removeprefix("rows-")) // 32: path for path in (out / "checkpoints").iterdir()}
    assert sorted(kept) == [best, last - 4, last]  # two are kept, and the best
    assert weights_in(out / "model") == weights_in(kept[best]) != weights_in(kept[last])
    assert scores["eval_accuracy"] == measured[best] > measured[last]
    state = json.loads((kept[last] / "state.json").read_text())
    assert state["evaluations"] == [[32 * step, value] for step, value in measured.items()]

    broken = programs.without_newest_checkpoint(out, tmp_path / "broken")
    assert classify(broken, *flags, "--keep_checkpoints=2") == scores
    assert weights_in(broken / "model") == weights_in(out / "model")
    assert json.loads((broken / "checkpoints" / kept[last].name / "state.json").read_text()) == state
    before = files_in(out)
    # The last model's scores are others.
    assert classify(out, *own.model_flags(data), *own.own_files(data), "--do_eval") == scores
    assert files_in(out, "predict_result.json") == before
    classify(out, *flags, "--keep_checkpoints=2")  # the same command does not train on
    assert files_in(out, "result.json", "predict_result.json").items() <= before.items()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "steps"), [("--eval_steps=auto", [12]), ("--load_best_model_at_end", [5, 10, 12])]
)
def test_evaluations_are_as_often_as_asked(flags, tmp_path, asked, steps, capsys):
    """`auto`: once, because more would take too long. Without --eval_steps after each epoch, here of 5 steps."""
    classify(tmp_path, *flags, "--max_train_examples=160", "--num_train_steps=12", asked)
    assert [line["step"] for line in metrics_in(tmp_path) if "eval_accuracy" in line] == steps
    assert f"{len(steps)} in all" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("has_pairs", [False, True])
def test_lines_of_standard_input_are_labelled_as_those_of_a_file(trained, tmp_path, has_pairs):
    """The predictions alone are on standard output. A model trained on pairs takes pairs, with a tab."""
    place = shutil.copytree(trained[0] / "model", tmp_path / "model")
    if not has_pairs:
        (place / "task.json").unlink()
    flags = (f"--model={place}", "--do_predict", "--max_seq_length=32")
    texts = [(e.first, e.second)[: 1 + has_pairs] for e in TEST]
    write_rows(tmp_path / "file.tsv", ["text", "more"][: 1 + has_pairs], texts)
    column = "--text_pair_column=more" if has_pairs else "--text_column=text"
    classify(tmp_path / "file", *flags, column, f"--predict_file={tmp_path}/file.tsv")
    done = subprocess.run(
        programs.command("tasks.classifier", *flags, "--predict_file=-", f"--output_dir={tmp_path}/out"),
        env=os.environ | ENVIRONMENT, input="".join("\t".join(text) + "\r\n" for text in texts),
        capture_output=True, text=True, timeout=200, cwd=programs.ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    labels = table_in(tmp_path / "out/predictions.tsv")
    assert labels == table_in(tmp_path / "file/predictions.tsv")
    found, expected = (np.loadtxt(tmp_path / name / "test_results.tsv") for name in ("out", "file"))
    np.testing.assert_allclose(found, expected, rtol=1e-5)  # the number of threads is another
    printed = [line.split("\t") for line in done.stdout.splitlines()]
    assert [label for label, _ in printed] == [label for _, label in labels[1:]]
    np.testing.assert_allclose([float(value) for _, value in printed], found.max(1), atol=0.5e-4 + 1e-9)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("dev.tsv", "body\tmore\tkind\ncat\tdog\tanimal\ncat\taxe\tplant\n", ["line 3", "plant", "animal"]),
        ("dev.tsv", "body\tmore\ncat\tdog\n", ["kind", "body, more"]),
        ("train.csv", "body,kind\ncat,animal\n", ["more", "body, kind"]),
        ("train.csv", "body,more,kind\ncat,dog,animal\ncat,dog\n", ["line 3", "2", "3"]),
        ("train.csv", "", ["empty"]),
        ("test.jsonl", '{"body": "cat"\n', ["line 1", "JSON"]),
        ("test.jsonl", '{"body": "cat", "more": "dog", "kind": "plant"}\n', ["plant", "animal"]),
        ("dev.tsv", b"body\tmore\tkind\ncat\td\xffg\tanimal\n", ["line 2", "UTF-8"]),
    ],
)  # fmt: skip
def test_bad_files_are_one_line_and_a_finished_run_stays(trained, flags, tmp_path, capsys, name, content, named):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    flag = {"train.csv": "train_file", "dev.tsv": "dev_file", "test.jsonl": "predict_file"}[name]
    before = files_in(trained[0])
    given = (*flags, f"--{flag}={path}", f"--num_train_steps={STEPS}", "--do_eval", "--do_predict")
    refusal(capsys, "bert-classifier", lambda: classify(trained[0], *given), path, *named)
    assert files_in(trained[0]) == before
