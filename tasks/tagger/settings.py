"""The flags of bert-tagger."""

from ringbase.settings import LONGEST_ROW, Settings, setting
from tasks.runs.settings import TaskConfig


class SentenceSettings(Settings):
    """How sentences become rows."""

    max_seq_length: int = setting(
        128,
        "maximum number of tokens of a row; longer sentences become several",
        "data",
        is_saved=True,
        at_least=8,
        at_most=LONGEST_ROW,
    )
    doc_stride: int = setting(
        64, "tokens between the starts of such rows", "data", is_saved=True, at_least=1
    )
    characters: bool = setting(
        False,
        "the files have a character in each line, blanks too, instead of a word (KLUE)",
        "data",
        is_saved=True,
    )
    allow_unknown: bool = setting(
        False, "continue even if more than 10 % of the tokens are [UNK]", "data"
    )


class FileSettings(Settings):
    """Which tagged sentences are read."""

    train_file: str | None = setting(
        None,
        "to train on: CoNLL columns (first the word, last its tag, blank lines between sentences),"
        " or JSON lines or Parquet with lists `tokens` and `ner_tags`",
        "data",
    )
    dev_file: str | None = setting(
        None, "file of the same kinds to evaluate on", "data", aliases=("validation_file",)
    )
    predict_file: str | None = setting(
        None,
        "file of the same kinds to predict, with or without tags",
        "data",
        aliases=("test_file",),
    )
    dataset_name: str | None = setting(
        None,
        "hub data set or folder with columns tokens and ner_tags and splits train, validation,"
        " test",
        "data",
    )
    dataset_revision: str | None = setting(None, "commit, tag or branch of --dataset_name", "data")
    max_train_examples: int | None = setting(
        None, "train on the first N sentences", "data", at_least=1
    )
    max_predict_examples: int | None = setting(
        None, "evaluate and predict the first N sentences", "data", at_least=1
    )


class TaggerConfig(TaskConfig):
    """Fine-tune BERT to tag words or characters, such as named entities, over all MPI ranks."""

    files: FileSettings
    sentences: SentenceSettings

    def check(self) -> None:
        super().check()
        self.check_files(self.files, "dataset_name")
        if self.files.dataset_revision and not self.files.dataset_name:
            raise ValueError("--dataset_revision needs --dataset_name")
