"""Settings of the classifier. They have their own module because `--help` should not import NumPy."""

from dataclasses import dataclass
from typing import Literal

from bert.text.settings import UnknownSettings
from ringbase.settings import LONGEST_ROW, MOST_ROWS, MOST_STEPS, Settings, check_at_least, check_at_most, setting

STANDARD_INPUT = "-"  # as a file name


@dataclass(frozen=True, kw_only=True)
class TextSettings(Settings):
    """Which texts and labels are read."""

    task_name: str | None = setting(
        None,
        "one of cola sst-2 mrpc sts-b qqp mnli qnli rte wnli ax xnli nsmc kornli korsts; leave out for own files",
        "data",
    )
    data_dir: str | None = setting(None, "folder of the task's files, in GLUE's layout", "data")
    from_hub: bool = setting(False, "take the task's data from the hub instead of --data_dir", "data")
    dataset_revision: str | None = setting(
        None, "commit, tag or branch of the hub data set that --from_hub takes", "data", shown_default="the newest"
    )
    language: str = setting("en", "language of XNLI's examples", "data")
    train_file: str | None = setting(None, "CSV, TSV, JSON lines or Parquet file to train on", "data")
    dev_file: str | None = setting(
        None, "file of the same kinds to evaluate on", "data", aliases=("validation_file",)
    )
    predict_file: str | None = setting(
        None,
        "file of the same kinds to predict; - for standard input, whose predictions are printed too",
        "data",
        aliases=("test_file",),
    )
    predict_format: Literal["text", "csv", "tsv", "jsonl"] = setting(
        "text",
        "how --predict_file - is written; text: a text per line, with --text_pair_column, or if the model's run "
        "was trained on pairs, a tab and a second text",
        "data",
    )
    text_column: str = setting("text", "name of the column with the text", "data")
    text_pair_column: str | None = setting(None, "name of the column with the second text", "data")
    label_column: str = setting("label", "name of the column with the label", "data")
    regression: bool = setting(False, "predict numbers: the label column holds numbers", "data")
    max_train_examples: int | None = setting(None, "train on the first N examples", "data")
    max_predict_examples: int | None = setting(None, "evaluate and predict the first N examples", "data")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task_name and not (self.data_dir or self.from_hub):
            raise ValueError("--task_name needs --data_dir, the folder of its files (or --from_hub)")
        if self.task_name and (self.train_file or self.dev_file or self.predict_file):
            raise ValueError("--task_name and files of your own exclude each other: the task names its files")
        if self.from_hub and not self.task_name:
            raise ValueError("--from_hub needs --task_name")
        if self.dataset_revision and not self.from_hub:
            raise ValueError("--dataset_revision needs --from_hub")
        if self.regression and self.task_name:
            raise ValueError("--regression is for files of your own: --task_name already implies it")
        if self.predict_format != "text" and self.predict_file != STANDARD_INPUT:
            raise ValueError("--predict_format is for --predict_file -: the extension tells how a file is written")
        check_at_least(self, 1, "max_train_examples", "max_predict_examples")

    @property
    def reads_lines(self) -> bool:
        """Whether lines of standard input are predicted."""
        return self.predict_file == STANDARD_INPUT and self.predict_format == "text"


@dataclass(frozen=True, kw_only=True)
class ExampleSettings(UnknownSettings):
    """How texts become rows; name and default of run_classifier.py."""

    max_seq_length: int = setting(128, "maximum number of tokens per example", "data")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 4, "max_seq_length")
        check_at_most(self, LONGEST_ROW, "max_seq_length")


@dataclass(frozen=True, kw_only=True)
class DataSettings(ExampleSettings, TextSettings):
    """Which texts are read, and how they become rows."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(Settings):
    """What is scored and predicted, and when."""

    do_eval: bool = setting(False, "score the dev set", "evaluation")
    eval_batch_size: int = setting(
        8, "examples of --max_seq_length tokens per evaluation batch; more if they are shorter", "evaluation"
    )
    eval_steps: int | Literal["auto"] | None = setting(
        None,
        "also score the dev set every N training steps; auto: as often as possible within 2 % of the time",
        "evaluation",
        shown_default="once per epoch if the best model is kept, else never",
    )
    load_best_model_at_end: bool = setting(
        False, "keep the model of the best dev score instead of the last", "evaluation"
    )
    early_stopping_patience: int | None = setting(
        None, "stop after N dev scores without a better one; keeps the best model", "evaluation"
    )
    do_predict: bool = setting(False, "predict the test set", "prediction")
    predict_batch_size: int = setting(
        8, "examples of --max_seq_length tokens per prediction batch; more if they are shorter", "prediction"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "eval_batch_size", "predict_batch_size", "eval_steps", "early_stopping_patience")
        check_at_most(self, MOST_ROWS, "eval_batch_size", "predict_batch_size")
        check_at_most(self, MOST_STEPS, "eval_steps", "early_stopping_patience")

    @property
    def evaluates_while_training(self) -> bool:
        return bool(self.eval_steps or self.keeps_best)

    @property
    def keeps_best(self) -> bool:
        return self.load_best_model_at_end or self.early_stopping_patience is not None
