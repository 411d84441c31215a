"""The flags of bert-squad: names and defaults of run_squad.py, and some more."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from ringbase.settings import LONGEST_ROW, Settings, setting
from tasks.runs.commands import Command
from tasks.runs.settings import (
    DataSettings,
    FineTuningConfig,
    SmoothingSettings,
    batch_size,
    data_setting,
    other_file_setting,
    row_setting,
    train_file_setting,
)

MOST_CANDIDATES = 1000  # per question; their pairs of start and end are compared


class QuestionSettings(DataSettings):
    """Which questions are read."""

    train_file: str | None = train_file_setting(
        "SQuAD JSON to train on, plain or .gz, or Parquet with SQuAD's columns"
    )
    predict_file: str | None = other_file_setting("file of the same kinds to predict and score")
    dataset_name: str | None = data_setting(
        None,
        "hub data set or folder with SQuAD's columns and splits train and validation",
        describes="data",
    )


class WindowSettings(Settings):
    """How contexts are cut into windows; names and defaults of run_squad.py."""

    version_2_with_negative: bool = row_setting(
        False, "the data has questions without an answer (SQuAD v2.0)", is_saved=True
    )
    max_seq_length: int = row_setting(
        384,
        "maximum number of tokens per window, question included",
        is_saved=True,
        at_least=5,
        at_most=LONGEST_ROW,
    )
    doc_stride: int = row_setting(
        128, "tokens between the starts of windows", is_saved=True, at_least=1
    )
    max_query_length: int = row_setting(
        64, "maximum number of tokens of a question", is_saved=True, at_least=1
    )

    def check_settled(self) -> None:
        if self.max_seq_length <= (least := self.max_query_length + 3):
            raise ValueError(
                f"--max_seq_length {self.max_seq_length} must exceed --max_query_length + 3 ="
                f" {least}"
            )


class AnswerSettings(Settings):
    """How answers are chosen; names and defaults of run_squad.py."""

    n_best_size: int = setting(
        20,
        "candidates per question in nbest_predictions.json",
        "prediction",
        is_saved=True,
        at_least=1,
        at_most=MOST_CANDIDATES,
    )
    max_answer_length: int = setting(
        30,
        "maximum number of tokens of an answer",
        "prediction",
        is_saved=True,
        at_least=1,
        at_most=LONGEST_ROW,
    )
    null_score_diff_threshold: float = setting(
        0.0,
        "give no answer if its score exceeds the best answer's score by more than this",
        "prediction",
        is_saved=True,
    )


class SquadConfig(FineTuningConfig):
    """Fine-tune BERT on SQuAD over all MPI ranks."""

    dev: ClassVar[str] = "predict"
    questions: QuestionSettings
    windows: WindowSettings
    answers: AnswerSettings
    smoothing: SmoothingSettings
    do_predict: bool = setting(
        False, "predict answers, and score them if the file has answers", "prediction"
    )
    predict_batch_size: int = batch_size("windows", "prediction")
    metric: Literal["auto", "squad_v1", "squad_v2", "korquad_v1", "characters"] = setting(
        "auto",
        "how predictions are scored; auto: by the version of the file; characters: F1 of characters"
        " instead of words, for texts without blanks",
        "prediction",
    )

    def check(self) -> None:
        super().check()
        self.check_files(self.questions, "dataset_name")

    def void(self) -> Mapping[str, str]:
        reasons = dict(super().void())
        if not self.windows.version_2_with_negative:
            flag = "--version_2_with_negative"
            reasons["null_score_diff_threshold"] = f"without {flag} each question has an answer"
        return reasons

    def check_settled(self) -> None:
        version_2 = self.windows.version_2_with_negative
        if self.metric not in ("auto", "characters") and (self.metric == "squad_v2") != version_2:
            raise ValueError(
                f"--metric {self.metric} does not fit --version_2_with_negative={version_2}"
            )


COMMAND = Command(
    "bert-squad",
    SquadConfig,
    implied={
        "do_train": ("train_file", "dataset_name"),
        "do_predict": ("predict_file", "dataset_name"),
    },
)
