"""Several labels per text: their columns, targets, thresholds and scores.

Arrays have their shape as a suffix: B rows, L labels.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from ringbase.errors import InputError
from ringbase.ragged import Ragged
from ringbase.settings import shown

THRESHOLDS = "thresholds"  # of each label, in result.json and beside the model
HALF = 0.5  # the probability from which a text has a label, before thresholds are chosen
FLAGS = {"0": False, "1": True, "0.0": False, "1.0": True, "False": False, "True": True}  # in columns of labels


def read_labels(
    names: Sequence[str], columns: Mapping[Any, Sequence[Any]], places: Sequence[str], known: Sequence[str] | None
) -> list[tuple[str, ...]] | None:
    """The labels of each row, from one column of lists, or of texts in which commas separate the labels; or from
    several columns of 0 and 1, the names of those that hold 1. None without such columns. Raises InputError with
    the row's place: a cell is neither, or a label is not `known`, if any are."""
    if names[0] not in columns:
        return None
    several, rows = len(names) > 1, list[tuple[str, ...]]()
    for place, *cells in zip(places, *(columns[name] for name in names), strict=True):
        flags = [FLAGS.get(str(cell)) for cell in cells]
        row = tuple(itertools.compress(names, flags)) if several else labels_in(cells[0])
        if (several and None in flags) or row is None or (known and not set(row) <= set(known)):
            expected = "0 or 1" if several else f"some of {', '.join(known)}" if known else "a list of labels"
            raise InputError(f"{place}: {', '.join(names)} must be {expected}, got {shown(cells)}")
        rows.append(row)
    return rows


def labels_in(value: Any) -> tuple[str, ...] | None:
    """The labels in a cell: a list, or a text in which commas separate them. None: it is neither."""
    if value is None or isinstance(value, str):
        return tuple(filter(None, map(str.strip, (value or "").split(","))))
    is_list = isinstance(value, list) and all(isinstance(each, str | int) for each in value)
    return tuple(map(str, value)) if is_list else None


def targets(labels: Ragged, num_labels: int) -> np.ndarray:
    """The numbers of each row's labels as float32 [B, L], 1 for each."""
    values, offsets = labels
    made = np.zeros((len(offsets) - 1, num_labels), np.float32)
    made[np.repeat(np.arange(len(made)), np.diff(offsets)), values] = 1
    return made


def thresholds_of(true_BL: np.ndarray, scores_BL: np.ndarray) -> np.ndarray:
    """For each label the threshold of its probability with the highest F1, float64 [L], in the middle between the
    probabilities of two texts. 0.5 for a label that no text has."""
    probabilities_BL = expit(scores_BL.astype(float))
    chosen = np.full(true_BL.shape[1], HALF)
    for label, (true, probabilities) in enumerate(zip(true_BL.T, probabilities_BL.T, strict=True)):
        order = np.argsort(-probabilities, kind="stable")
        ranked, right = probabilities[order], np.cumsum(true[order])
        f1 = 2 * right / (np.arange(1, len(order) + 1) + max(true.sum(), 1))
        f1[:-1][ranked[:-1] == ranked[1:]] = 0  # equal probabilities cannot be told apart
        best = int(f1.argmax())
        if f1[best]:
            chosen[label] = (ranked[best] + (ranked[best + 1] if best + 1 < len(ranked) else 0)) / 2
    return chosen


def named(labels: Sequence[str], scores_BL: np.ndarray, thresholds: Mapping[str, float]) -> list[tuple[str, ...]]:
    """The labels of each text: those whose probability is above its threshold."""
    above_BL = expit(scores_BL.astype(float)) > [thresholds.get(label, HALF) for label in labels]
    return [tuple(label for label, flag in zip(labels, row, strict=True) if flag) for row in above_BL]
