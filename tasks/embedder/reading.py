"""Pairs of texts, with hard negatives or scores, from tables."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ringbase.errors import InputError
from tasks.embedder.beir import Judged, are_judgements, read_judgements
from tasks.embedder.cells import score_in, scored_texts, texts_in
from tasks.embedder.labels import kind_of, rows_of_classes, rows_of_judged
from tasks.embedder.settings import PairSettings, PromptName
from tasks.runs.rows import sources
from tasks.runs.rows.tables import Table, open_table

# the columns of hard negatives, and of a score, where the flags name none
NEGATIVES, SCORE = ["negative|neg"], "score"
# columns in which miners leave what they found
OF_MINERS = ("pos_scores", "neg_scores", "scores")
OF_POSITIVES, OF_NEGATIVES, _ = OF_MINERS
UNREAD = "which no loss here reads"


class Pairs(NamedTuple):
    """Rows of texts: anchor, positive and any number of hard negatives, of which a set to predict
    has the anchor only. Scores are from -1 to 1."""

    rows: list[tuple[str, ...]]
    scores: list[float] | None = None
    corpus: Sequence[str] = ()  # more documents among which anchors search
    counts: Mapping[str, int] = {}  # of what the user may not expect, by its description
    notes: Sequence[str] = ()  # what is said of the columns
    prompt_name: PromptName | None = None  # of texts to embed; None: as the settings say
    judged: Judged | None = None  # of a search in the form of BEIR
    sets: Sequence[tuple[str, int]] = ()  # of several files: their names and numbers of rows
    # of each row the class of both texts, if texts have classes
    labels: Sequence[str | None] | None = None
    # of each row a teacher's scores of its positive and its negatives
    teacher: Sequence[tuple[float, ...]] | None = None

    @property
    def unread(self) -> list[str]:
        """The notes about scores that are not read."""
        return [note for note in self.notes if note.endswith(UNREAD)]

    @property
    def content(self) -> tuple:
        """All that rows of tokens and their notes depend on. Pairs about which there is nothing to
        say have the content that earlier versions knew, whose trainings go on."""
        said = [dict(self.counts), *self.notes] if self.counts or self.notes else []
        prompt = [self.prompt_name] if self.prompt_name else []
        judged = [tuple(self.judged)] if self.judged else []
        more = [*self.sets, *filter(None, (self.labels, self.teacher))]
        return (self.rows, self.scores, self.corpus, *said, *prompt, *judged, *more)


@dataclass(frozen=True)
class Source(sources.Source):
    """Those of `--task_name`, too."""

    mines: bool = False  # the set to predict has pairs, of which negatives are mined
    distills: bool = False  # the set to train on has a teacher's scores

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
    """The pairs of a source, of several files to train on one after the other. Raises InputError,
    with the place: as `_read_file`; only some of the files have scores."""
    sets = source.settings.train_sets if source.kind == "train" else []
    if len(sets) < 2:
        return _read_file(source)
    parts = []
    for each in sets:
        settings = replace(source.settings, train_file=each.patterns)
        parts.append(_read_file(replace(source, settings=settings)))
    files = [each.patterns for each in sets]
    scored = [file for file, part in zip(files, parts, strict=True) if part.scores]
    if 0 < len(scored) < len(files):
        (other, *_) = [file for file in files if file not in scored]
        raise InputError(
            f"{source}: the pairs of {scored[0]} have scores and those of {other} have none, but"
            " one loss trains on all: leave out some files, or give --score_column ''"
        )
    counts = Counter[str]()
    notes = []
    names = _names_of(files)
    for name, part in zip(names, parts, strict=True):
        counts.update(part.counts)
        notes += [f"{name} {len(part.rows):,}", *(f"{name}: {note}" for note in part.notes)]
    labels = [label for part in parts for label in part.labels or [None] * len(part.rows)]
    return Pairs(
        rows=[row for part in parts for row in part.rows],
        scores=[score for part in parts for score in part.scores or ()] or None,
        counts=dict(counts),
        notes=notes,
        sets=[(name, len(part.rows)) for name, part in zip(names, parts, strict=True)],
        labels=labels if any(labels) else None,
        teacher=[scores for part in parts for scores in part.teacher or ()] or None,
    )


def _names_of(files: Sequence[str]) -> list[str]:
    """A name for each file: without folder and ending where that is enough."""
    stems = [Path(file).name.split(".")[0] for file in files]
    return [
        file if stems.count(stem) > 1 else stem for file, stem in zip(files, stems, strict=True)
    ]


def _read_file(source: Source) -> Pairs:
    """The pairs of a file or a data set, or the texts to embed, in whichever form they are. Raises
    InputError, with the place: a column is missing, a cell holds no text, or no score, or there is
    only one pair to train on."""
    settings = source.settings
    label = settings.label_column
    table = source.table(_columns_to_read(source), [label] if label else ())
    if source.file and are_judgements(table):
        if source.distills:
            raise InputError(f"{source}: --kd_loss_type needs a teacher's scores of all texts")
        return _judged_pairs(source, Path(source.file).expanduser(), table)
    anchor_name = str(table.find(settings.anchor_column, "--anchor_column"))
    if source.kind == "predict" and not source.mines:
        return _texts_to_embed(source, table, anchor_name)
    label_name = table.find(label, "--label_column", is_needed=False) if label else None
    is_pair = label_name is None or source.mines
    positive = table.find(settings.positive_column, "--positive_column", is_needed=is_pair)
    if label_name:
        return _labelled(source, table, anchor_name, positive, label_name)
    positive_name = str(positive)
    columns_of_negatives, scored = _optional_columns(source, table)
    if source.distills:
        return _taught(source, table, anchor_name, positive_name, columns_of_negatives)
    notes = [f"no column {label}: all pairs are right"] if label else []
    if ignored := [name for name in OF_MINERS if name in table.header and name != scored]:
        notes.append(f"{', '.join(ignored)}: a miner's scores, {UNREAD}")
    names = anchor_name, positive_name, columns_of_negatives
    return _paired(source, table, names, scored, notes)


def _columns_to_read(source: Source) -> list[str]:
    """All that a row may need of a file with more columns."""
    settings = source.settings
    negatives, score = _asked_for(settings)
    columns = [settings.anchor_column, settings.positive_column, *negatives, score]
    columns.append(settings.label_column)
    if source.distills:
        columns += [OF_POSITIVES, OF_NEGATIVES]
    return columns


def _paired(
    source: Source,
    table: Table,
    names: tuple[str, str, Sequence[str]],
    scored: str | None,
    notes: list[str],
) -> Pairs:
    """The pairs of these columns (of anchors, positives, and negatives), and their scores: a row
    with several positives is as many pairs, each with all of the row's negatives. Rows without an
    anchor or a positive are left out, and counted."""
    anchor_name, positive_name, columns_of_negatives = names
    settings = source.settings
    rows: list[tuple[str, ...]] = []
    scores: list[float] = []
    counts = Counter[str]()
    for place, row in table.rows:
        if source.limit is not None and len(rows) >= source.limit:
            break
        where = f"{table.where}: {place}"
        # a list is what a miner leaves beside its negatives; a score that the user names is read
        is_mined = isinstance(row.get(scored), list) and settings.score_column is None
        if scored and is_mined and not scores:
            notes.append(f"{scored}: lists of a miner's scores, {UNREAD}")
            scored = None
        (text,) = texts_in(row, anchor_name, where, counts, takes_list=False) or [""]
        positives = texts_in(row, positive_name, where, counts)
        if not text or not positives:
            missing = positive_name if text else anchor_name
            counts[f"rows without {missing} left out"] += 1
            continue
        negatives_of_row: list[str] = []
        for name in columns_of_negatives:
            negatives_of_row += texts_in(row, name, where, counts)
        for each in positives:
            rows.append((text, each, *negatives_of_row))
            if scored:
                scores.append(score_in(row.get(scored), scored, settings.score_scale, where))
    if source.limit is not None:  # the last row may have had several positives
        del rows[source.limit :], scores[source.limit :]
    _check_number(source, rows, counts)
    corpus = []
    if (source.kind == "dev" or source.mines) and settings.corpus_file:
        corpus = [*_corpus(settings.corpus_file, settings.positive_column, counts)]
    return Pairs(rows, scores or None, corpus, dict(+counts), notes)


def _asked_for(settings: PairSettings) -> tuple[list[str], str]:
    """The columns with negatives and with a score, by the flags or by default."""
    negatives = [*NEGATIVES]
    if settings.negative_columns is not None:
        names = map(str.strip, settings.negative_columns.split(","))
        negatives = [name for name in names if name]
    score = SCORE if settings.score_column is None else settings.score_column
    return negatives, score


def _optional_columns(source: Source, table: Table) -> tuple[list[str], str | None]:
    """Those of the columns with negatives and with a score that the table has; one that the user
    names must be there. For mining there are none."""
    settings = source.settings
    negatives, score = _asked_for(settings)
    is_named = settings.negative_columns is not None
    found = [table.find(name, "--negative_columns", is_named) for name in negatives]
    if source.mines:
        return [], None
    scored = None
    if score:
        scored = table.find(score, "--score_column", settings.score_column is not None)
    return [name for name in found if name], scored


def _taught(
    source: Source,
    table: Table,
    anchor_name: str,
    positive_name: str,
    columns_of_negatives: Sequence[str],
) -> Pairs:
    """Pairs with a teacher's scores of their positives and negatives, of which there are as many as
    there are texts in a row."""
    for name in (OF_POSITIVES, OF_NEGATIVES):
        table.find(name, "which --kd_loss_type reads")
    if not columns_of_negatives:
        raise InputError(f"{source}: --kd_loss_type needs hard negatives (--negative_columns)")
    rows: list[tuple[str, ...]] = []
    teacher: list[tuple[float, ...]] = []
    counts = Counter[str]()
    for place, row in table.rows:
        if source.limit is not None and len(rows) >= source.limit:
            break
        where = f"{table.where}: {place}"
        (text,) = texts_in(row, anchor_name, where, counts, takes_list=False) or [""]
        positives = scored_texts(row, [positive_name], OF_POSITIVES, where)
        negatives = scored_texts(row, columns_of_negatives, OF_NEGATIVES, where)
        if not (text and positives and negatives):
            counts["rows without an anchor, a positive or a negative left out"] += 1
            continue
        for each, score in positives:
            rows.append((text, each, *(negative for negative, _ in negatives)))
            teacher.append((score, *(score for _, score in negatives)))
    if source.limit is not None:
        del rows[source.limit :], teacher[source.limit :]
    _check_number(source, rows, counts)
    return Pairs(rows, counts=dict(+counts), teacher=teacher)


def _labelled(
    source: Source, table: Table, anchor_name: str, positive_name: str | None, label_name: str
) -> Pairs:
    """The pairs that labels make of a table's texts, or pairs of texts."""
    counts = Counter[str]()
    judged: list[tuple[str, str, str]] = []
    classified: list[tuple[str, str]] = []
    names = [anchor_name, positive_name] if positive_name else [anchor_name]
    for place, row in table.rows:
        if source.limit is not None and len(judged) + len(classified) >= source.limit:
            break
        where = f"{table.where}: {place}"
        texts: list[str] = []
        for name in names:
            texts += texts_in(row, name, where, counts, takes_list=False)
        value = row.get(label_name)
        label = "" if value is None else str(value).strip()
        if len(texts) < len(names) or not label:
            counts[f"rows without {', '.join(names)} or {label_name} left out"] += 1
        elif positive_name:
            judged.append((texts[0], texts[1], kind_of(label, where)))
        else:
            classified.append((texts[0], label))
    rows, labels = rows_of_judged(judged, counts), None
    if not positive_name:
        rows, labels = rows_of_classes(classified, counts)
    _check_number(source, rows, counts)
    corpus = []
    if (source.kind == "dev" or source.mines) and source.settings.corpus_file:
        corpus = [*_corpus(source.settings.corpus_file, source.settings.positive_column, counts)]
    return Pairs(rows, None, corpus, dict(+counts), labels=labels)


