"""The flags of bert-classifier: names and defaults of run_classifier.py, and some more."""

from collections.abc import Mapping
from functools import partial

from ringbase.files import STANDARD_INPUT
from ringbase.settings import LONGEST_ROW, Settings, fields_of, setting
from tasks.runs.commands import Command
from tasks.runs.settings import (
    ExampleLimits,
    HeadSettings,
    TaskConfig,
    data_setting,
    folder_setting,
    other_file_setting,
    row_setting,
    train_file_setting,
)

OWN_FILES = ("train_file", "dev_file", "predict_file")
# of files of one's own; a trained model says it only for these
own_setting = partial(data_setting, is_saved=True, needs=OWN_FILES)


class TextSettings(ExampleLimits):
    """Which texts and labels are read."""

    task_name: str | None = data_setting(
        None,
        "one of cola sst-2 mrpc sts-b qqp mnli qnli rte wnli ax xnli nsmc kornli korsts; leave out"
        " for own files",
        is_saved=True,
        needs=("data_dir", "from_hub"),
        describes="data",
    )
    data_dir: str | None = folder_setting("folder of the task's files, in GLUE's layout")
    from_hub: bool = data_setting(False, "take the task's data from the hub instead of --data_dir")
    dataset_revision: str | None = data_setting(
        None,
        "commit, tag or branch of the hub data set that --from_hub takes",
        shown_default="the newest",
    )
    language: str = data_setting("en", "language of XNLI's examples", is_saved=True)
    train_file: str | None = train_file_setting("CSV, TSV, JSON lines or Parquet file to train on")
    dev_file: str | None = other_file_setting(
        "file of the same kinds to evaluate on", aliases=("validation_file",)
    )
    predict_file: str | None = other_file_setting(
        "file of the same kinds to predict; - for lines of standard input, whose predictions are"
        " printed too: a text per line, with --text_pair_column, or if the model was trained on"
        " pairs, a tab and a second text",
        aliases=("test_file",),
    )
    text_column: str = own_setting("text", "name of the column with the text")
    text_pair_column: str | None = own_setting(None, "name of the column with the second text")
    label_column: str = own_setting("label", "name of the column with the label", is_list=True)
    regression: bool = own_setting(False, "predict numbers: the label column holds numbers")
    multi_label: bool = own_setting(
        False,
        "a text may have several labels, or none: --label_column names a column of lists (in CSV"
        " and TSV with commas between labels, or as JSON), or several columns of 0 and 1, with"
        " commas between them",
    )
    ranking: bool = own_setting(
        False,
        "also score how the second texts of each first text are ranked (MRR, NDCG, recall), for"
        " search: the number of a right one is above 0",
    )

    def check(self) -> None:
        if self.task_name and not (self.data_dir or self.from_hub):
            raise ValueError(
                "--task_name needs --data_dir, the folder of its files (or --from_hub)"
            )
        if self.dataset_revision and not self.from_hub:
            raise ValueError("--dataset_revision needs --from_hub")
        if self.multi_label and self.regression:
            raise ValueError("--multi_label and --regression exclude each other")
        for field in fields_of(type(self)):
            is_own = field.name in OWN_FILES or field.needs == OWN_FILES
            if self.task_name and is_own and getattr(self, field.name) != field.default:
                raise ValueError(
                    f"--{field.name} is for files of your own: --task_name has its files, columns"
                    " and labels"
                )

    def void(self) -> Mapping[str, str]:
        if not self.task_name:
            return dict.fromkeys(("data_dir", "language"), "it is for --task_name")
        return {} if self.task_name.lower() == "xnli" else {"language": "only xnli has several"}

    def check_settled(self) -> None:
        if self.from_hub and not self.task_name:
            raise ValueError("--from_hub needs --task_name")
        if self.ranking and not (self.regression and self.text_pair_column):
            raise ValueError("--ranking needs --regression and --text_pair_column")

    @property
    def reads_lines(self) -> bool:
        """Whether lines of standard input are predicted."""
        return self.predict_file == STANDARD_INPUT


class ExampleSettings(Settings):
    """How texts become rows; name and default of run_classifier.py."""

    max_seq_length: int = row_setting(
        128, "maximum number of tokens per example", at_least=4, at_most=LONGEST_ROW, is_saved=True
    )


class ClassifierConfig(TaskConfig):
    """Fine-tune BERT to label texts or pairs of texts over all MPI ranks."""

    texts: TextSettings
    examples: ExampleSettings
    head: HeadSettings
    class_weights: str | None = setting(
        None,
        "weight of each label in the loss: LABEL=WEIGHT,…, a JSON object of labels and weights, or "
        "balanced",
        "training",
        changes="training",
        is_mapping=True,
    )

    def check(self) -> None:
        super().check()
        self.check_parts()
        if self.texts.reads_lines and self.has_seeds:
            raise ValueError(
                "--predict_file -: the lines of standard input are for one model: leave --seeds out"
            )
        if self.texts.task_name or not (self.texts.data_dir or self.texts.from_hub):
            self.check_files(self.texts, "task_name")

    def check_settled(self) -> None:
        # a trained model may have told the name of the task
        self.check_files(self.texts, "task_name")


COMMAND = Command(
    "bert-classifier",
    ClassifierConfig,
    implied={
        "do_train": ("train_file", "task_name"),
        "do_eval": ("dev_file", "task_name"),
        "do_predict": ("predict_file",),
    },
)
