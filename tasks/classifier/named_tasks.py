"""The named classifier tasks: one table entry each, with files, columns, labels, metrics and submission files.

Labels are in the order of the processors of google-research/bert `run_classifier.py`, because the order decides
what the outputs of a checkpoint mean. Tasks that it lacks have sorted labels (QNLI and RTE: entailment first).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ringbase.errors import InputError
from tasks.classifier.settings import STANDARD_INPUT, TextSettings

Labels = tuple[str, ...] | None  # None: a number is predicted (regression)
Name = str | int  # of a column: in the header, or its number from 0 in a file without one
FILE_FLAGS = {"train": "train_file", "dev": "dev_file", "test": "predict_file"}


@dataclass(frozen=True)
class Columns:
    """Which columns hold what: by name in the header, or by number from 0 in a file without one."""

    text: Name
    pair: Name | None = None  # the second text of a pair
    label: Name = "label"
    id: str | None = "index"  # for the submission; a file without it gets the row numbers from 0
    language: str | None = None  # what --language filters by
    num_columns: int | None = None  # of a file without a header
    skips_short_rows: bool = False  # rows with too few columns are left out and counted, if they are few

    @property
    def names(self) -> list[Name]:
        names = (self.text, self.pair, self.label, self.id, self.language)
        return list(dict.fromkeys(name for name in names if name is not None))


@dataclass(frozen=True)
class Split:
    """One part of a task's data."""

    files: tuple[str, ...]  # in the task's folder, read one after another; of names with | the first that exists
    columns: Columns  # of these files
    hub: str = ""  # the split's name on the hub
    submission: str | None = None  # the file name that gluebenchmark.com asks for


@dataclass(frozen=True)
class Hub:
    """A data set of the hub and its columns."""

    name: str
    config: str | None  # `{language}` is filled in, as in the names of files
    columns: Columns
    revision: str | None = None  # the hub's conversion to Parquet of a script, which `datasets` refuses


@dataclass(frozen=True)
class NamedTask:
    """A named task, or one without a name for the user's own files."""

    name: str
    folder: str  # in the GLUE folder; `--data_dir` may be either of the two
    labels: Labels  # in Google's order; empty when they are those of the data
    metrics: tuple[str, ...]  # names in `tasks.classifier.scoring.metrics`; the first chooses the best checkpoint
    splits: Mapping[str, Split]  # "train", "dev", "test"; with several dev or test sets "dev_matched" and so on
    hub: Hub | None = None  # None if no maintained data set is known
    spellings: Mapping[str, str] = field(default_factory=dict)  # of labels in the files, and what they mean
    range: tuple[float, float] | None = None  # to which submitted numbers are clipped


def task_of(settings: TextSettings, has_pairs: bool = False) -> NamedTask:
    """The task of `--task_name`, or one made for the user's own files. The lines of standard input are pairs with
    `--text_pair_column`, or with `has_pairs`."""
    if settings.task_name:
        return find_task(settings.task_name)
    columns = Columns(settings.text_column, settings.text_pair_column, settings.label_column, id=None)
    files = {split: getattr(settings, flag) for split, flag in FILE_FLAGS.items()}
    splits = {split: Split((file,), columns) for split, file in files.items() if file}
    if settings.reads_lines:
        pair = 1 if has_pairs or columns.pair else None
        splits["test"] = Split((STANDARD_INPUT,), Columns(0, pair, id=None, num_columns=2 if pair else 1))
    if settings.regression:
        return NamedTask("", "", None, _CORRELATION, splits)
    return NamedTask("", "", (), ("accuracy", "mcc"), splits)


def find_task(name: str) -> NamedTask:
    """The task named by `--task_name`, in upper or lower case, with or without dashes (sts-b, STSB)."""
    letters = name.lower().replace("-", "").replace("_", "")
    for task in TASKS.values():
        if task.name.replace("-", "") == letters:
            return task
    raise InputError(f"--task_name must be one of {', '.join(TASKS)}, got {name}")


def is_on_pairs(settings: Mapping[str, object]) -> bool | None:
    """Whether the run with these settings trained a classifier on pairs of texts; None if they do not tell."""
    if name := settings.get("task_name"):
        return next(iter(find_task(str(name)).splits.values())).columns.pair is not None
    return settings["text_pair_column"] is not None if "text_pair_column" in settings else None


_FILES, _ON_HUB = ("train.tsv", "dev.tsv", "test.tsv"), ("train", "validation", "test")


def _splits(columns: Columns, files: tuple = _FILES, hub: tuple = _ON_HUB, **others: Columns) -> dict[str, Split]:
    """The train, dev and test set of these files; names with + are read one after another. `others` are columns of
    single sets."""
    names = zip(FILE_FLAGS, files, hub, strict=True)
    return {split: Split(tuple(file.split("+")), others.get(split, columns), name) for split, file, name in names}


