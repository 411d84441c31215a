"""Scores the classifier's dev and test sets, and writes predictions as Google's and GLUE's files.

Arrays have their shape as a suffix: B or n rows, L labels.
"""

import sys
from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax, softmax

from distributed.rows import Rows
from distributed.run import Run
from tasks.classifier import metrics
from tasks.classifier.named_tasks import Labels, NamedTask, submission
from tasks.classifier.rows import DataSet
from tasks.job import Job
from tasks.predict import Predictor


def score(predictor: Predictor, rows: Rows, batch_size: int) -> np.ndarray | None:
    """The scores of rows, float32 [n, L], on rank 0; None elsewhere."""
    kept = predictor(rows, batch_size)
    return None if kept is None else np.array(kept)


def evaluate(
    task: NamedTask, labels: Labels, dev_sets: Sequence[DataSet], predictor: Predictor, batch_size: int, job: Job
) -> dict[str, float]:
    """The task's metrics and the mean loss of each dev set, the same values on every rank."""
    scores: dict[str, float] = {}
    for dev_set in dev_sets:
        prefix = f"eval{suffix_of(task, dev_set.source.split)}_"
        scores_BL = score(predictor, dev_set.rows, batch_size)
        scores |= job.world.on_first(measure, task, dev_set.rows, labels, scores_BL, prefix)
    return scores


def measure(task: NamedTask, rows: Rows, labels: Labels, scores_BL: np.ndarray, prefix: str) -> dict[str, float]:
    """The task's metrics and the mean loss, with `prefix` before their names. On rank 0."""
    label = np.asarray(rows.column("label"))
    if labels is None:
        predictions = scores_BL[:, 0].astype(np.float64)
        loss = np.mean(np.square(predictions - label))
    else:
        predictions = scores_BL.argmax(1)
        loss = -np.mean(log_softmax(scores_BL.astype(np.float64), 1)[np.arange(len(label)), label])
    values = metrics.scores(task.metrics, label, predictions)
    return {f"{prefix}{name}": float(value) for name, value in (values | {"loss": loss}).items()}


def write_predictions(
    task: NamedTask, test_set: DataSet, labels: Labels, scores_BL: np.ndarray, run: Run
) -> dict[str, float]:
    """Writes Google's test_results.tsv (probabilities, no header) and GLUE's submission file (example ids and
    labels); for standard input also prints them. Returns the scores if the set has labels. On rank 0."""
    suffix = suffix_of(task, test_set.source.split)
    shown = scores_BL if labels is None else softmax(scores_BL.astype(float), 1)
    run.write(f"test_results{suffix}.tsv", "".join("\t".join(map(str, row)) + "\n" for row in shown.tolist()))
    predictions = scores_BL[:, 0].tolist() if labels is None else [labels[n] for n in scores_BL.argmax(1)]
    name = task.split(test_set.source.split).submission or f"predictions{suffix}.tsv"
    run.write(name, submission(task, test_set.ids, predictions))
    if test_set.source.is_standard_input:
        print_predictions(predictions, None if labels is None else shown.max(1))
    if not test_set.is_labelled:
        return {}
    return measure(task, test_set.rows, labels, scores_BL, f"predict{suffix}_")


def print_predictions(predictions: Sequence[object], probabilities: np.ndarray | None) -> None:
    """Prints a line for each text to standard output: its label, a tab and the label's probability; for regression
    only the value. Messages go to standard error."""
    shown = ["" if probabilities is None else f"\t{probabilities[n]:.4f}" for n in range(len(predictions))]
    sys.stdout.write("".join(f"{value}{rest}\n" for value, rest in zip(predictions, shown, strict=True)))
    sys.stdout.flush()


def suffix_of(task: NamedTask, split: str) -> str:
    """The suffix of a set's scores and file names: empty for the first set of its kind (run_classifier.py knows no
    other), "_mismatched" for MNLI's second."""
    kind = split.split("_")[0]
    return "" if split == task.splits_of(kind)[0] else split.removeprefix(kind)
