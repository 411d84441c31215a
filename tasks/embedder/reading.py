"""Pairs of texts, with hard negatives or scores, from tables."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ringbase.errors import InputError
from tasks.embedder.settings import PairSettings
from tasks.runs.rows import sources
from tasks.runs.rows.tables import number_in, open_table

# the columns of hard negatives, and of a score, where the flags name none
NEGATIVES, SCORE = ["negative"], "score"


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


def files_and_columns(settings: PairSettings) -> PairSettings:
    """The settings with the files and the columns of `--task_name`."""
    if not settings.task_name:
        return settings
    folder = Path(str(settings.data_dir)).expanduser()
    if (folder / "STS-B").is_dir():
        folder /= "STS-B"
    return replace(
        settings,
        train_file=str(folder / "train.tsv"),
        dev_file=str(folder / "dev.tsv"),
        predict_file=str(folder / "test.tsv"),
        anchor_column="sentence1",
        positive_column="sentence2",
        negative_columns="",
        score_column="score",
        score_scale=5.0,
    )


def read(source: Source) -> Pairs:
    """The pairs of a source. Raises InputError, with the place: a text or a score is missing or
    none, or there is only one pair to train on."""
    settings = source.settings
    anchor, positive = settings.anchor_column, settings.positive_column
    # what the user names must be there
    negatives, needs_negatives = NEGATIVES, False
    if settings.negative_columns is not None:
        negatives = [name.strip() for name in settings.negative_columns.split(",") if name.strip()]
        needs_negatives = True
    score = SCORE if settings.score_column is None else settings.score_column
    table = source.table((anchor, positive, *negatives, score))
    names = [str(table.find(anchor, "--anchor_column"))]
    scored = None
    if source.kind != "predict":
        names.append(str(table.find(positive, "--positive_column")))
        found = [table.find(name, "--negative_columns", needs_negatives) for name in negatives]
        names += filter(None, found)
        if score:
            needs_score = settings.score_column is not None
            scored = table.find(score, "--score_column", needs_score)
    rows: list[tuple[str, ...]] = []
    scores = []
    for place, row in table.rows:
        if len(rows) == source.limit:
            break
        where = f"{table.where}: {place}"
        rows.append(tuple(_text(row, name, where) for name in names))
        if scored:
            scores.append(_score(row.get(scored), scored, settings.score_scale, where))
    if len(rows) < (2 if source.kind == "train" else 1):
        raise InputError(f"{source}: {len(rows)} pairs, of which each is a negative of the others")
    corpus = []
    if source.kind == "dev" and settings.corpus_file:
        corpus = [*_corpus(settings.corpus_file, positive)]
    return Pairs(rows, scores or None, corpus)


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
    number = number_in(value)
    if number is None or abs(number) > scale:
        raise InputError(
            f"{where}: {name} must be a number from -{scale:g} to {scale:g} (--score_scale), got"
            f" {value!r:.80}"
        )
    return number / scale