def _judged_pairs(source: Source, file: Path, table: Table) -> Pairs:
    """A query and a document that is right for it in each row. To train on there are these
    documents only; a search has all documents, by their ids."""
    settings = source.settings
    if source.kind == "predict" and not source.mines:
        raise InputError(
            f"{source}: these are judgements, not texts: give queries.jsonl or corpus.jsonl, with"
            " --anchor_column text"
        )
    searches = source.kind == "dev" or source.mines
    most_queries = source.limit if searches else None
    search = read_judgements(table, file, str(source), most_queries, reads_all=searches)
    rows = [*search.rows()][: None if searches else source.limit]
    counts = Counter(search.counts)
    _check_number(source, rows, counts)
    if not searches:
        return Pairs(rows, counts=dict(counts))
    corpus = [*search.documents.values()]
    if settings.corpus_file:
        corpus += _corpus(settings.corpus_file, settings.positive_column, counts)
    notes = [f"{len(search.gains):,} queries among {len(corpus):,} documents"]
    # what is mined are texts, of which each counts once
    judged = None if source.mines else search.judged()
    return Pairs(rows, None, corpus, dict(+counts), notes, judged=judged)


def _check_number(source: Source, rows: Sequence, counts: Mapping[str, int]) -> None:
    """Raises InputError: there are no pairs, or only one to train on."""
    if len(rows) < (2 if source.kind == "train" else 1):
        left_out = "".join(f", {number:,} {what}" for what, number in counts.items())
        raise InputError(
            f"{source}: {len(rows)} pairs, of which each is a negative of the others{left_out}"
        )


def _texts_to_embed(source: Source, table: Table, name: str) -> Pairs:
    """Each row of a set to predict: what is empty has a vector too, in its place."""
    rows: list[tuple[str, ...]] = []
    counts = Counter[str]()
    for place, row in table.rows:
        if len(rows) == source.limit:
            break
        texts = texts_in(row, name, f"{table.where}: {place}", Counter(), takes_list=False)
        counts["empty texts"] += not texts
        rows.append(tuple(texts or [""]))
    if not rows:
        raise InputError(f"{source}: there are no texts")
    return Pairs(rows, counts=dict(+counts))


def _corpus(file: str, column: str, counts: Counter[str]) -> Iterator[str]:
    where = f"--corpus_file {file}"
    column = f"{column}|text"
    table = open_table(Path(file).expanduser(), where, (column,))
    name = str(table.find(column, "--positive_column"))
    for place, row in table.rows:
        texts = texts_in(row, name, f"{where}: {place}", counts)
        counts["empty documents of --corpus_file left out"] += not texts
        yield from texts
