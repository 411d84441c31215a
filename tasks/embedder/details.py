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
        figures = [np.mean(values), *np.percentile(values, SHARES)]
        rows.append([name, *(f"{figure:.3f}" for figure in figures)])
    return table("Cosines", "", columns, rows)


def sections_of_search(records: Sequence[Record], total: int) -> list[Section]:
    """The pairs with the largest mistakes."""
    wrong = [record for record in records if record.mistake is not None]
    wrong.sort(key=lambda record: -(record.mistake or 0))
    shown = [record.fields for record in wrong[:MOST_ROWS]]
    if records and "score" in records[0].fields:
        names, title, note = ["score", "cosine"], "Largest errors", "the largest first"
        texts = ["anchor", "positive"]
    else:
        names, title = ["rank", "cosine", "nearest_cosine"], "A wrong document is nearest"
        note = f"{of_all(len(wrong), total)}. The largest lead over the positive first"
        texts = ["anchor", "positive", "nearest"]
    rows = []
    for fields in shown:
        figures = [f"{fields[name]:.3f}" if name != "rank" else fields[name] for name in names]
        rows.append([*(marked(str(fields[name])) for name in texts), *figures])
    columns = [*texts, *(name.replace("_", " ") for name in names)]
    return [table(title, note, columns, rows)]
