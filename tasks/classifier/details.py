"""What the report shows of an evaluation: figures of each label, confused labels, and texts with wrong ones.

Arrays have their shape as a suffix: B rows, L labels.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from tasks.cache import Prepared
from tasks.classifier.named_tasks import Labels
from tasks.classifier.reading import Source, Texts, read
from tasks.classifier.scoring import true_labels
from tasks.classifier.several import THRESHOLDS, thresholds_of
from tasks.details import MOST_LABELS, MOST_ROWS, REPORT, Section, figures, marked, matrix, table

Column = tuple[str, Sequence[Any]]


def details(sets: Sequence[tuple[Source, Prepared]], outputs: Mapping[str, Any], labels: Labels) -> dict[str, Any]:
    """For result.json, of the dev sets and the outputs for each: `by_label`, and sections. On rank 0."""
    facts, sections = dict[str, Any](), list[Section]()
    for source, data in sets:
        true, scores_BL = true_labels(source, data, labels), np.array(outputs[source.split])
        name, texts = source.suffix.replace("_", ", "), read(source, labels or ())
        if labels is not None and source.task.has_several:
            thresholds = thresholds_of(true, scores_BL)
            tuned = expit(scores_BL.astype(float)) > thresholds
            more, more_sections = several_labels(labels, texts, true, scores_BL, tuned)
            facts |= {
                f"eval{source.suffix}_labels": more,
                THRESHOLDS: dict(zip(labels, thresholds.tolist(), strict=True)),
            }
            sections += more_sections
        elif labels is None:
            sections += errors(name, texts, true, scores_BL[:, 0])
        else:
            facts[f"eval{source.suffix}_labels"] = more = by_label(labels, true, scores_BL.argmax(1))
            sections += mistakes(name, texts, true, softmax(scores_BL.astype(float), 1), labels, more)
    return facts | {REPORT: sections}


def by_label(labels: Sequence[str], true: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """For result.json: of each label the number of examples, precision, recall and F1; `confusion` has a row for
    each true label and a column for each predicted one."""
    counts = np.zeros((len(labels), len(labels)), int)
    np.add.at(counts, (true, predicted), 1)
    columns = counts.sum(1).tolist(), counts.sum(0).tolist(), counts.diagonal().tolist()
    return {"labels": dict(zip(labels, map(figures, *columns), strict=True)), "confusion": counts.tolist()}


def several_labels(
    labels: Sequence[str], texts: Texts, true_BL: np.ndarray, scores_BL: np.ndarray, tuned_BL: np.ndarray
) -> tuple[dict[str, Any], list[Section]]:
    """The figures of each label with its threshold, and the texts with the largest loss."""
    counts_L = [part.sum(0) for part in (true_BL, tuned_BL, true_BL & tuned_BL)]
    by_label = dict(zip(labels, map(figures, *(part.tolist() for part in counts_L)), strict=True))
    losses_B = (np.logaddexp(0, scores_BL) - true_BL * scores_BL).mean(1)

    def words(rows_BL: np.ndarray) -> list[str]:
        return [", ".join(label for label, flag in zip(labels, row, strict=True) if flag) for row in rows_BL]

    columns = [("true", words(true_BL)), ("predicted", words(tuned_BL))]
    rows = ([label, *each.values()] for label, each in list(by_label.items())[:MOST_LABELS])
    order = np.argsort(-losses_B, kind="stable")
    totals = (int(part.sum()) for part in counts_L)
    return {"labels": by_label, "micro_f1": figures(*totals)["f1"]}, [
        table(
            "Labels", "with the thresholds chosen here", ["label", "examples", "precision", "recall", "F1"], rows
        ),
        examples("Most wrong", "the largest loss first", texts, order, columns),
    ]


def mistakes(
    name: str, texts: Texts, true: np.ndarray, probabilities_BL: np.ndarray, labels: Sequence[str], of_labels: Any
) -> list[Section]:
    """The labels' figures, and the texts about which the model is wrong, or least sure."""
    best_B, sure_B = probabilities_BL.argmax(1), probabilities_BL.max(1)
    lead_B = np.diff(np.sort(probabilities_BL, 1)[:, -2:])[:, 0]
    columns: list[Column] = [
        ("true", [labels[number] for number in true]),
        ("predicted", [labels[number] for number in best_B]),
        ("probability", [f"{value:.3f}" for value in sure_B.tolist()]),
    ]
    surest, nearest = (np.argsort(key, kind="stable") for key in (-sure_B, lead_B))
    wrong, note = surest[best_B[surest] != true[surest]], "the smallest lead over the second label first"
    sections = [
        examples(f"Wrong, the surest first{name}", "", texts, wrong, columns),
        examples(f"Least sure{name}", note, texts, nearest, columns),
    ]
    if len(labels) <= MOST_LABELS:
        rows = ([label, *each.values()] for label, each in of_labels["labels"].items())
        note = "a row for each true label, a column for each predicted one"
        heads = ["label", "examples", "precision", "recall", "F1"]
        sections[:0] = [
            table(f"Labels{name}", "", heads, rows),
            matrix(f"Confusion{name}", note, labels, of_labels["confusion"]),
        ]
    return sections


def errors(name: str, texts: Texts, true: np.ndarray, predicted: np.ndarray) -> list[Section]:
    """The texts whose predicted number is farthest from the true one."""
    columns = [
        (kind, [f"{value:.3f}" for value in values.tolist()])
        for kind, values in (("true", true), ("predicted", predicted))
    ]
    order = np.argsort(-np.abs(predicted - true), kind="stable")
    return [examples(f"Largest errors{name}", "the largest first", texts, order, columns)]


def examples(title: str, note: str, texts: Texts, rows: np.ndarray, columns: Sequence[Column]) -> Section:
    """A table of the first of these rows: their texts, and other columns."""
    first: list[Column] = [("text", texts.first), *([("second text", texts.second)] if texts.second else [])]
    cells = [
        [*(marked(values[row]) for _, values in first), *(values[row] for _, values in columns)]
        for row in rows[:MOST_ROWS].tolist()
    ]
    return table(title, note, [head for head, _ in (*first, *columns)], cells)
