"""Pairs of texts, with hard negatives or scores, from tables."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bert.hub import cached_commit, load_data_set
from ringbase.errors import InputError
from tasks.embedder.settings import PairSettings
from tasks.runs.tables import Table, of_data_set, open_table

SPLITS = {"train": "train", "dev": "validation", "predict": "test"}
STS_COLUMNS = "sentence1", "sentence2", (), "score"
STS_SCALE = 5.0


class Pairs(NamedTuple):
    """Rows of texts: anchor, positive and hard negatives, of which a set to predict has the anchor
    only. Scores are from -1 to 1."""

    rows: list[tuple[str, ...]]
    scores: list[float] | None = None
    corpus: Sequence[str] = ()  # more documents among which anchors search


@dataclass(frozen=True)
class Source:
    """The "train", "dev" or "predict" pairs of the settings."""

    settings: PairSettings
    kind: str

    def __str__(self) -> str:
        settings = self.settings
        if settings.task_name:
            return f"--task_name {settings.task_name} --data_dir {settings.data_dir} ({self.kind})"
        if path := self.path:
            return f"--{self.kind}_file {path}"
        return f"--dataset_name {settings.dataset_name}"

    @property
    def path(self) -> str | None:
        return getattr(self.settings, f"{self.kind}_file")

    @property
    def commit(self) -> str | None:
        name, revision = self.settings.dataset_name, self.settings.dataset_revision
        return cached_commit(name, revision) if name and not self.path else None


def read(source: Source) -> Pairs:
    """The pairs of a source. Raises InputError, with the place: a text or a score is missing or
    none, or there is only one pair to train on."""
    settings = source.settings
    limit = settings.max_train_examples if source.kind == "train" else settings.max_predict_examples
    table, (anchor, positive, negatives, score), scale = _table(source)
    names = [_needed(table, anchor, "anchor")]
    if source.kind != "predict":
        names.append(_needed(table, positive, "positive"))
        names += filter(None, (table.find(name, is_needed=False) for name in negatives))
    scored = table.find(score, is_needed=False) if source.kind != "predict" else None
    rows, scores = list[tuple[str, ...]](), list[float]()
    for place, row in table.rows:
        if len(rows) == limit:
            break
        where = f"{table.where}: {place}"
        rows.append(tuple(_text(row.get(name), str(name), where) for name in names))
        if scored:
            scores.append(_score(row.get(scored), scored, scale, where))
    if len(rows) < (2 if source.kind == "train" else 1):
        raise InputError(f"{source}: {len(rows)} pairs, of which each is a negative of the others")
    corpus = _corpus(settings, positive) if source.kind == "dev" and settings.corpus_file else ()
    return Pairs(rows, scores or None, list(corpus))


def _needed(table: Table, column: str, kind: str) -> str | None:
    try:
        return table.find(column)
    except InputError as error:
        raise InputError(f"{error} (--{kind}_column names another)") from None


def _table(source: Source) -> tuple[Table, tuple, float]:
    """The table of a source, the names of its columns, and the scale of its scores."""
    settings, where = source.settings, str(source)
    negatives = tuple(name.strip() for name in settings.negative_columns.split(","))
    columns = settings.anchor_column, settings.positive_column, negatives, settings.score_column
    if settings.task_name:
        folder = Path(str(settings.data_dir)).expanduser()
        folder = folder / "STS-B" if (folder / "STS-B").is_dir() else folder
        names = {"train": "train.tsv", "dev": "dev.tsv", "predict": "test.tsv"}
        names_read = (*STS_COLUMNS[:2], "score")
        table = open_table(folder / names[source.kind], where, names_read, (), True)
        return table, STS_COLUMNS, STS_SCALE
    if source.path:
        wanted = (*columns[:2], *negatives, columns[3])
        return (
            open_table(Path(source.path).expanduser(), where, wanted),
            columns,
            settings.score_scale,
        )
    name, revision = str(settings.dataset_name), settings.dataset_revision
    data = load_data_set(name, None, SPLITS[source.kind], where, revision)
    return of_data_set(data, where), columns, settings.score_scale


def _corpus(settings: PairSettings, column: str) -> Iterator[str]:
    where = f"--corpus_file {settings.corpus_file}"
    table = open_table(Path(str(settings.corpus_file)).expanduser(), where, (column,))
    name = table.find(column)
    for place, row in table.rows:
        yield _text(row.get(name), str(name), f"{where}: {place}")


def _text(value: object, name: str, where: str) -> str:
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
