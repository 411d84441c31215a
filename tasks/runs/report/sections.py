"""Tables, matrices and marked texts (tasks/runs/details.py) as HTML."""

import html
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tasks.runs.details import Section


def section(content: Section) -> str:
    note = f'<p class="quiet">{html.escape(content["note"])}</p>' if content.get("note") else ""
    note += legend_of(content)
    if "counts" in content:
        body = matrix(content["labels"], content["counts"])
    elif content["rows"]:
        body = table(content["columns"], content["rows"])
    else:
        body = "<p>None.</p>"
    return f"<section><h3>{html.escape(content['title'])}</h3>{note}{body}</section>"


# the classes of marks, and what they say
COLOURS = {"answer": "true", "predicted": "predicted", "answer predicted": "both"}


def legend_of(content: Section) -> str:
    """What the colours of the marks in a table say; "" without marks."""
    cells = [cell for row in content.get("rows", ()) for cell in row if isinstance(cell, Mapping)]
    if not any(cell["marks"] for cell in cells):
        return ""
    keys = "".join(f'<mark class="{name}">{text}</mark>' for name, text in COLOURS.items())
    return f'<div class="legend">{keys}</div>'


LONGEST_HEAD = 30  # characters of a column's head on one line


class Best(str):
    """A cell with the best value of its row."""


def table(heads: Sequence[str], rows: Iterable[Sequence]) -> str:
    head = "".join(map(head_cell, heads))
    body = ("<tr>" + "".join(map(cell, row, heads)) + "</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def head_cell(text: str) -> str:
    """On one line, so that `lr-2e-05` is not broken, unless it is a long one."""
    start = '<th class="long">' if len(text) > LONGEST_HEAD else "<th>"
    return f"{start}{html.escape(text)}</th>"


def cell(value: Any, head: str) -> str:
    """With the head of its column, which a phone shows beside it in tables with texts."""
    start = f'<td data-head="{html.escape(head)}"'
    if isinstance(value, Mapping):
        return f'{start} class="text">{marked(str(value["text"]), value["marks"])}</td>'
    if isinstance(value, Best):
        return f'{start} class="best">{html.escape(value)}</td>'
    if isinstance(value, float):
        return f"{start}>{value:.2f}</td>" if value > 1 else f"{start}>{value:.4f}</td>"
    return f"{start}>{html.escape(f'{value:,}' if isinstance(value, int) else str(value))}</td>"


def marked(text: str, marks: Sequence[Sequence]) -> str:
    """A text with its marks, which may overlap."""
    edges = {0, len(text)}
    for start, stop, _ in marks:
        edges |= {start, stop}
    parts = ""
    for start, stop in itertools.pairwise(sorted(edges)):
        names = sorted({name for a, b, name in marks if a <= start and stop <= b})
        part = html.escape(text[start:stop])
        parts += f'<mark class="{" ".join(names)}">{part}</mark>' if names else part
    return parts


def matrix(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Counts, the darker the larger their share of the true label's examples."""
    head = "".join(f"<th>{html.escape(label)}</th>" for label in labels)
    rows = ""
    for label, row in zip(labels, counts, strict=True):
        rows += f"<tr><th>{html.escape(label)}</th>"
        for place, count in zip(labels, row, strict=False):
            kind = "right" if place == label else "wrong"
            share = 100 * count / max(1, sum(row))
            rows += f'<td class="{kind}" style="--share:{share:.0f}%">{count:,}</td>'
        rows += "</tr>"
    return f'<div class="wide"><table class="matrix"><tr><th></th>{head}</tr>{rows}</table></div>'
