"""What the page shows of vectors: cosines, and what stands before the positives."""

from collections.abc import Sequence

import numpy as np

from tasks.runs.details import MOST_ROWS, Section, marked, of_all, table
from tasks.runs.task import Record

SHARES = (5, 25, 50, 75, 95)  # percentiles


def cosines_of(pairs: np.ndarray, others: np.ndarray) -> Section:
    columns = ["cosine of", "mean", *(f"{share} % below" for share in SHARES)]
    rows = []
    for name, values in (("pairs", pairs), ("an anchor and another row's positive", others)):
        if len(values):
            figures = [np.mean(values), *np.percentile(values, SHARES)]
            rows.append([name, *(f"{figure:.3f}" for figure in figures)])
    return table("Cosines", "", columns, rows)


def section_of_mistakes(records: Sequence[Record]) -> Section:
    """The anchors to which a wrong document is nearest, or the pairs with the largest errors."""
    wrong = [record for record in records if record.mistake is not None]
    wrong.sort(key=lambda record: -(record.mistake or 0))
    if "score" in records[0].fields:
        texts, figures = ["anchor", "positive"], ["score", "cosine"]
        title, note = "Largest errors", "the largest first"
    else:
        texts, figures = ["anchor", "positive", "nearest"], ["rank", "cosine", "nearest_cosine"]
        in_all = of_all(len(wrong), len(records))
        title, note = "A wrong document is nearest", f"{in_all}. The largest lead first"
    rows = []
    for fields in (record.fields for record in wrong[:MOST_ROWS]):
        shown = [f"{fields[name]:.3f}" if name != "rank" else fields[name] for name in figures]
        rows.append([*(marked(str(fields[name])) for name in texts), *shown])
    return table(title, note, [*texts, *(name.replace("_", " ") for name in figures)], rows)
