"""What the report shows of an evaluation: figures of each label, confused labels, and texts with
wrong ones.

Arrays have their shape as a suffix: B rows, L labels.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from tasks.cache import Prepared
from tasks.classifier.named_tasks import Labels
from tasks.classifier.reading import Source, Texts, read
from tasks.classifier.scoring import true_labels
from tasks.classifier.several import THRESHOLDS, thresholds_of
from tasks.details import (
    MOST_LABELS,
    MOST_ROWS,
    REPORT,
    Section,
    figures,
    marked,
    matrix,
    table,
    table_of_figures,
)

KINDS = "label", "examples"
Columns = Mapping[str, Sequence[Any]]  # by their heads


def details(
    sets: Sequence[tuple[Source, Prepared]], outputs: Mapping[str, Any], labels: Labels
) -> dict[str, Any]:
    """For result.json, of the dev sets and the outputs for each: the figures of each label, and
    sections. On rank 0."""
    facts, sections = dict[str, Any](), list[Section]()
    for source, data in sets:
        true, scores_BL = true_labels(source, data, labels), np.array(outputs[source.split])
        name, texts = source.suffix.replace("_", ", "), read(source, labels or ())
        if labels is None:
            sections += errors(name, texts, true, scores_BL[:, 0])
            continue
        if source.task.has_several:
            thresholds = thresholds_of(true, scores_BL)
            facts[THRESHOLDS] = dict(zip(labels, thresholds.tolist(), strict=True))
            of_set, more = several_labels(labels, texts, true, scores_BL, thresholds)
        else:
            of_set, more = mistakes(name, texts, true, softmax(scores_BL.astype(float), 1), labels)
        facts[f"eval{source.suffix}_labels"] = of_set
        sections += more
    return facts | {REPORT: sections}


def several_labels(
    labels: Sequence[str],
    texts: Texts,
    true_BL: np.ndarray,
    scores_BL: np.ndarray,
    thresholds_L: np.ndarray,
) -> tuple[dict[str, Any], list[Section]]:
    """The figures of each label with its threshold, and the texts with the largest loss."""
    tuned_BL = expit(scores_BL.astype(float)) > thresholds_L
    counts_L = [part.sum(0) for part in (true_BL, tuned_BL, true_BL & tuned_BL)]
    by_label = dict(zip(labels, map(figures, *(part.tolist() for part in counts_L)), strict=True))
    losses_B = (np.logaddexp(0, scores_BL) - true_BL * scores_BL).mean(1)

    def words(rows_BL: np.ndarray) -> list[str]:
        return [", ".join(itertools.compress(labels, row)) for row in rows_BL]

    columns = {"true": words(true_BL), "predicted": words(tuned_BL)}
    shown = dict(itertools.islice(by_label.items(), MOST_LABELS))
    order = np.argsort(-losses_B, kind="stable")
    totals = (int(part.sum()) for part in counts_L)
    return {"labels": by_label, "micro_f1": figures(*totals)["f1"]}, [
        table_of_figures("Labels", "with the thresholds chosen here", KINDS, shown),
        examples("Most wrong", "the largest loss first", texts, order, columns),
    ]


def mistakes(
    name: str, texts: Texts, true: np.ndarray, probabilities_BL: np.ndarray, labels: Sequence[str]
) -> tuple[dict[str, Any], list[Section]]:
    """The labels' figures and how often one is taken for another, and the texts about which the
    model is wrong, or least sure."""
    best_B, sure_B = probabilities_BL.argmax(1), probabilities_BL.max(1)
    lead_B = np.diff(np.sort(probabilities_BL, 1)[:, -2:])[:, 0]
    columns = {
        "true": [labels[number] for number in true],
        "predicted": [labels[number] for number in best_B],
        "probability": [f"{value:.3f}" for value in sure_B.tolist()],
    }
    surest, nearest = (np.argsort(key, kind="stable") for key in (-sure_B, lead_B))
    wrong, note = (
        surest[best_B[surest] != true[surest]],
        "the smallest lead over the second label first",
    )
    sections = [
        examples(f"Wrong, the surest first{name}", "", texts, wrong, columns),
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
