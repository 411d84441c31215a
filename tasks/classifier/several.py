"""Several labels per text: their columns, targets, thresholds and scores.

Arrays have their shape as a suffix: B rows, L labels.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from ringbase.errors import InputError
from ringbase.files import parse_json
from ringbase.ragged import Ragged

THRESHOLDS = "thresholds"  # of each label, in result.json and beside the model
HALF = 0.5  # the probability from which a text has a label, before thresholds are chosen
# in columns of labels
FLAGS = {"0": False, "1": True, "0.0": False, "1.0": True, "False": False, "True": True}


def labels_in(value: Any, known: set[str]) -> tuple[str, ...] | None:
    """The labels in a cell: a list, or a text with commas between them or a JSON list in it. None:
    it is none of these, or a label is not `known`, if any are."""
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith("[") and text.endswith("]"):
        try:
            value = parse_json(text)
        except InputError:
            return None
    elif value is None or isinstance(value, str):
        value = [*filter(None, map(str.strip, text.split(",")))]
    if not isinstance(value, list) or not all(isinstance(each, str | int) for each in value):
        return None
    row = tuple(map(str, value))
    return row if not known or known.issuperset(row) else None


def in_a_cell(rows: Sequence[Sequence[str]], labels: Sequence[str]) -> list[str]:
    """Each row's labels, of all these, as `labels_in` reads them: with commas between them, or all
    rows as JSON lists if a label would not come back from that."""
    if all(labels_in(label, set()) == (label,) for label in labels):
        return [",".join(row) for row in rows]
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def targets(labels: Ragged, num_labels: int) -> np.ndarray:
    """The numbers of each row's labels as float32 [B, L], 1 for each."""
    values, offsets = labels
    made = np.zeros((len(offsets) - 1, num_labels), np.float32)
    made[np.repeat(np.arange(len(made)), np.diff(offsets)), values] = 1
    return made


def thresholds_of(true_BL: np.ndarray, scores_BL: np.ndarray) -> np.ndarray:
    """For each label the threshold of its probability with the highest F1, float64 [L], in the
    middle between the probabilities of two texts. 0.5 for a label that no text has."""
    probabilities_BL = expit(scores_BL.astype(float))
    num_texts, num_labels = true_BL.shape
    num_chosen = np.arange(1, num_texts + 1)
    thresholds_L = np.full(num_labels, HALF)
    for label in range(num_labels):
        order = np.argsort(-probabilities_BL[:, label], kind="stable")
        ranked = probabilities_BL[order, label]
        lower = np.append(ranked[1:], 0)
        true = true_BL[order, label]
        f1 = 2 * np.cumsum(true) / (num_chosen + max(true.sum(), 1))
        is_tied = ranked[:-1] == ranked[1:]  # equal probabilities cannot be told apart
        f1[:-1][is_tied] = 0
        best = int(f1.argmax())
        if f1[best]:
            thresholds_L[label] = (ranked[best] + lower[best]) / 2
    return thresholds_L
