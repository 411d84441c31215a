"""What the report shows of an evaluation: figures of each label, confused labels, and texts with
wrong ones.

Arrays have their shape as a suffix: B rows, L labels.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

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
    chosen_BL = np.zeros_like(true_BL)
    for row_L, names in zip(chosen_BL, chosen, strict=True):
        row_L[:] = [label in names for label in labels]
    both_BL = true_BL & chosen_BL
    counts_3L = np.sum([true_BL, chosen_BL, both_BL], 1)
    by_label = figures_of_labels(labels, counts_3L)
    of_all_labels = figures(*counts_3L.sum(1).tolist())
    facts = {"labels": by_label, "micro_f1": of_all_labels["f1"]}
    losses_BL = np.logaddexp(0, scores_BL) - true_BL * scores_BL
    largest_first = np.argsort(-losses_BL.mean(1), kind="stable")
    true = [itertools.compress(labels, row_L) for row_L in true_BL]
    columns = {"true": [*map(_listed, true)], "predicted": [*map(_listed, chosen)]}
    is_wrong_B = (chosen_BL != true_BL).any(1)
    note = f"{of_all(int(is_wrong_B.sum()), len(chosen))}. The largest loss first"
    shown = dict(itertools.islice(by_label.items(), MOST_LABELS))
    sections = [
        table_of_figures("Labels", "with the thresholds chosen here", KINDS, shown),
        examples("Most wrong", note, texts, largest_first, columns),
    ]
    return Details({"eval_labels": facts}, sections)


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
    surest_first = np.argsort(-sure_B, kind="stable")
    is_wrong = best_B[surest_first] != true_B[surest_first]
    wrong = surest_first[is_wrong]
    in_all = of_all(len(wrong), len(true_B), suffix)
    sections.append(examples(f"Wrong, the surest first{name}", in_all, texts, wrong, columns))
    ascending_BL = np.sort(probabilities_BL, 1)
    lead_B = ascending_BL[:, -1] - ascending_BL[:, -2]
    nearest_first = np.argsort(lead_B, kind="stable")
    note = "the smallest lead over the second label first"
    sections.append(examples(f"Least sure{name}", note, texts, nearest_first, columns))
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
    of_texts: dict = {"text": texts.first}
    if texts.second:
        of_texts["second text"] = texts.second
    table_rows = []
    for row in rows[:MOST_ROWS]:
        cells: list = [marked(column[row]) for column in of_texts.values()]
        for column in columns.values():
            cells.append(_cell(column[row]))
        table_rows.append(cells)
    return table(title, note, [*of_texts, *columns], table_rows)


def _cell(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.3f}"
