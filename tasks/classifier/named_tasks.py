"""The named classifier tasks: one table entry each, with files, columns, labels, metrics and
submission files.

Labels are in the order of the processors of google-research/bert `run_classifier.py`, because the
order decides what the outputs of a checkpoint mean. Tasks that it lacks have sorted labels (QNLI
and RTE: entailment first).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ringbase.errors import InputError
from tasks.classifier.settings import TextSettings

Labels = tuple[str, ...] | None  # None: a number is predicted (regression)
FILE_FLAGS = {"train": "train_file", "dev": "dev_file", "test": "predict_file"}


@dataclass(frozen=True)
class Columns:
    """The names of the columns that are read; of names with | the first that a file or data set
    has."""

    text: str
    pair: str | None = None  # the second text of a pair
    label: str = "label"
    id: str | None = "index|idx"  # for the submission; without it rows are numbered from 0
    language: str | None = None  # what --language filters by
    # with several labels per text, the columns of 0 and 1; none: `label` has lists
    labels: tuple[str, ...] = ()
    # rows with too few columns are left out and counted
    skips_short_rows: bool = False


@dataclass(frozen=True)
class Split:
    """One part of a task's data."""

    # in the task's folder; with + between them read one after another; of names with | the first
    # that exists
    files: str
    hub: str = ""  # the split's name on the hub
    submission: str | None = None  # the file name that gluebenchmark.com asks for
    header: tuple[str, ...] = ()  # the names of all columns of files that have no header


@dataclass(frozen=True)
class NamedTask:
    """A named task, or one without a name for the user's own files."""

    name: str
    folder: str  # in the GLUE folder; `--data_dir` may be either of the two
    labels: Labels  # in Google's order; empty when they are those of the data
    # names in `tasks.classifier.scoring.metrics`; the first chooses the best checkpoint
    metrics: tuple[str, ...]
    columns: Columns
    # "train", "dev", "test"; with several dev or test sets "dev_matched" and so on
    splits: Mapping[str, Split]
    hub: str | None = None  # the data set; None if no maintained one is known
    hub_config: str | None = None  # `{language}` is filled in, as in the names of files
    # the hub's conversion to Parquet of a script, which `datasets` refuses
    hub_revision: str | None = None
    # of labels in the files, and what they mean
    spellings: Mapping[str, str] = field(default_factory=dict)
    range: tuple[float, float] = (-math.inf, math.inf)  # to which submitted numbers are clipped
    has_several: bool = False  # labels per text


def task_of(settings: TextSettings, has_pairs: bool = False) -> NamedTask:
    """The task of `--task_name`, or one made for the user's own files. The lines of standard input
    are pairs with `--text_pair_column`, or with `has_pairs`."""
    if settings.task_name:
        return find_task(settings.task_name)
    pair = settings.text_pair_column
    if settings.reads_lines and has_pairs:
        pair = pair or "second text"
    columns = Columns(settings.text_column, pair, settings.label_column, id=None)
    files = {split: getattr(settings, flag) for split, flag in FILE_FLAGS.items()}
    splits = {split: Split(file) for split, file in files.items() if file}
    if settings.reads_lines:
        header = (columns.text, pair) if pair else (columns.text,)
        splits["test"] = replace(splits["test"], header=header)
    labels: Labels = ()
    metrics: tuple[str, ...] = ("accuracy", "mcc", "macro_f1")
    if settings.regression:
        labels, metrics = None, _CORRELATION
    if settings.multi_label:
        metrics = ("micro_f1", "macro_f1", "accuracy")
        names = tuple(map(str.strip, settings.label_column.split(",")))
        if len(names) > 1:
            columns = replace(columns, labels=names)
    return NamedTask("", "", labels, metrics, columns, splits, has_several=settings.multi_label)


def find_task(name: str) -> NamedTask:
    """The task named by `--task_name`, in upper or lower case, with or without dashes (sts-b,
    STSB)."""
    letters = name.lower().replace("-", "").replace("_", "")
    for task in TASKS.values():
        if task.name.replace("-", "") == letters:
            return task
    raise InputError(f"--task_name must be one of {', '.join(TASKS)}, got {name}")


def is_on_pairs(settings: Mapping) -> bool:
    """Whether the run with these settings trained a classifier on pairs of texts."""
    name = settings.get("task_name")
    if name:
        return find_task(str(name)).columns.pair is not None
    return settings.get("text_pair_column") is not None


def _splits(
    train: str, dev: str, test: str, hub: tuple = ("train", "validation", "test")
) -> dict[str, Split]:
    """Three sets; `hub` has their names there."""
    parts = map(Split, (train, dev, test), hub)
    return dict(zip(FILE_FLAGS, parts, strict=True))


