"""bert-classifier on files of the user's, from its flags to its files, on a tiny model; scikit-learn referees."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from classifier_runs import (
    COLUMNS,
    DEV,
    LEARN,
    TEST,
    TRAIN,
    classify,
    model_flags,
    own_files,
    scores_in,
    table_in,
    write_data,
    write_rows,
)
from program_runs import command, error_of, metrics_in, shell
from texts import KINDS

from tasks.classifier.program import main

STEPS = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The files of `write_data`; the caches of this file's runs are new."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory) -> tuple[Path, dict[str, float]]:
    """The folder of a run, and the scores that it returned."""
    folder = tmp_path_factory.mktemp("trained")
    flags = [*model_flags(data), *own_files(data), *LEARN, f"--num_train_steps={STEPS}"]
    return folder, classify(folder, *flags, "--do_eval", "--do_predict")


def test_a_run_leaves_its_files(trained):
    folder, returned = trained
    scores = scores_in(folder)
    assert scores == returned
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
    """From output_dir and from model/."""
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
    scores = classify(tmp_path, *model, *own_files(data), f"--predict_file={data}/dev.tsv", "--do_predict")
    probabilities = np.loadtxt(tmp_path / "test_results.tsv", delimiter="\t")
    labels = np.array([sorted(KINDS).index(example.kind) for example in DEV])
    expected = scores_in(trained[0])
    assert accuracy_score(labels, probabilities.argmax(1)) == expected["eval_accuracy"]
    assert matthews_corrcoef(labels, probabilities.argmax(1)) == pytest.approx(expected["eval_mcc"], rel=1e-12)
    # Both in float64, one from written probabilities, one from scores.
    assert log_loss(labels, probabilities) == pytest.approx(expected["eval_loss"], rel=1e-9)
    assert scores == {name.replace("eval", "predict"): value for name, value in expected.items()}
    assert not (tmp_path / "eval_results.txt").exists()


@pytest.mark.slow
def test_several_ranks_evaluate_the_same(trained, data, tmp_path):
    """The same bits on two and three; to rounding those of this process, which computes with more threads."""
    flags = [f"--model={trained[0]}/model", "--max_seq_length=32", *own_files(data), "--do_eval", "--do_predict"]
    for ranks in (2, 3):
        folder = tmp_path / str(ranks)
        shell(command("tasks.classifier", *flags, f"--output_dir={folder}", ranks=ranks))
        assert scores_in(folder) == pytest.approx(scores_in(trained[0]), rel=1e-5)
        assert (folder / "predictions.tsv").read_bytes() == (trained[0] / "predictions.tsv").read_bytes()
        probabilities = [np.loadtxt(path / "test_results.tsv", delimiter="\t") for path in (folder, trained[0])]
        np.testing.assert_allclose(*probabilities, rtol=1e-5)
    for name in ("eval_results.txt", "test_results.tsv"):
        assert (tmp_path / "2" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


@pytest.mark.slow
def test_two_ranks_learn(data, tmp_path):
    flags = [
        *model_flags(data),
        *own_files(data),
        *LEARN,
        f"--num_train_steps={STEPS}",
        f"--output_dir={tmp_path}",
    ]
    printed = shell(command("tasks.classifier", *flags, "--do_eval", ranks=2))
    assert printed.count("plan: 960 rows, 2 ranks") == 1
    assert scores_in(tmp_path)["eval_accuracy"] > 0.8  # as one rank does


@pytest.mark.parametrize("others", [("one", "two"), pytest.param(("one", "two", "three"), marks=pytest.mark.slow)])
def test_a_head_that_starts_anew_has_initial_values(trained, data, tmp_path, others):
    """With a rate of 0 the saved head is the one that training started from: not the old one, as wide or not."""
    from safetensors.numpy import load_file

    rows = [(e.first, others[n % len(others)]) for n, e in enumerate(TRAIN[:32])]
    write_rows(tmp_path / "train.csv", ["body", "kind"], rows, ",")
    flags = [f"--model={trained[0]}/model", "--max_seq_length=32", f"--train_file={tmp_path}/train.csv"]
    columns = ["--text_column=body", "--label_column=kind"]
    classify(tmp_path / "out", *flags, *columns, *LEARN, "--learning_rate=0", "--num_train_steps=1")
    old, new = (load_file(folder / "model/model.safetensors") for folder in (trained[0], tmp_path / "out"))
    np.testing.assert_array_equal(old["bert.pooler.dense.weight"], new["bert.pooler.dense.weight"])
    assert new["classifier.weight"].shape == (len(others), 64)
    assert not new["classifier.bias"].any()
    assert not np.array_equal(old["classifier.weight"], new["classifier.weight"])


# -- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dev.tsv", "body\tmore\tkind\ncat\tdog\tanimal\ncat\taxe\tplant\n", "line 3: label 'plant' is not one"),
        ("dev.tsv", "body\tmore\ncat\tdog\n", "no column 'kind', only body, more"),
        ("train.csv", "body,kind\ncat,animal\n", "no column 'more', only body, kind"),
        ("train.csv", "body,more,kind\ncat,dog,animal\ncat,dog\n", "line 3 has 2 columns, but the header has 3"),
        ("train.csv", "", "the file is empty"),
        ("train.csv", "body,more,kind\n", "the file has no row after its header"),
        ("train.csv", "body,more,kind\ncat,dog,\n", "line 2: kind must be a label, got ''"),
        ("test.jsonl", '{"body": "cat"\n', "line 1: not valid JSON"),
        ("test.jsonl", '{"body": "cat", "more": "dog", "kind": "plant"}\n', "label 'plant' is not one of animal"),
        ("test.jsonl", None, "no such file"),
        ("dev.tsv", b"body\tmore\tkind\ncat\td\xffg\tanimal\n", "line 2 is not UTF-8"),
    ],
)  # fmt: skip
def test_bad_files_are_one_line(data, tmp_path, capsys, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    flag = {"train.csv": "train_file", "dev.tsv": "dev_file", "test.jsonl": "predict_file"}[name]
    flags = [*model_flags(data), *own_files(data), f"--{flag}={path}", *LEARN, "--do_eval", "--do_predict"]
    with pytest.raises(SystemExit) as stop:
        classify(tmp_path / "out", *flags)
    assert stop.value.code == 1
    error = error_of(capsys.readouterr().err, "bert-classifier")
    assert str(path) in error
    assert message in error
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.slow
def test_bad_input_from_the_shell(trained, data, tmp_path):
    """Of all that the program prints the last line is the error; a finished run's files stay."""
    folder, bad = tmp_path / "run", tmp_path / "dev.tsv"
    shutil.copytree(trained[0], folder)
    write_rows(bad, COLUMNS, [("cat", "dog", "plant")])
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    flags = [*model_flags(data), *own_files(data), f"--dev_file={bad}", "--do_eval", f"--output_dir={folder}"]
    printed = shell(command("tasks.classifier", *flags), 1)
    error = f"bert-classifier: error: {bad}: line 2: label 'plant' is not one of animal, colour, tool"
    assert printed.splitlines()[-1] == error_of(printed, "bert-classifier") == error
    (folder / ".lock").unlink()  # of this command
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


