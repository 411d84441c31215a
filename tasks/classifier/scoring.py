"""Scores the classifier's predictions by the official metrics, and writes them as Google's and
GLUE's files.

Arrays have their shape as a suffix: B rows, L labels.
"""

import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit, log_softmax, softmax

from distributed.run import Run
from tasks.cache import Prepared
from tasks.classifier.named_tasks import Labels
from tasks.classifier.reading import Source
from tasks.classifier.several import HALF, in_a_cell, targets


def metrics(names: Sequence[str], labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """The metrics `names` of predictions [n] against labels [n]: label numbers, or values for
    regression.

    `f1`, from 0 to 1, is that of label number 1, the positive class of MRPC and QQP, and `macro_f1`
    the mean over all labels that occur. A correlation (Matthews', Pearson's, Spearman's) is
    undefined when all labels or all predictions are the same; it is then 0.
    """
    # Together they take a second to import, and the accuracy needs neither.
    stats, learned = (
        partial(importlib.import_module, name) for name in ("scipy.stats", "sklearn.metrics")
    )
    exact = labels.astype(np.float64), predictions.astype(np.float64)
    is_constant = any((values == values[0]).all() for values in exact)
    values: dict[str, Callable[[], float]] = {
        "accuracy": lambda: np.mean((labels == predictions).reshape(len(labels), -1).all(1)),
        "micro_f1": lambda: learned().f1_score(
            labels, predictions, average="micro", zero_division=0.0
        ),
        "f1": lambda: learned().f1_score(labels == 1, predictions == 1, zero_division=0.0),
        "macro_f1": lambda: learned().f1_score(
            labels, predictions, average="macro", zero_division=0.0
        ),
        "acc_and_f1": lambda: (values["accuracy"]() + values["f1"]()) / 2,
        "mcc": lambda: 0.0 if is_constant else learned().matthews_corrcoef(labels, predictions),
        "pearson": lambda: 0.0 if is_constant else stats().pearsonr(*exact).statistic,
        "spearmanr": lambda: 0.0 if is_constant else stats().spearmanr(*exact).statistic,
        "corr": lambda: (values["pearson"]() + values["spearmanr"]()) / 2,
    }
    return {name: float(values[name]()) for name in names}


def measure(
    kind: str, source: Source, data: Prepared, labels: Labels, outputs: Any
) -> dict[str, float]:
    """The metrics of a set's task and the mean loss of a predictor's outputs; their names begin
    with `kind`. On rank 0."""
    scores_BL, label = np.array(outputs), true_labels(source, data, labels)
    if source.task.has_several:
        predictions = scores_BL > 0
        loss = np.mean(np.logaddexp(0, scores_BL.astype(float)) - label * scores_BL)
    elif labels is None:
        predictions = scores_BL[:, 0].astype(np.float64)
        loss = np.mean(np.square(predictions - label))
    else:
        predictions = scores_BL.argmax(1)
        loss = -np.mean(log_softmax(scores_BL.astype(np.float64), 1)[np.arange(len(label)), label])
    values = metrics(source.task.metrics, label, predictions) | {"loss": float(loss)}
    return {f"{kind}{source.suffix}_{name}": value for name, value in values.items()}


def true_labels(source: Source, data: Prepared, labels: Labels) -> np.ndarray:
    """The numbers of the labels, or the numbers themselves, [B]; where a text may have several,
    bool [B, L]."""
    column: Any = data.tables["examples"].column("label")
    return targets(column, len(labels or ())) > 0 if source.task.has_several else np.asarray(column)


def labelled(
    labels: Sequence[str], scores_BL: np.ndarray, thresholds: Mapping[str, float] | None
) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """The probability of each label, float64 [B, L], and the labels of each text: the most probable
    one; with thresholds, where a text may have several, those whose probability is above theirs."""
    if thresholds is None:
        return softmax(scores_BL.astype(float), 1), [
            (labels[best],) for best in scores_BL.argmax(1)
        ]
    shares_BL = expit(scores_BL.astype(float))
    above_BL = shares_BL > [thresholds.get(label, HALF) for label in labels]
    return shares_BL, [tuple(itertools.compress(labels, row)) for row in above_BL]


def write_predictions(
    source: Source,
    data: Prepared,
    labels: Labels,
    outputs: Any,
    run: Run,
    thresholds: Mapping[str, float],
) -> dict[str, float]:
    """Writes Google's test_results.tsv (probabilities, no header) and GLUE's submission file (ids
    and labels, or numbers clipped to the task's range). Prints a line for each line of standard
    input: the label, a tab and its probability, or a number. Several labels of a text are written
    by `in_a_cell`. Returns the scores if the set has labels. On rank 0."""
    shown = np.array(outputs)
    if labels is None:
        low, high = source.task.range or (-np.inf, np.inf)
        predictions = [f"{min(max(value, low), high):.3f}" for value in shown[:, 0].tolist()]
        printed = [str(value) for value in shown[:, 0].tolist()]
    else:
        shown, chosen = labelled(labels, shown, thresholds if source.task.has_several else None)
        has_several = source.task.has_several
        predictions = in_a_cell(chosen, labels) if has_several else [names[0] for names in chosen]
        printed = []
        for prediction, names, row in zip(predictions, chosen, shown.tolist(), strict=True):
            share_of = dict(zip(labels, row, strict=True))
            printed.append(f"{prediction}\t{','.join(f'{share_of[name]:.4f}' for name in names)}")
    ids = data.tables["ids"].column("id")
    submission = "".join(f"{id_}\t{value}\n" for id_, value in zip(ids, predictions, strict=True))
    results = "".join("\t".join(map(str, row)) + "\n" for row in shown.tolist())
    run.write(f"test_results{source.suffix}.tsv", results)
    run.write(
        source.part.submission or f"predictions{source.suffix}.tsv",
        f"index\tprediction\n{submission}",
    )
    if source.settings.reads_lines:
        print(*printed, sep="\n", flush=True)
    return measure("predict", source, data, labels, outputs) if data.facts["is_labelled"] else {}
