"""The classifier's scores by the official metrics, and predictions as files have them.

A metric is a function of two arrays [n], the truth and the predictions: label numbers, or values
for regression; where a text may have several labels bool [n, L]. A new one is a function and an
entry in METRICS. Arrays have their shape as a suffix: B rows, L labels.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, log_softmax, softmax

from tasks.classifier.several import HALF
from tasks.runs.task import Record

NO_TABS = str.maketrans("\t\n\r", "   ")
Metric = Callable[[np.ndarray, np.ndarray], float]

# scikit-learn and scipy.stats take a second to import, and the accuracy needs neither.


def accuracy(true: np.ndarray, predicted: np.ndarray) -> float:
    return np.mean((true == predicted).reshape(len(true), -1).all(1))


def f1(true: np.ndarray, predicted: np.ndarray) -> float:
    """From 0 to 1, of label number 1: the positive class of MRPC and QQP."""
    from sklearn.metrics import f1_score

    return f1_score(true == 1, predicted == 1, zero_division=0.0)


def micro_f1(true: np.ndarray, predicted: np.ndarray) -> float:
    from sklearn.metrics import f1_score

    return f1_score(true, predicted, average="micro", zero_division=0.0)


def macro_f1(true: np.ndarray, predicted: np.ndarray) -> float:
    """The mean over all labels that occur."""
    from sklearn.metrics import f1_score

    return f1_score(true, predicted, average="macro", zero_division=0.0)


def acc_and_f1(true: np.ndarray, predicted: np.ndarray) -> float:
    return (accuracy(true, predicted) + f1(true, predicted)) / 2


def mcc(true: np.ndarray, predicted: np.ndarray) -> float:
    """Matthews' correlation."""
    from sklearn.metrics import matthews_corrcoef

    return 0.0 if _is_undefined(true, predicted) else matthews_corrcoef(true, predicted)


def pearson(true: np.ndarray, predicted: np.ndarray) -> float:
    from scipy.stats import pearsonr

    if _is_undefined(true, predicted):
        return 0.0
    return pearsonr(true.astype(np.float64), predicted.astype(np.float64)).statistic


def spearmanr(true: np.ndarray, predicted: np.ndarray) -> float:
    from scipy import stats

    if _is_undefined(true, predicted):
        return 0.0
    return stats.spearmanr(true.astype(np.float64), predicted.astype(np.float64)).statistic


def corr(true: np.ndarray, predicted: np.ndarray) -> float:
    return (pearson(true, predicted) + spearmanr(true, predicted)) / 2


def _is_undefined(true: np.ndarray, predicted: np.ndarray) -> bool:
    """Whether a correlation is, which then counts as 0: all values are the same."""
    return any((values == values[0]).all() for values in (true, predicted))


METRICS: Mapping[str, Metric] = {
    metric.__name__: metric
    for metric in (accuracy, f1, micro_f1, macro_f1, acc_and_f1, mcc, pearson, spearmanr, corr)
}


def metrics(names: Sequence[str], true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """The metrics of these names."""
    return {name: float(METRICS[name](true, predicted)) for name in names}


def loss_and_predictions(
    true: np.ndarray, scores_BL: np.ndarray, is_number: bool
) -> tuple[float, np.ndarray]:
    """The mean loss of scores against the truth, [B], or bool [B, L] where a text may have several
    labels; and what is predicted, of the same form."""
    exact_BL = scores_BL.astype(np.float64)
    if is_number:
        predictions = exact_BL[:, 0]
        return float(np.mean(np.square(predictions - true))), predictions
    if true.ndim == 2:
        losses_BL = np.logaddexp(0, exact_BL) - true * scores_BL
        return float(np.mean(losses_BL)), scores_BL > 0
    logs_BL = log_softmax(exact_BL, 1)
    return float(-np.mean(logs_BL[np.arange(len(true)), true])), scores_BL.argmax(1)


def labelled(
    labels: Sequence[str], scores_BL: np.ndarray, thresholds: Mapping[str, float] | None
) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """The probability of each label, float64 [B, L], and the labels of each text: the most probable
    one; with thresholds, where a text may have several, those whose probability is above theirs."""
    if thresholds is None:
        best = scores_BL.argmax(1).tolist()
        return softmax(scores_BL.astype(float), 1), [(labels[number],) for number in best]
    shares_BL = expit(scores_BL.astype(float))
    above_BL = shares_BL > [thresholds.get(label, HALF) for label in labels]
    return shares_BL, [tuple(itertools.compress(labels, row)) for row in above_BL]


# -- predictions as files have them ----------------------------------------------------------------

Fields = dict[str, Any]


def record_of_number(fields: Fields, value: float) -> Record:
    """Of a regression; how wrong it is counts as its sureness."""
    error = abs(value - fields["label"]) if "label" in fields else None
    return Record(fields | {"prediction": value}, error)


def record_of_label(fields: Fields, chosen: Sequence[str], shares: Mapping[str, float]) -> Record:
    (prediction,) = chosen
    is_right = fields.get("label", prediction) == prediction
    said = {"prediction": prediction, "probabilities": shares}
    return Record(fields | said, None if is_right else shares[prediction])


def record_of_labels(fields: Fields, chosen: Sequence[str], shares: Mapping[str, float]) -> Record:
    """Of several labels; as sure as the model was of the surest wrong one."""
    wrong = set(chosen) ^ set(fields.get("label", chosen))
    said = {"prediction": chosen, "probabilities": shares}
    sureness = max((abs(shares[label] - HALF) for label in wrong), default=None)
    return Record(fields | said, sureness)


def shares_in_a_cell(
    labels: Sequence[str], shares_BL: np.ndarray, chosen: Sequence[Sequence[str]]
) -> list[str]:
    """The probabilities of each text's labels, with commas between them."""
    cells = []
    for names, row in zip(chosen, shares_BL.tolist(), strict=True):
        share_of = dict(zip(labels, row, strict=True))
        cells.append(",".join(f"{share_of[name]:.4f}" for name in names))
    return cells


def within(values: Sequence[float], limits: tuple[float, float] | None) -> list[str]:
    """Numbers as files have them, within the task's limits."""
    low, high = limits or (-np.inf, np.inf)
    return [f"{min(max(value, low), high):.3f}" for value in values]


def table_of(columns: Mapping[str, Sequence[object]]) -> str:
    """Columns with tabs between them and a header; tabs and line ends of a cell become blanks."""
    rows = [[*columns], *zip(*columns.values(), strict=True)]
    lines = ["\t".join(str(cell).translate(NO_TABS) for cell in row) for row in rows]
    return "".join(f"{line}\n" for line in lines)
