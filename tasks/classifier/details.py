"""What the report shows of an evaluation: figures of each label, confused labels, and texts with
wrong ones.

Arrays have their shape as a suffix: B rows, L labels.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.classifier.reading import Texts
from tasks.runs.details import (
    MOST_LABELS,
    MOST_ROWS,
    NONE,
    Details,
    Section,
    figures,
    figures_of_labels,
    marked,
    matrix,
    of_all,
    table,
    table_of_figures,
)

KINDS = "label", "examples"
Columns = Mapping[str, Sequence[str] | np.ndarray]  # by their heads


def several_labels(
    labels: Sequence[str],
    texts: Texts,
    true_BL: np.ndarray,
    scores_BL: np.ndarray,
    chosen: Sequence[Sequence[str]],
) -> Details:
    """The figures of each label, and the texts with the largest loss. `chosen` are the labels that
    each text gets."""
    chosen_BL = np.array([[label in own for label in labels] for own in chosen])
    counts_3L = np.stack([true_BL.sum(0), chosen_BL.sum(0), (true_BL & chosen_BL).sum(0)])
    by_label = figures_of_labels(labels, counts_3L)
    micro_f1 = figures(*counts_3L.sum(1).tolist())["f1"]
    shown = dict(itertools.islice(by_label.items(), MOST_LABELS))
    losses_B = (np.logaddexp(0, scores_BL) - true_BL * scores_BL).mean(1)
    order = np.argsort(-losses_B, kind="stable")
    true = [itertools.compress(labels, row) for row in true_BL]
    columns = {"true": [*map(_listed, true)], "predicted": [*map(_listed, chosen)]}
    num_wrong = int((chosen_BL != true_BL).any(1).sum())
    note = f"{of_all(num_wrong, len(chosen))}. The largest loss first"
    sections = [
        table_of_figures("Labels", "with the thresholds chosen here", KINDS, shown),
        examples("Most wrong", note, texts, order, columns),
    ]
    return Details({"eval_labels": {"labels": by_label, "micro_f1": micro_f1}}, sections)


def _listed(labels: Iterable[str]) -> str:
    return ", ".join(labels) or NONE


def mistakes(
    suffix: str,
    texts: Texts,
    true_B: np.ndarray,
    probabilities_BL: np.ndarray,
    labels: Sequence[str],
) -> Details:
    """The labels' figures and how often one is taken for another, and the texts about which the
    model is wrong, or least sure. `suffix`: of the set, where a task has several."""
    name = suffix.replace("_", ", ")
    best_B = probabilities_BL.argmax(1)
    sure_B = probabilities_BL.max(1)
    counts_LL = np.zeros((len(labels), len(labels)), int)
    np.add.at(counts_LL, (true_B, best_B), 1)
    counts_3L = np.stack([counts_LL.sum(1), counts_LL.sum(0), counts_LL.diagonal()])
    by_label = figures_of_labels(labels, counts_3L)
    confusion = counts_LL.tolist()
    sections = []
    if len(labels) <= MOST_LABELS:
        note = "a row for each true label, a column for each predicted one"
        sections.append(table_of_figures(f"Labels{name}", "", KINDS, by_label))
        sections.append(matrix(f"Confusion{name}", note, labels, confusion))
    columns: Columns = {
        "true": [labels[number] for number in true_B],
        "predicted": [labels[number] for number in best_B],
        "probability": sure_B,
    }
    surest = np.argsort(-sure_B, kind="stable")
    wrong = surest[best_B[surest] != true_B[surest]]
    in_all = of_all(len(wrong), len(true_B), suffix)
    sections.append(examples(f"Wrong, the surest first{name}", in_all, texts, wrong, columns))
    ascending_BL = np.sort(probabilities_BL, 1)
    lead_B = ascending_BL[:, -1] - ascending_BL[:, -2]
    nearest = np.argsort(lead_B, kind="stable")
    note = "the smallest lead over the second label first"
    sections.append(examples(f"Least sure{name}", note, texts, nearest, columns))
    facts = {"labels": by_label, "confusion": confusion}
    return Details({f"eval{suffix}_labels": facts}, sections)


def errors(texts: Texts, true: np.ndarray, predicted: np.ndarray) -> Details:
    """The texts whose predicted number is farthest from the true one."""
    order = np.argsort(-np.abs(predicted - true), kind="stable")
    columns = {"true": true, "predicted": predicted}
    section = examples("Largest errors", "the largest first", texts, order, columns)
    return Details(sections=[section])


def examples(title: str, note: str, texts: Texts, rows: np.ndarray, columns: Columns) -> Section:
    """A table of the first of these rows: their texts, and other columns."""
    of_texts: dict[str, Sequence[Any]] = {"text": texts.first}
    if texts.second:
        of_texts["second text"] = texts.second
    cells = []
    for row in rows[:MOST_ROWS]:
        shown = [marked(column[row]) for column in of_texts.values()]
        cells.append([*shown, *(_cell(column[row]) for column in columns.values())])
    return table(title, note, [*of_texts, *columns], cells)


def _cell(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.3f}"
