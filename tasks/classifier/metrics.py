"""The official metrics of the classifier tasks, computed by scikit-learn and scipy.

Accuracy and F1 are between 0 and 1, the correlations (Matthews', Pearson's, Spearman's) between -1 and 1.
"""

from collections.abc import Callable, Sequence

import numpy as np


def scores(names: Sequence[str], labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """The metrics `names` of predictions [n] against labels [n]: label numbers, or values for regression.

    `f1` is that of label number 1, the positive class of MRPC and QQP, and 0 without any true positive. A
    correlation is undefined when all labels or all predictions are the same; it is then 0. Raises ValueError: a
    value is not finite.
    """
    # They take more than a second to import, and most starts need neither.
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import f1_score, matthews_corrcoef

    if not (np.isfinite(labels).all() and np.isfinite(predictions).all()):
        raise ValueError("a label or a prediction is not finite")
    exact = labels.astype(np.float64), predictions.astype(np.float64)
    is_constant = any((values == values[0]).all() for values in (labels, predictions))

    values: dict[str, Callable[[], float]] = {
        "accuracy": lambda: np.mean(labels == predictions),
        "f1": lambda: f1_score(labels == 1, predictions == 1, zero_division=0.0),
        "acc_and_f1": lambda: (values["accuracy"]() + values["f1"]()) / 2,
        "mcc": lambda: 0.0 if is_constant else matthews_corrcoef(labels, predictions),
        "pearson": lambda: 0.0 if is_constant else pearsonr(*exact).statistic,
        "spearmanr": lambda: 0.0 if is_constant else spearmanr(labels, predictions).statistic,
        "corr": lambda: (values["pearson"]() + values["spearmanr"]()) / 2,
    }
    return {name: float(values[name]()) for name in names}
