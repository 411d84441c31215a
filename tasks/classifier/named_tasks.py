"""The named classifier tasks: one table entry each, with files, columns, labels, metrics and submission files.

Labels are in the order of the processors of google-research/bert `run_classifier.py`, because the order decides
what the outputs of a checkpoint mean. Tasks that it lacks have sorted labels (QNLI and RTE: entailment first).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ringbase.errors import InputError
from tasks.classifier.settings import TextSettings
from tasks.classifier.table import Columns

Labels = tuple[str, ...] | None  # None: a number is predicted (regression)
FILE_FLAGS = {"train": "train_file", "dev": "dev_file", "test": "predict_file"}
SECOND_TEXT = "second text"  # the column of standard input where the model, and no flag, says that texts are pairs


@dataclass(frozen=True)
class Split:
    """One part of a task's data."""

    files: tuple[str, ...]  # in the task's folder, read one after another; `{language}` is filled in
    columns: Columns  # of these files
    hub: str | None = None  # the split's name on the hub
    instead: tuple[str, ...] = ()  # other names that the file may have; only for a split of one file
    submission: str | None = None  # the file name that gluebenchmark.com asks for


@dataclass(frozen=True)
class Hub:
    """A data set of the hub and its columns."""

    name: str
    config: str | None  # `{language}` is filled in
    columns: Columns
    revision: str | None = None  # the hub's conversion to Parquet of a script, which `datasets` refuses


@dataclass(frozen=True)
class NamedTask:
    """A named task."""

    name: str
    folder: str  # in the GLUE folder; `--data_dir` may be either of the two
    labels: Labels  # in Google's order; empty when they are found in the data
    metrics: tuple[str, ...]  # names in `tasks.classifier.metrics.scores`; the first chooses the best checkpoint
    splits: Mapping[str, Split]  # "train", "dev", "test"; with several dev or test sets "dev_matched" and so on
    hub: Hub | None = None  # None if no maintained data set is known
    spellings: Mapping[str, str] = field(default_factory=dict)  # of labels in the files, and what they mean
    range: tuple[float, float] | None = None  # to which submitted numbers are clipped
    trained_by: str | None = None  # for a task without training data, the task whose model predicts it

    @property
    def is_regression(self) -> bool:
        return self.labels is None

    def splits_of(self, kind: str) -> tuple[str, ...]:
        """The names of its "train", "dev" or "test" sets: ("dev_matched", "dev_mismatched") for MNLI's "dev".
        Raises InputError if there is none."""
        names = tuple(name for name in self.splits if name.split("_")[0] == kind)
        if not names:
            hint = f"; train with --task_name {self.trained_by}" if kind == "train" and self.trained_by else ""
            raise InputError(f"--task_name {self.name} has no {kind} set, only {', '.join(self.splits)}{hint}")
        return names

    def split(self, name: str) -> Split:
        """A split by name; "dev" and "test" mean the first of several. Raises InputError if there is none."""
        return self.splits[name if name in self.splits else self.splits_of(name)[0]]


def task_of(settings: TextSettings, has_pairs: bool = False) -> NamedTask:
    """The task of `--task_name`, or one made for the user's own files.

    With `has_pairs` the lines of standard input are pairs, also without `--text_pair_column`.
    """
    if settings.task_name:
        return find_task(settings.task_name)
    columns = Columns(settings.text_column, settings.text_pair_column, settings.label_column, id="")
    files = {split: getattr(settings, flag) for split, flag in FILE_FLAGS.items()}
    splits = {split: Split((file,), columns) for split, file in files.items() if file}
    if has_pairs and columns.pair is None and settings.reads_lines:
        splits["test"] = replace(splits["test"], columns=replace(columns, pair=SECOND_TEXT))
    labels = None if settings.regression else ()  # they are found in the data
    return NamedTask("", "", labels, _CORRELATION if settings.regression else ("accuracy", "mcc"), splits)


def find_task(name: str) -> NamedTask:
    """The task named by `--task_name`, in upper or lower case, with or without dashes (sts-b, STSB).

    Raises InputError: there is no such task.
    """
    by_letters = {_letters(known): task for known, task in TASKS.items()}
    if task := by_letters.get(_letters(name)):
        return task
    raise InputError(f"--task_name must be one of {', '.join(TASKS)}, got {name}")


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def is_on_pairs(settings: Mapping[str, object]) -> bool | None:
    """Whether the run with these settings trained a classifier on pairs of texts; None if they do not tell.

    Raises InputError: they name an unknown task.
    """
    if name := settings.get("task_name"):
        return find_task(str(name)).split("train").columns.pair is not None
    return settings["text_pair_column"] is not None if "text_pair_column" in settings else None


def submission(task: NamedTask, ids: Sequence[str], predictions: Sequence[str | float]) -> str:
    """The text of a GLUE submission file: labels unchanged, numbers clipped to the task's range."""
    low, high = task.range or (float("-inf"), float("inf"))
    shown = [each if isinstance(each, str) else f"{min(max(each, low), high):.3f}" for each in predictions]
    return "index\tprediction\n" + "".join(f"{id_}\t{value}\n" for id_, value in zip(ids, shown, strict=True))


def _glue(columns: Columns, submission: str, test: Columns | None = None) -> dict[str, Split]:
    """The usual three files of a GLUE folder."""
    return {
        "train": Split(("train.tsv",), columns, "train"),
        "dev": Split(("dev.tsv",), columns, "validation"),
        "test": Split(("test.tsv",), test or columns, "test", submission=submission),
    }


def _glue_hub(config: str, text: str, pair: str | None = None) -> Hub:
    return Hub("nyu-mll/glue", config, Columns(text, pair, id="idx"))


