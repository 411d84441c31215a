"""The official metrics of the classifier tasks, computed by scikit-learn and scipy.

Accuracy and F1 are between 0 and 1, the correlations (Matthews', Pearson's, Spearman's) between -1 and 1. A
correlation is undefined when all labels or all predictions are the same; it is then reported as 0.

The libraries are imported where they are used: that takes more than a second, and most starts need none of them.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """The fraction of predictions that equal their labels."""
    return float(np.mean(labels == predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of label number 1, the positive class of MRPC and QQP; 0 without any true positive."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels == 1, predictions == 1, zero_division=0.0))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews' correlation coefficient, for two classes or more."""
    from sklearn.metrics import matthews_corrcoef

    return 0.0 if _is_constant(labels, predictions) else float(matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Pearson's correlation coefficient, in float64."""
    from scipy.stats import pearsonr

    if _is_constant(labels, predictions):
        return 0.0
    return float(pearsonr(np.asarray(labels, np.float64), np.asarray(predictions, np.float64)).statistic)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Spearman's rank correlation coefficient; ties get their mean rank."""
    from scipy.stats import spearmanr

    return 0.0 if _is_constant(labels, predictions) else float(spearmanr(labels, predictions).statistic)


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "accuracy": accuracy,
        "f1": f1,
        "acc_and_f1": lambda labels, predictions: (accuracy(labels, predictions) + f1(labels, predictions)) / 2,
        "mcc": matthews,
        "pearson": pearson,
        "spearmanr": spearman,
        "corr": lambda labels, predictions: (pearson(labels, predictions) + spearman(labels, predictions)) / 2,
    }
)


def scores(names: Sequence[str], labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """The metrics `names` of predictions [n] against labels [n]: label numbers, or values for regression.

    Raises ValueError: no examples, arrays of different shapes, or a value that is not finite.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.shape != predictions.shape or labels.ndim != 1 or not len(labels):
        raise ValueError(
            f"labels and predictions must both be [n], n > 0, got {labels.shape} and {predictions.shape}"
        )
    if not (np.isfinite(labels).all() and np.isfinite(predictions).all()):
        raise ValueError("a label or a prediction is not finite")
    return {name: METRICS[name](labels, predictions) for name in names}


def _is_constant(*arrays: np.ndarray) -> bool:
    return any((array == array[0]).all() for array in arrays)
