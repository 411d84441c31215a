"""What the report shows of an evaluation: figures of each label, confused labels,
and the texts that the model is least sure of.

Arrays have their shape as a suffix: B rows, L labels.
"""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from tasks.runs.details import (
    MOST_LABELS,
    Details,
    Record,
    Section,
    examples,
    figures,
    figures_of_labels,
    matrix,
    table_of_figures,
)

KINDS = "label", "examples"


def several_labels(labels: Sequence[str], true_BL: np.ndarray, chosen_BL: np.ndarray) -> Details:
    """The figures of each label. `chosen_BL` says which labels each text gets."""
    both_BL = true_BL & chosen_BL
    counts_3L = np.sum([true_BL, chosen_BL, both_BL], 1)
    by_label = figures_of_labels(labels, counts_3L)
    of_all_labels = figures(*counts_3L.sum(1).tolist())
    facts = {"labels": by_label, "micro_f1": of_all_labels["f1"]}
    shown = dict(itertools.islice(by_label.items(), MOST_LABELS))
    section = table_of_figures("Labels", "with the thresholds chosen here", KINDS, shown)
    return Details({"eval_labels": facts}, [section])


def one_label(
    suffix: str, labels: Sequence[str], true_B: np.ndarray, best_B: np.ndarray
) -> Details:
    """The labels' figures and how often one is taken for another. `suffix`: of the set, where a
    task has several."""
    name = suffix.replace("_", ", ")
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
    facts = {"labels": by_label, "confusion": confusion}
    return Details({f"eval{suffix}_labels": facts}, sections)


def least_sure(suffix: str, records: Iterable[Record]) -> Section:
    """The texts, with right labels or wrong ones, whose best label leads by least."""
    nearest_first = sorted(records, key=_lead)
    shown = [record.shown or record.fields for record in nearest_first]
    note = "the smallest lead over the second label first"
    return examples(f"Least sure{suffix.replace('_', ', ')}", note, shown)


def _lead(record: Record) -> float:
    *_, second, best = sorted(record.fields["probabilities"].values())
    return best - second