def _glue(
    folder: str,
    labels: Labels,
    metrics: tuple,
    columns: Columns,
    splits: Mapping[str, Split] | None = None,
) -> NamedTask:
    """A task with the usual three files of GLUE, unless `splits` names others."""
    if splits is None:
        splits = _splits("train.tsv", "dev.tsv", "test.tsv")
        splits["test"] = replace(splits["test"], submission=f"{folder}.tsv")
    name = folder.lower()
    config = name.replace("-", "")
    return NamedTask(name, folder, labels, metrics, columns, splits, _HUB, config)


_NUMBERS = ("0", "1")
_NLI = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
_HUB = "nyu-mll/glue"
_ACCURACY = ("accuracy",)
_F1 = ("acc_and_f1", "accuracy", "f1")
_CORRELATION = ("corr", "pearson", "spearmanr")
_ONE = Columns("sentence")
_TWO = Columns("sentence1", "sentence2")
_COLA = ("source", "label", "mark", "sentence")
_MNLI = Columns("sentence1|premise", "sentence2|hypothesis", "gold_label|label")

_ALL = (
    _glue(
        "CoLA",
        _NUMBERS,
        ("mcc", "accuracy"),
        _ONE,
        {
            "train": Split("train.tsv", "train", header=_COLA),
            "dev": Split("dev.tsv", "validation", header=_COLA),
            "test": Split("test.tsv", "test", "CoLA.tsv"),
        },
    ),
    _glue("SST-2", _NUMBERS, _ACCURACY, _ONE),
    _glue(
        "MRPC",
        _NUMBERS,
        _F1,
        Columns("#1 String|sentence1", "#2 String|sentence2", "Quality|label"),
    ),
    replace(
        _glue("STS-B", None, _CORRELATION, replace(_TWO, label="score|label")), range=(0.0, 5.0)
    ),
    # Two dozen questions of the published train.tsv hold a line break; `datasets` leaves their
    # halves out too.
    _glue(
        "QQP",
        _NUMBERS,
        _F1,
        Columns("question1", "question2", "is_duplicate|label", "id|idx", skips_short_rows=True),
    ),
    _glue(
        "MNLI",
        _NLI,
        _ACCURACY,
        _MNLI,
        {
            "train": Split("train.tsv", "train"),
            "dev_matched": Split("dev_matched.tsv", "validation_matched"),
            "dev_mismatched": Split("dev_mismatched.tsv", "validation_mismatched"),
            "test_matched": Split("test_matched.tsv", "test_matched", "MNLI-m.tsv"),
            "test_mismatched": Split("test_mismatched.tsv", "test_mismatched", "MNLI-mm.tsv"),
        },
    ),
    _glue("QNLI", _ENTAILMENT, _ACCURACY, Columns("question", "sentence")),
    _glue("RTE", _ENTAILMENT, _ACCURACY, _TWO),
    _glue("WNLI", _NUMBERS, _ACCURACY, _TWO),
    NamedTask(
        "ax",
        "diagnostic",
        _NLI,
        ("mcc", "accuracy"),
        _MNLI,
        {"test": Split("diagnostic.tsv|AX.tsv|test.tsv", "test", "AX.tsv")},
        _HUB,
        "ax",
    ),
    NamedTask(
        "xnli",
        "XNLI",
        _NLI,
        _ACCURACY,
        Columns(
            "sentence1|premise",
            "sentence2|hypothesis|hypo",
            "gold_label|label",
            "pairID|idx",
            "language",
        ),
        _splits("multinli/multinli.train.{language}.tsv", "xnli.dev.tsv", "xnli.test.tsv"),
        "facebook/xnli",
        "{language}",
        spellings={"contradictory": "contradiction"},
    ),
    # NSMC has no dev set; published scores are measured on these 50,000 test examples.
    NamedTask(
        "nsmc",
        "nsmc",
        _NUMBERS,
        _ACCURACY,
        Columns("document", id="id"),
        _splits(
            "ratings_train.txt", "ratings_test.txt", "ratings_test.txt", ("train", "test", "test")
        ),
        "e9t/nsmc",
        hub_revision="refs/convert/parquet",
    ),
    NamedTask(
        "kornli",
        "KorNLI",
        _NLI,
        _ACCURACY,
        replace(_MNLI, id=None),
        _splits(
            "multinli.train.ko.tsv+snli_1.0_train.ko.tsv", "xnli.dev.ko.tsv", "xnli.test.ko.tsv"
        ),
    ),
    # The column id of KorSTS is that of the source, not unique.
    NamedTask(
        "korsts",
        "KorSTS",
        None,
        ("spearmanr", "pearson", "corr"),
        Columns("sentence1", "sentence2", "score", None),
        _splits("sts-train.tsv", "sts-dev.tsv", "sts-test.tsv"),
        "dkoterwa/kor-sts",
        range=(0.0, 5.0),
    ),
)

TASKS = {task.name: task for task in _ALL}
