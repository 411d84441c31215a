"""What a task leaves for the report besides scores, in result.json: the tables of `REPORT`.

A section is a table of cells or a matrix of counts. A cell is a text, a number, or a text with
marks.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

REPORT = "report"  # the key
RUN = "run"  # in predict_result.json: what was run
SCORED_ON = "scored_on"  # in both: the data that the scores are of, by flag and file
MOST_ROWS = 12  # of a table of examples
SHORT_TEXT = 30  # characters of a label, an id, a word
MOST_LABELS = 40  # of a matrix
LONGEST_TEXT, AROUND = 600, 200  # characters of a text, and around its marks

NONE = "(none)"  # a cell for what is predicted, or true, if nothing is

Section = dict


class Details(NamedTuple):
    """What is shown of an evaluation besides its scores."""

    facts: Mapping = {}  # for result.json
    sections: Sequence[Section] = ()  # for the page


class Record(NamedTuple):
    """A line of predictions.jsonl, and whether it is a mistake."""

    # the input, the truth if there is one, the prediction, its probability or probabilities
    fields: Mapping
    # of a mistake, how sure the model was; None if it is right, or nobody knows
    mistake: float | None = None
    # what the page shows of a mistake, cells by their columns; None: the fields
    shown: Mapping | None = None


def table(title: str, note: str, columns: Sequence[str], rows: Iterable[Sequence]) -> Section:
    return {"title": title, "note": note, "columns": list(columns), "rows": [*map(list, rows)]}


def examples(title: str, note: str, shown: Sequence[Mapping]) -> Section:
    """A table of the first of these examples, each with its cells by their columns."""
    first = shown[:MOST_ROWS]
    names = [*dict.fromkeys(itertools.chain(*first))]
    rows = [[_cell(columns.get(name, "")) for name in names] for columns in first]
    for place in range(len(names)):
        texts = [row for row in rows if isinstance(row[place], str)]
        # a column of texts gets room on the page
        if any(len(row[place]) > SHORT_TEXT for row in texts):
            for row in texts:
                row[place] = marked(row[place])
    return table(title, note, names, rows)


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    if isinstance(value, Mapping) and value.keys() != {"text", "marks"}:
        value = str(value)
    return NONE if value == "" else value


def matrix(
    title: str, note: str, labels: Sequence[str], counts: Sequence[Sequence[int]]
) -> Section:
    """`counts` has a row for each true label and a column for each predicted one."""
    return {"title": title, "note": note, "labels": list(labels), "counts": counts}


def figures(examples: int, found: int, right: int) -> dict[str, float]:
    """Of a label: how often it is true, its precision, its recall and its F1."""
    precision = right / max(1, found)
    recall = right / max(1, examples)
    f1 = 2 * right / max(1, examples + found)
    return {"examples": examples, "precision": precision, "recall": recall, "f1": f1}


def figures_of_labels(labels: Sequence[str], counts_3L: np.ndarray) -> dict[str, dict[str, float]]:
    """The figures of each of L labels, from how often it is true, is predicted, and both."""
    figures_L = map(figures, *counts_3L.tolist())
    return dict(zip(labels, figures_L, strict=True))


def table_of_figures(
    title: str, note: str, kinds: tuple[str, str], by_label: Mapping[str, Mapping]
) -> Section:
    """The figures of each label; `kinds` are what a label is called, and what is counted."""
    rows = ([label, *values.values()] for label, values in by_label.items())
    return table(title, note, [*kinds, "precision", "recall", "F1"], rows)


def marked(text: str, marks: Sequence[tuple[int, int, str]] = ()) -> Section:
    """A text with the names of some of its parts (start, end, name). A long one is cut around
    them."""
    cut_start, cut_stop = 0, len(text)
    if len(text) > LONGEST_TEXT:
        first = min((start for start, _, _ in marks), default=0)
        last = max((stop for _, stop, _ in marks), default=0)
        cut_start = max(0, first - AROUND)
        cut_stop = max(last + AROUND, first + LONGEST_TEXT // 2)
    before = "…" if cut_start else ""
    after = "…" if cut_stop < len(text) else ""
    shown = before + text[cut_start:cut_stop] + after
    shift = cut_start - len(before)
    shifted = [[start - shift, stop - shift, name] for start, stop, name in marks]
    return {"text": shown, "marks": shifted}
