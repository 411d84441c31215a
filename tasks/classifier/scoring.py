"""The classifier's scores by the official metrics, and predictions as files have them.

A metric is a function of two arrays [n], the truth and the predictions: label numbers, or values
for regression; where a text may have several labels bool [n, L]. A new one is a function and an
entry in METRICS. Arrays have their shape as a suffix: B rows, L labels.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from tasks.classifier.reading import Texts
from tasks.runs.details import Record
from tasks.runs.ranking import Ranked, correlation

NO_TABS = str.maketrans("\t\n\r", "   ")

# scikit-learn takes a second to import, and the accuracy does not need it.


def accuracy(true: np.ndarray, predicted: np.ndarray) -> float:
    is_right = (true == predicted).reshape(len(true), -1)
    return np.mean(is_right.all(1))


def f1(average: str, true: np.ndarray, predicted: np.ndarray) -> float:
    """From 0 to 1. "binary": of label number 1, the positive class of MRPC and QQP; "macro": the
    mean over all labels that occur."""
    from sklearn.metrics import f1_score

    if average == "binary":
        true, predicted = true == 1, predicted == 1
    return f1_score(true, predicted, average=average, zero_division=0.0)


def acc_and_f1(true: np.ndarray, predicted: np.ndarray) -> float:
    return (accuracy(true, predicted) + f1("binary", true, predicted)) / 2


def mcc(true: np.ndarray, predicted: np.ndarray) -> float:
    """Matthews' correlation; 0 where all values are the same, of which scikit-learn warns."""
    from sklearn.metrics import matthews_corrcoef

    if np.ptp(true) == 0 or np.ptp(predicted) == 0:
        return 0.0
    return matthews_corrcoef(true, predicted)


def corr(true: np.ndarray, predicted: np.ndarray) -> float:
    pearson = correlation("pearsonr", true, predicted)
    spearman = correlation("spearmanr", true, predicted)
    return (pearson + spearman) / 2


METRICS: Mapping[str, Callable] = {
    "accuracy": accuracy,
    "f1": partial(f1, "binary"),
    "micro_f1": partial(f1, "micro"),
    "macro_f1": partial(f1, "macro"),
    "acc_and_f1": acc_and_f1,
    "mcc": mcc,
    "pearson": partial(correlation, "pearsonr"),
    "spearmanr": partial(correlation, "spearmanr"),
    "corr": corr,
}


def metrics(names: Sequence[str], true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """The metrics of these names."""
    return {name: float(METRICS[name](true, predicted)) for name in names}


# -- predictions as files have them ----------------------------------------------------------------


def table_of(columns: Mapping[str, Sequence]) -> str:
    """Columns with tabs between them and a header; tabs and line ends of a cell become blanks."""
    lines = []
    for row in ([*columns], *zip(*columns.values(), strict=True)):
        cells = [str(cell).translate(NO_TABS) for cell in row]
        lines.append("\t".join(cells) + "\n")
    return "".join(lines)


def queries_of(texts: Texts, ranked: Iterable[Ranked], predicted: np.ndarray) -> Iterator[Record]:
    """Of each query its best relevant document and the best one that is not; a mistake if that is
    not behind."""
    for group in ranked:
        best = group.rows[group.relevant[group.ranks.argmin()]]
        rank = int(group.ranks.min())
        fields = {
            "text": texts.first[best],
            "relevant": texts.second[best] if texts.second else None,
            "rank": rank + 1,
            "prediction": float(predicted[best]),
        }
        lead = None
        others = np.delete(group.rows, group.relevant)
        if len(others):
            nearest = others[predicted[others].argmax()]
            fields["nearest"] = texts.second[nearest] if texts.second else None
            fields["nearest_prediction"] = float(predicted[nearest])
            lead = float(predicted[nearest] - predicted[best])
        yield Record(fields, lead if rank else None)