_NUMBERS = ("0", "1")
_NLI = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
_F1 = ("acc_and_f1", "accuracy", "f1")
_CORRELATION = ("corr", "pearson", "spearmanr")
_ONE, _TWO = Columns("sentence"), Columns("sentence1", "sentence2")

_COLA = Columns(3, label=1, num_columns=4)
_MRPC = Columns("#1 String", "#2 String", "Quality")
# Two dozen questions of the published train.tsv hold a line break; `datasets` leaves their halves out too.
_QQP = Columns("question1", "question2", "is_duplicate", id="id", skips_short_rows=True)
_QNLI = Columns("question", "sentence")
_MNLI = replace(_TWO, label="gold_label")
_XNLI = replace(_MNLI, id="pairID", language="language")
_XNLI_TRAIN = Columns("premise", "hypo", id="")
_KORNLI = replace(_MNLI, id="")
_KORSTS = Columns("sentence1", "sentence2", "score", id="")  # its column id is that of the source, not unique
_NSMC = Columns("document", id="id")

_ALL = (
    NamedTask("cola", "CoLA", _NUMBERS, ("mcc", "accuracy"), _glue(_COLA, "CoLA.tsv", test=_ONE),
         _glue_hub("cola", "sentence")),
    NamedTask("sst-2", "SST-2", _NUMBERS, ("accuracy",), _glue(_ONE, "SST-2.tsv"), _glue_hub("sst2", "sentence")),
    NamedTask("mrpc", "MRPC", _NUMBERS, _F1, _glue(_MRPC, "MRPC.tsv"),
         _glue_hub("mrpc", "sentence1", "sentence2")),
    NamedTask("sts-b", "STS-B", None, _CORRELATION, _glue(replace(_TWO, label="score"), "STS-B.tsv"),
         _glue_hub("stsb", "sentence1", "sentence2"), range=(0.0, 5.0)),
    NamedTask("qqp", "QQP", _NUMBERS, _F1, _glue(_QQP, "QQP.tsv"), _glue_hub("qqp", "question1", "question2")),
    NamedTask(
        "mnli", "MNLI", _NLI, ("accuracy",),
        {
            "train": Split(("train.tsv",), _MNLI, "train"),
            "dev_matched": Split(("dev_matched.tsv",), _MNLI, "validation_matched"),
            "dev_mismatched": Split(("dev_mismatched.tsv",), _MNLI, "validation_mismatched"),
            "test_matched": Split(("test_matched.tsv",), _MNLI, "test_matched", submission="MNLI-m.tsv"),
            "test_mismatched": Split(("test_mismatched.tsv",), _MNLI, "test_mismatched", submission="MNLI-mm.tsv"),
        },
        _glue_hub("mnli", "premise", "hypothesis"),
    ),
    NamedTask("qnli", "QNLI", _ENTAILMENT, ("accuracy",), _glue(_QNLI, "QNLI.tsv"),
         _glue_hub("qnli", "question", "sentence")),
    NamedTask("rte", "RTE", _ENTAILMENT, ("accuracy",), _glue(_TWO, "RTE.tsv"),
         _glue_hub("rte", "sentence1", "sentence2")),
    NamedTask("wnli", "WNLI", _NUMBERS, ("accuracy",), _glue(_TWO, "WNLI.tsv"),
         _glue_hub("wnli", "sentence1", "sentence2")),
    NamedTask("ax", "diagnostic", _NLI, ("mcc", "accuracy"),
         {"test": Split(("diagnostic.tsv",), _TWO, "test", ("AX.tsv", "test.tsv"), "AX.tsv")},
         _glue_hub("ax", "premise", "hypothesis"), trained_by="mnli"),
    NamedTask(
        "xnli", "XNLI", _NLI, ("accuracy",),
        {
            "train": Split(("multinli/multinli.train.{language}.tsv",), _XNLI_TRAIN, "train"),
            "dev": Split(("xnli.dev.tsv",), _XNLI, "validation"),
            "test": Split(("xnli.test.tsv",), _XNLI, "test"),
        },
        Hub("facebook/xnli", "{language}", Columns("premise", "hypothesis", id="idx")),
        spellings={"contradictory": "contradiction"},
    ),
    NamedTask(
        "nsmc", "nsmc", _NUMBERS, ("accuracy",),
        {
            "train": Split(("ratings_train.txt",), _NSMC, "train"),
            # The data set has no dev set; published scores are measured on these 50,000 examples.
            "dev": Split(("ratings_test.txt",), _NSMC, "test"),
            "test": Split(("ratings_test.txt",), _NSMC, "test"),
        },
        Hub("e9t/nsmc", None, _NSMC, revision="refs/convert/parquet"),
    ),
    NamedTask(
        "kornli", "KorNLI", _NLI, ("accuracy",),
        {
            "train": Split(("multinli.train.ko.tsv", "snli_1.0_train.ko.tsv"), _KORNLI),
            "dev": Split(("xnli.dev.ko.tsv",), _KORNLI),
            "test": Split(("xnli.test.ko.tsv",), _KORNLI),
        },
    ),
    NamedTask(
        "korsts", "KorSTS", None, ("spearmanr", "pearson", "corr"),
        {
            "train": Split(("sts-train.tsv",), _KORSTS, "train"),
            "dev": Split(("sts-dev.tsv",), _KORSTS, "validation"),
            "test": Split(("sts-test.tsv",), _KORSTS, "test"),
        },
        Hub("dkoterwa/kor-sts", None, _KORSTS), range=(0.0, 5.0),
    ),
)  # fmt: skip

TASKS: Mapping[str, NamedTask] = MappingProxyType({task.name: task for task in _ALL})