def _glue(folder: str, labels: Labels, metrics: tuple, columns: Columns, test: Columns | None = None) -> NamedTask:
    """A task with the usual three files of GLUE, whose test file may have columns of its own."""
    splits = _splits(columns, test=test or columns)
    splits["test"] = replace(splits["test"], submission=f"{folder}.tsv")
    return NamedTask(folder.lower(), folder, labels, metrics, splits, _glue_hub(folder, test or columns))


def _glue_hub(folder: str, columns: Columns) -> Hub:
    return Hub("nyu-mll/glue", folder.lower().replace("-", ""), Columns(columns.text, columns.pair, id="idx"))


_NUMBERS = ("0", "1")
_NLI = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
_ACCURACY, _F1, _CORRELATION = ("accuracy",), ("acc_and_f1", "accuracy", "f1"), ("corr", "pearson", "spearmanr")
_ONE, _TWO, _PREMISE = Columns("sentence"), Columns("sentence1", "sentence2"), Columns("premise", "hypothesis")

# Two dozen questions of the published train.tsv hold a line break; `datasets` leaves their halves out too.
_QQP = Columns("question1", "question2", "is_duplicate", id="id", skips_short_rows=True)
_MNLI = replace(_TWO, label="gold_label")
_XNLI = replace(_MNLI, id="pairID", language="language")
_KORSTS = Columns("sentence1", "sentence2", "score", id=None)  # its column id is that of the source, not unique
_NSMC = Columns("document", id="id")
_MRPC, _KORNLI = Columns("#1 String", "#2 String", "Quality"), replace(_MNLI, id=None)

_ALL = (
    _glue("CoLA", _NUMBERS, ("mcc", "accuracy"), Columns(3, label=1, num_columns=4), test=_ONE),
    _glue("SST-2", _NUMBERS, _ACCURACY, _ONE),
    replace(_glue("MRPC", _NUMBERS, _F1, _MRPC), hub=_glue_hub("MRPC", _TWO)),
    replace(_glue("STS-B", None, _CORRELATION, replace(_TWO, label="score")), range=(0.0, 5.0)),
    _glue("QQP", _NUMBERS, _F1, _QQP),
    NamedTask("mnli", "MNLI", _NLI, _ACCURACY, {
        "train": Split(("train.tsv",), _MNLI, "train"),
        "dev_matched": Split(("dev_matched.tsv",), _MNLI, "validation_matched"),
        "dev_mismatched": Split(("dev_mismatched.tsv",), _MNLI, "validation_mismatched"),
        "test_matched": Split(("test_matched.tsv",), _MNLI, "test_matched", "MNLI-m.tsv"),
        "test_mismatched": Split(("test_mismatched.tsv",), _MNLI, "test_mismatched", "MNLI-mm.tsv"),
    }, _glue_hub("MNLI", _PREMISE)),
    _glue("QNLI", _ENTAILMENT, _ACCURACY, Columns("question", "sentence")),
    _glue("RTE", _ENTAILMENT, _ACCURACY, _TWO),
    _glue("WNLI", _NUMBERS, _ACCURACY, _TWO),
    NamedTask("ax", "diagnostic", _NLI, ("mcc", "accuracy"), {
        "test": Split(("diagnostic.tsv|AX.tsv|test.tsv",), _TWO, "test", "AX.tsv"),
    }, _glue_hub("ax", _PREMISE)),
    NamedTask("xnli", "XNLI", _NLI, _ACCURACY,
        _splits(_XNLI, ("multinli/multinli.train.{language}.tsv", "xnli.dev.tsv", "xnli.test.tsv"),
                train=Columns("premise", "hypo", id=None)),
        Hub("facebook/xnli", "{language}", replace(_PREMISE, id="idx")),
        spellings={"contradictory": "contradiction"}),
    # NSMC has no dev set; published scores are measured on these 50,000 test examples.
    NamedTask("nsmc", "nsmc", _NUMBERS, _ACCURACY,
        _splits(_NSMC, ("ratings_train.txt", "ratings_test.txt", "ratings_test.txt"), ("train", "test", "test")),
        Hub("e9t/nsmc", None, _NSMC, revision="refs/convert/parquet")),
    NamedTask("kornli", "KorNLI", _NLI, _ACCURACY,
        _splits(_KORNLI, ("multinli.train.ko.tsv+snli_1.0_train.ko.tsv", "xnli.dev.ko.tsv", "xnli.test.ko.tsv"))),
    NamedTask("korsts", "KorSTS", None, ("spearmanr", "pearson", "corr"),
        _splits(_KORSTS, ("sts-train.tsv", "sts-dev.tsv", "sts-test.tsv")),
        Hub("dkoterwa/kor-sts", None, _KORSTS), range=(0.0, 5.0)),
)  # fmt: skip

TASKS: Mapping[str, NamedTask] = {task.name: task for task in _ALL}