EVALUATED = ("--output_dir=x", "--do_eval", "--dev_file=f")
MRPC = ("--output_dir=x", "--do_eval", "--task_name=MRPC")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--output_dir=x"], "nothing to do: give --do_train"),
        (["--do_train"], "--output_dir"),
        (["--output_dir=x", "--do_train"], "--do_train needs --train_file"),
        (["--output_dir=x", "--do_train", "--train_file=t", "--eval_steps=5"], "needs --dev_file"),
        (["--output_dir=x", "--do_predict"], "--do_predict needs --predict_file"),
        (MRPC, "--task_name needs --data_dir"),
        ([*MRPC, "--data_dir=d", "--dev_file=f"], "exclude each other"),
        ([*MRPC, "--data_dir=d", "--regression"], "--regression is for files of your own"),
        ([*EVALUATED, "--from_hub"], "--from_hub needs --task_name"),
        ([*EVALUATED, "--max_seq_length=3"], "--max_seq_length must be at least 4, got 3"),
        ([*EVALUATED, "--eval_batch_size=0"], "--eval_batch_size must be at least 1, got 0"),
        ([*EVALUATED, "--early_stopping_patience=0"], "--early_stopping_patience must be at least 1, got 0"),
        ([*EVALUATED, "--seeds=1,two"], "--seeds must be different numbers separated by commas, got 1,two"),
        ([*EVALUATED, "--seeds=1,2,01"], "--seeds must be different numbers separated by commas, got 1,2,01"),
        ([*EVALUATED, "--sweep=a.toml,b/a.toml"], "--sweep must be files of different names separated by commas"),
        ([*EVALUATED, "--sweep=a.toml,"], "--sweep must be files of different names separated by commas"),
        (["--output_dir=x", "--do_eval", "--dev_fil=f"], "did you mean --dev_file"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(argv, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    printed = capsys.readouterr().err
    assert stop.value.code == 2
    assert printed.count("\n") == 1
    assert message in error_of(printed, "bert-classifier")
