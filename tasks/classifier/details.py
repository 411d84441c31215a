"""What the report shows of an evaluation: figures of each label, confused labels, and texts with
wrong ones.

Arrays have their shape as a suffix: B rows, L labels.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.classifier.reading import Texts
from tasks.runs.details import (
    MOST_LABELS,
    MOST_ROWS,
    NONE,
    Section,
    figures,
    marked,
    matrix,
    of_all,
    table,
    table_of_figures,
)

KINDS = "label", "examples"
Columns = Mapping[str, Sequence[Any]]  # by their heads


def several_labels(
    labels: Sequence[str],
    texts: Texts,
    true_BL: np.ndarray,
    scores_BL: np.ndarray,
    chosen: Sequence[Sequence[str]],
) -> tuple[dict[str, Any], list[Section]]:
    """The figures of each label, and the texts with the largest loss. `chosen` are the labels that
    each text gets."""
    tuned_BL = np.array([[label in own for label in labels] for own in chosen])
    counts_L = [part.sum(0) for part in (true_BL, tuned_BL, true_BL & tuned_BL)]
    by_label = dict(zip(labels, map(figures, *(part.tolist() for part in counts_L)), strict=True))
    losses_B = (np.logaddexp(0, scores_BL) - true_BL * scores_BL).mean(1)
    true = [", ".join(itertools.compress(labels, row)) or NONE for row in true_BL]
    columns = {"true": true, "predicted": [", ".join(own) or NONE for own in chosen]}
    in_all = of_all(int((tuned_BL != true_BL).any(1).sum()), len(texts.first))
    shown = dict(itertools.islice(by_label.items(), MOST_LABELS))
    order = np.argsort(-losses_B, kind="stable")
    totals = (int(part.sum()) for part in counts_L)
    return {"labels": by_label, "micro_f1": figures(*totals)["f1"]}, [
        table_of_figures("Labels", "with the thresholds chosen here", KINDS, shown),
        examples("Most wrong", f"{in_all}. The largest loss first", texts, order, columns),
    ]


def mistakes(
    suffix: str, texts: Texts, true: np.ndarray, probabilities_BL: np.ndarray, labels: Sequence[str]
) -> tuple[dict[str, Any], list[Section]]:
    """The labels' figures and how often one is taken for another, and the texts about which the
    model is wrong, or least sure. `suffix`: of the set, where a task has several."""
    name = suffix.replace("_", ", ")
    best_B, sure_B = probabilities_BL.argmax(1), probabilities_BL.max(1)
    lead_B = np.diff(np.sort(probabilities_BL, 1)[:, -2:])[:, 0]
    columns = {
        "true": [labels[number] for number in true],
        "predicted": [labels[number] for number in best_B],
        "probability": [f"{value:.3f}" for value in sure_B.tolist()],
    }
    surest, nearest = (np.argsort(key, kind="stable") for key in (-sure_B, lead_B))
    wrong = surest[best_B[surest] != true[surest]]
    in_all, note = (
        of_all(len(wrong), len(true), suffix),
        "the smallest lead over the second label first",
    )
    sections = [
        examples(f"Wrong, the surest first{name}", in_all, texts, wrong, columns),
        examples(f"Least sure{name}", note, texts, nearest, columns),
    ]
    counts_LL = np.zeros((len(labels), len(labels)), int)
    np.add.at(counts_LL, (true, best_B), 1)
    totals = counts_LL.sum(1).tolist(), counts_LL.sum(0).tolist(), counts_LL.diagonal().tolist()
    by_label, confusion = dict(zip(labels, map(figures, *totals), strict=True)), counts_LL.tolist()
    if len(labels) <= MOST_LABELS:
        note = "a row for each true label, a column for each predicted one"
        sections[:0] = [
            table_of_figures(f"Labels{name}", "", KINDS, by_label),
            matrix(f"Confusion{name}", note, labels, confusion),
        ]
    return {"labels": by_label, "confusion": confusion}, sections


def errors(name: str, texts: Texts, true: np.ndarray, predicted: np.ndarray) -> list[Section]:
    """The texts whose predicted number is farthest from the true one."""
    both = {"true": true, "predicted": predicted}
    columns = {kind: [f"{value:.3f}" for value in values.tolist()] for kind, values in both.items()}
    order = np.argsort(-np.abs(predicted - true), kind="stable")
    return [examples(f"Largest errors{name}", "the largest first", texts, order, columns)]


def examples(title: str, note: str, texts: Texts, rows: np.ndarray, columns: Columns) -> Section:
    """A table of the first of these rows: their texts, and other columns."""
    first = {"text": texts.first} | ({"second text": texts.second} if texts.second else {})
    cells = [
        [
            *(marked(values[row]) for values in first.values()),
            *(values[row] for values in columns.values()),
        ]
        for row in rows[:MOST_ROWS].tolist()
    ]
    return table(title, note, [*first, *columns], cells)
