"""The flags of bert-classifier: names and defaults of run_classifier.py, and some more."""

from ringbase.files import STANDARD_INPUT
from ringbase.settings import LONGEST_ROW, Settings, setting
from tasks.runs.settings import TaskConfig


class TextSettings(Settings):
    """Which texts and labels are read."""

    task_name: str | None = setting(
        None,
        "one of cola sst-2 mrpc sts-b qqp mnli qnli rte wnli ax xnli nsmc kornli korsts; leave out"
        " for own files",
        "data",
        is_saved=True,
        needs=("data_dir", "from_hub"),
    )
    data_dir: str | None = setting(None, "folder of the task's files, in GLUE's layout", "data")
    from_hub: bool = setting(
        False, "take the task's data from the hub instead of --data_dir", "data"
    )
    dataset_revision: str | None = setting(
        None,
        "commit, tag or branch of the hub data set that --from_hub takes",
        "data",
        shown_default="the newest",
    )
    language: str = setting("en", "language of XNLI's examples", "data", is_saved=True)
    train_file: str | None = setting(
        None, "CSV, TSV, JSON lines or Parquet file to train on", "data"
    )
    dev_file: str | None = setting(
        None, "file of the same kinds to evaluate on", "data", aliases=("validation_file",)
    )
    predict_file: str | None = setting(
        None,
        "file of the same kinds to predict; - for lines of standard input, whose predictions are"
        " printed too: a text per line, with --text_pair_column, or if the model was trained on"
        " pairs, a tab and a second text",
        "data",
        aliases=("test_file",),
    )
    text_column: str = setting("text", "name of the column with the text", "data", is_saved=True)
    text_pair_column: str | None = setting(
        None, "name of the column with the second text", "data", is_saved=True
    )
    label_column: str = setting(
        "label", "name of the column with the label", "data", is_saved=True, is_list=True
    )
    regression: bool = setting(
        False, "predict numbers: the label column holds numbers", "data", is_saved=True
    )
    multi_label: bool = setting(
        False,
        "a text may have several labels, or none: --label_column names a column of lists (in CSV"
        " and TSV with commas between labels, or as JSON), or several columns of 0 and 1, with"
        " commas between them",
        "data",
        is_saved=True,
    )
    ranking: bool = setting(
        False,
        "also score how the second texts of each first text are ranked (MRR, NDCG, recall), for"
        " search: the number of a right one is above 0",
        "data",
        is_saved=True,
    )
    max_train_examples: int | None = setting(
        None, "train on the first N examples", "data", at_least=1
    )
    max_predict_examples: int | None = setting(
        None, "evaluate and predict the first N examples", "data", at_least=1
    )

    def check(self) -> None:
        if self.task_name and not (self.data_dir or self.from_hub):
            raise ValueError(
                "--task_name needs --data_dir, the folder of its files (or --from_hub)"
            )
        for flag, needed in (("from_hub", "task_name"), ("dataset_revision", "from_hub")):
            if getattr(self, flag) and not getattr(self, needed):
                raise ValueError(f"--{flag} needs --{needed}")
        if self.ranking and not (self.regression and self.text_pair_column):
            raise ValueError("--ranking needs --regression and --text_pair_column")
        if self.multi_label and self.regression:
            raise ValueError("--multi_label and --regression exclude each other")
        for flag in ("train_file", "dev_file", "predict_file", "regression", "multi_label"):
            if getattr(self, flag) and self.task_name:
                raise ValueError(
                    f"--{flag} is for files of your own: --task_name has its files and labels"
                )

    @property
    def reads_lines(self) -> bool:
        """Whether lines of standard input are predicted."""
        return self.predict_file == STANDARD_INPUT


class ExampleSettings(Settings):
    """How texts become rows; name and default of run_classifier.py."""

    max_seq_length: int = setting(
        128,
        "maximum number of tokens per example",
        "data",
        at_least=4,
        at_most=LONGEST_ROW,
        is_saved=True,
    )
    allow_unknown: bool = setting(
        False, "continue even if more than 10 % of the tokens are [UNK]", "data"
    )


class ClassifierConfig(TaskConfig):
    """Fine-tune BERT to label texts or pairs of texts over all MPI ranks."""

    texts: TextSettings
    examples: ExampleSettings
    class_weights: str | None = setting(
        None,
        "weight of each label in the loss: LABEL=WEIGHT,…, a JSON object of labels and weights, or "
        "balanced",
        "training",
    )

    def check(self) -> None:
        super().check()
        self.check_files(self.texts, "task_name")
