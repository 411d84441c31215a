"""bert-classifier on GLUE's folders: scores, submissions, and the order of their labels."""

import json
import shutil

import numpy as np
import pytest
from harness import classifier_runs
from harness.classifier_runs import DEV, TRAIN, classify, glue_flags, table_in, write_rows
from harness.texts import KINDS
from safetensors.numpy import load_file, save_file
from scipy.stats import pearsonr, spearmanr

pytestmark = pytest.mark.slow
LABELS = ("contradiction", "entailment", "neutral")  # the order of run_classifier.py
SETS = (("", "matched", "MNLI-m.tsv", DEV[:30]), ("_mismatched", "mismatched", "MNLI-mm.tsv", DEV[30:70]))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield classifier_runs.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def mnli(data, tmp_path_factory):
    """GLUE folder of MNLI, the folder of a run on it, and its scores."""
    folder = tmp_path_factory.mktemp("mnli")
    glue = folder / "glue"
    for name, examples in (("train", TRAIN), *((f"dev_{kind}", examples) for _, kind, _, examples in SETS)):
        rows = [[n, e.first, e.second, LABELS[KINDS.index(e.kind)]] for n, e in enumerate(examples)]
        write_rows(glue / f"MNLI/{name}.tsv", ["index", "sentence1", "sentence2", "gold_label"], rows)
    for _, kind, _, examples in SETS:
        rows = [[n + 100, e.first, e.second] for n, e in enumerate(examples)]
        write_rows(glue / f"MNLI/test_{kind}.tsv", ["index", "sentence1", "sentence2"], rows)
    flags = (*glue_flags(data, glue, "mnli", 16), "--do_eval", "--do_predict")
    return glue, folder / "out", classify(folder / "out", *flags)


def test_mnli_scores_and_submits_both_sets(mnli):
    _, out, scores = mnli
    for suffix, _, submission, examples in SETS:
        probabilities = np.loadtxt(out / f"test_results{suffix}.tsv", delimiter="\t")
        labels = np.array([KINDS.index(e.kind) for e in examples])
        assert scores[f"eval{suffix}_accuracy"] == np.mean(probabilities.argmax(1) == labels)
        loss = -np.log(probabilities[np.arange(len(labels)), labels]).mean()
        assert scores[f"eval{suffix}_loss"] == pytest.approx(loss, rel=1e-9)
        rows = [[str(n + 100), LABELS[p]] for n, p in enumerate(probabilities.argmax(1))]
        assert table_in(out / submission) == [["index", "prediction"], *rows]
    assert scores["eval_accuracy"] != scores["eval_mismatched_accuracy"]  # the two are told apart


def test_predictions_are_in_the_order_of_the_checkpoint(data, mnli, tmp_path):
    """An MNLI model whose outputs stand in another order, as its id2label says, predicts the same labels: also if
    the configuration file says nothing of labels."""
    (glue, out, scores), order, model = mnli, [1, 2, 0], tmp_path / "model"
    shutil.copytree(out / "model", model)
    tensors = load_file(model / "model.safetensors")
    tensors |= {name: tensors[name][order].copy() for name in ("classifier.weight", "classifier.bias")}
    save_file(tensors, model / "model.safetensors")
    names = dict(enumerate(LABELS[number] for number in order))
    config = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    (model / "config.json").write_text(json.dumps(json.loads((model / "config.json").read_text()) | config))
    flags = (
        *classifier_runs.model_flags(data),
        f"--init_checkpoint={model}",
        "--task_name=mnli",
        f"--data_dir={glue}",
    )
    turned_scores = classify(tmp_path / "out", *flags, "--do_eval", "--do_predict")
    assert (tmp_path / "out/MNLI-m.tsv").read_bytes() == (out / "MNLI-m.tsv").read_bytes()
    new, old = (np.loadtxt(folder / "test_results.tsv", delimiter="\t") for folder in (tmp_path / "out", out))
    # Another order of outputs rounds the last product and the sum of the softmax differently.
    np.testing.assert_allclose(new, old[:, order], rtol=1e-5)
    assert turned_scores == pytest.approx(scores, rel=1e-5)


def test_sts_b_is_scored_as_scipy_does_and_its_submission_is_clipped(data, tmp_path):
    number = {"animal": -9.5, "colour": 2.5, "tool": 14.0}  # beyond 0…5: what is learnt from them is clipped
    for name, examples in (("train", TRAIN), ("dev", DEV), ("test", DEV)):
        rows = [[n, e.first, e.second, number[e.kind]] for n, e in enumerate(examples)]
        write_rows(tmp_path / f"STS-B/{name}.tsv", ["index", "sentence1", "sentence2", "score"], rows)
    flags = glue_flags(data, tmp_path / "STS-B", "stsb", 40)  # the task's own folder will do, too
    scores = classify(tmp_path / "out", *flags, "--do_eval", "--do_predict")
    predicted = np.loadtxt(tmp_path / "out/test_results.tsv", delimiter="\t")
    labels = np.array([number[e.kind] for e in DEV])
    pearson, spearman = pearsonr(labels, predicted).statistic, spearmanr(labels, predicted).statistic
    expected = {"pearson": pearson, "spearmanr": spearman, "corr": (pearson + spearman) / 2}
    expected["loss"] = np.mean(np.square(predicted - labels))
    expected = {f"{kind}_{name}": value for kind in ("eval", "predict") for name, value in expected.items()}
    assert scores == pytest.approx(expected, rel=1e-9)
    assert predicted.min() < 0 < 5 < predicted.max()
    submitted = [float(prediction) for _, prediction in table_in(tmp_path / "out/STS-B.tsv")[1:]]
    np.testing.assert_allclose(submitted, predicted.clip(0, 5), atol=0.0005 + 1e-9)  # three decimals
