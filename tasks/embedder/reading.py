"""Pairs of texts, with hard negatives or scores, from tables."""

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ringbase.errors import InputError
from tasks.runs import sources
from tasks.runs.tables import Table, open_table

STS_FILES = {"train": "train.tsv", "dev": "dev.tsv", "predict": "test.tsv"}
STS_SCALE = 5.0
Columns = tuple[str, str, Sequence[str], str]  # anchor, positive, negatives, score


class Pairs(NamedTuple):
    """Rows of texts: anchor, positive and hard negatives, of which a set to predict has the anchor
    only. Scores are from -1 to 1."""

    rows: list[tuple[str, ...]]
    scores: list[float] | None = None
    corpus: Sequence[str] = ()  # more documents among which anchors search

    def places(self) -> dict[str, int]:
        """Each text once, and its place in the order of the first ones."""
        texts = dict.fromkeys([*itertools.chain(*self.rows), *self.corpus])
        return {text: place for place, text in enumerate(texts)}

    def places_in_rows(self) -> np.ndarray:
        """The places of the texts of each row, int64 [rows, columns]."""
        place_of = self.places()
        return np.array([[place_of[text] for text in row] for row in self.rows])


class Source(sources.Source):
    """Those of `--task_name`, too."""

    def __str__(self) -> str:
        settings = self.settings
        if settings.task_name:
            return f"--task_name {settings.task_name} --data_dir {settings.data_dir} ({self.kind})"
        return super().__str__()


def read(source: Source) -> Pairs:
    """The pairs of a source. Raises InputError, with the place: a text or a score is missing or
    none, or there is only one pair to train on."""
    settings = source.settings
    table, (anchor, positive, negatives, score), scale = _table(source)
    names = [str(table.find(anchor, "--anchor_column"))]
    scored = None
    if source.kind != "predict":
        names.append(str(table.find(positive, "--positive_column")))
        names += filter(None, (table.find(name, is_needed=False) for name in negatives))
        scored = table.find(score, is_needed=False)
    rows: list[tuple[str, ...]] = []
    scores = []
    for place, row in table.rows:
        if len(rows) == source.limit:
            break
        where = f"{table.where}: {place}"
        rows.append(tuple(_text(row, name, where) for name in names))
        if scored:
            scores.append(_score(row.get(scored), scored, scale, where))
    if len(rows) < (2 if source.kind == "train" else 1):
        raise InputError(f"{source}: {len(rows)} pairs, of which each is a negative of the others")
    corpus = []
    if source.kind == "dev" and settings.corpus_file:
        corpus = [*_corpus(settings.corpus_file, positive)]
    return Pairs(rows, scores or None, corpus)


def _table(source: Source) -> tuple[Table, Columns, float]:
    """The table of a source, the names of its columns, and the scale of its scores."""
    settings = source.settings
    if settings.task_name:
        folder = Path(settings.data_dir).expanduser()
        if (folder / "STS-B").is_dir():
            folder /= "STS-B"
        path = folder / STS_FILES[source.kind]
        table = open_table(path, str(source), (), skips_short_rows=True)
        return table, ("sentence1", "sentence2", (), "score"), STS_SCALE
    negatives = [name.strip() for name in settings.negative_columns.split(",")]
    first = settings.anchor_column, settings.positive_column
    score = settings.score_column
    table = source.table((*first, *negatives, score))
    return table, (*first, negatives, score), settings.score_scale


def _corpus(file: str, column: str) -> Iterator[str]:
    where = f"--corpus_file {file}"
    table = open_table(Path(file).expanduser(), where, (column,))
    name = str(table.find(column, "--positive_column"))
    for place, row in table.rows:
        yield _text(row, name, f"{where}: {place}")


def _text(row: dict, name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {name} must be a text that is not empty, got {value!r:.80}")
    return value


def _score(value: object, name: str, scale: float, where: str) -> float:
    try:
        score = float(str(value)) / scale
    except ValueError:
        score = math.nan
    if not -1 <= score <= 1:
        raise InputError(
            f"{where}: {name} must be a number from -{scale:g} to {scale:g} (--score_scale), got"
            f" {value!r:.80}"
        )
    return score
