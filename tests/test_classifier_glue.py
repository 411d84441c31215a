"""bert-classifier on named tasks: GLUE's folders, scores, submissions, and the order of their labels."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from classifier_runs import (
    DEV,
    TRAIN,
    classify,
    glue_flags,
    model_flags,
    table_in,
    write_data,
    write_glue,
    write_rows,
)
from program_runs import metrics_in
from real_data import real
from texts import KINDS

from tasks.classifier.tasks import TASKS


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The files of `write_data`; the caches of this file's runs are new."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield write_data(tmp_path_factory.mktemp("data"))


@pytest.mark.slow
def test_mrpc(data, tmp_path):
    """A folder as GLUE lays it out; scores by scikit-learn from test_results.tsv; labels in Google's order."""
    from sklearn.metrics import accuracy_score, f1_score

    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    for name, examples in (("train", TRAIN[:64]), ("dev", DEV[:24])):
        rows = [{"Quality": int(e.kind == "tool"), "#1 String": e.first, "#2 String": e.second} for e in examples]
        write_glue(tmp_path / f"glue/MRPC/{name}.tsv", header, rows)
    header = ["index", *header[1:]]
    rows = [[3 * n, n, n, e.first, e.second] for n, e in enumerate(DEV[:24])]  # the dev set, without its labels
    write_rows(tmp_path / "glue/MRPC/test.tsv", header, rows)
    flags = [*glue_flags(data, tmp_path / "glue", "MRPC"), "--eval_steps=auto"]
    scores = classify(tmp_path / "out", *flags, "--do_eval", "--do_predict")
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
        rows = [{"sentence1": e.first, "sentence2": e.second, "gold_label": NLI[e.kind]} for e in examples]
        write_glue(folder / f"glue/MNLI/{name}.tsv", header, rows)
    for name, examples in (
        ("MNLI/test_matched", dev),
        ("MNLI/test_mismatched", other),
        ("diagnostic/diagnostic", DEV),
    ):
        rows = [[n + 100, e.first, e.second] for n, e in enumerate(examples)]
        write_rows(folder / f"glue/{name}.tsv", ["index", "sentence1", "sentence2"], rows)
    flags = [*glue_flags(data, folder / "glue", "mnli", 16), "--eval_steps=8", "--load_best_model_at_end"]
    return folder / "glue", folder / "out", classify(folder / "out", *flags, "--do_eval", "--do_predict")


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
    flags = [f"--model={out}/model", "--max_seq_length=32", "--task_name=ax", f"--data_dir={glue}"]
    assert classify(tmp_path / "ax", *flags, "--do_predict") == {}
    rows = table_in(tmp_path / "ax/AX.tsv")[1:]
    known = table_in(out / "MNLI-m.tsv")[1:]  # its first 30 rows are the diagnostic set's
    assert rows[:30] == known
    assert len(rows) == len(DEV)
    for flag in ("--do_eval", "--do_train"):
        with pytest.raises(SystemExit) as stop:
            classify(tmp_path / "none", *flags, flag)
        assert stop.value.code == 1
        assert f"--task_name ax has no {'dev' if flag == '--do_eval' else 'train'} set" in capsys.readouterr().err


@pytest.mark.slow
def test_sts_b(data, tmp_path):
    """Regression: scipy referees; the submission is clipped to 0…5, test_results.tsv is not."""
    from scipy.stats import pearsonr, spearmanr

    header = ["index", "genre", "sentence1", "sentence2", "score"]
    number = {"animal": -9.5, "colour": 2.5, "tool": 14.0}  # beyond the range: what is learnt from them is clipped
    for name, examples in (("train", TRAIN), ("dev", DEV)):
        rows = [{"sentence1": e.first, "sentence2": e.second, "score": number[e.kind]} for e in examples]
        write_glue(tmp_path / f"STS-B/{name}.tsv", header, rows)
    write_rows(tmp_path / "STS-B/test.tsv", header[:4], [[n, "-", e.first, e.second] for n, e in enumerate(DEV)])
    flags = glue_flags(data, tmp_path / "STS-B", "stsb", 40)  # the task's own folder will do, too
    scores = classify(tmp_path / "out", *flags, "--do_eval", "--do_predict")
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
    flags = [f"--data_dir={glue}", "--task_name=MRPC", f"--model={model}", "--max_train_examples=64"]
    limits = ["--max_predict_examples=64", "--num_train_epochs=1", "--max_seq_length=64"]
    scores = classify(tmp_path, *flags, *limits, "--do_train", "--do_eval", "--do_predict")
    assert all(math.isfinite(value) for value in scores.values())
    assert set(scores) == {"eval_accuracy", "eval_f1", "eval_acc_and_f1", "eval_loss"}
    submitted = table_in(tmp_path / "MRPC.tsv")
    assert [index for index, _ in submitted[1:]] == [str(number) for number in range(64)]
    assert {label for _, label in submitted[1:]} <= {"0", "1"}


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
    flags = [*model_flags(data), f"--init_checkpoint={tmp_path}/model", "--task_name=mnli", f"--data_dir={glue}"]
    swapped_scores = classify(tmp_path / "out", *flags, "--do_eval", "--do_predict")
    assert (tmp_path / "out/MNLI-m.tsv").read_bytes() == (out / "MNLI-m.tsv").read_bytes()
    swapped, straight = (
        np.loadtxt(folder / "test_results.tsv", delimiter="\t") for folder in (tmp_path / "out", out)
    )
    # Another order of outputs rounds the last product and the sum of the softmax differently.
    np.testing.assert_allclose(swapped, straight[:, order], rtol=1e-5)
    assert swapped_scores == pytest.approx(scores, rel=1e-5)
