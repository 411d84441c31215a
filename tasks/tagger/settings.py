"""The flags of bert-tagger."""

from ringbase.settings import LONGEST_ROW, Settings
from tasks.runs.commands import Command
from tasks.runs.settings import (
    DataSettings,
    HeadSettings,
    TaskConfig,
    other_file_setting,
    row_setting,
    train_file_setting,
)


class SentenceSettings(Settings):
    """How sentences become rows."""

    max_seq_length: int = row_setting(
        128,
        "maximum number of tokens of a row; longer sentences become several",
        is_saved=True,
        at_least=8,
        at_most=LONGEST_ROW,
    )
    doc_stride: int = row_setting(
        64, "tokens between the starts of such rows", is_saved=True, at_least=1
    )
    characters: bool = row_setting(
        False,
        "the files have a character in each line, blanks too, instead of a word (KLUE)",
        is_saved=True,
    )


class FileSettings(DataSettings):
    """Which tagged sentences are read."""

    train_file: str | None = train_file_setting(
        "to train on: CoNLL columns (first the word, last its tag, blank lines between sentences),"
        " or JSON lines or Parquet with lists `tokens` and `ner_tags`",
    )
    dev_file: str | None = other_file_setting(
        "file of the same kinds to evaluate on", aliases=("validation_file",)
    )
    predict_file: str | None = other_file_setting(
        "file of the same kinds to predict, with or without tags", aliases=("test_file",)
    )


class TaggerConfig(TaskConfig):
    """Fine-tune BERT to tag words or characters, such as named entities, over all MPI ranks."""

    files: FileSettings
    sentences: SentenceSettings
    head: HeadSettings

    def check(self) -> None:
        super().check()
        self.check_files(self.files, "dataset_name")


COMMAND = Command(
    "bert-tagger",
    TaggerConfig,
    implied={
        "do_train": ("train_file", "dataset_name"),
        "do_eval": ("dev_file", "dataset_name"),
        "do_predict": ("predict_file",),
    },
)
