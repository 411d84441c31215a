"""Settings of SQuAD's data and answers. They have their own module because `--help` should not import NumPy."""

from dataclasses import dataclass

from bert.text.settings import UnknownSettings
from ringbase.settings import LONGEST_ROW, Settings, check_at_least, check_at_most, setting

MOST_CANDIDATES = 1000  # per question; their pairs of start and end are compared


@dataclass(frozen=True, kw_only=True)
class QuestionSettings(Settings):
    """Which questions are read."""

    train_file: str | None = setting(None, "SQuAD JSON to train on, plain or .gz", "data")
    predict_file: str | None = setting(None, "SQuAD JSON to predict and score, plain or .gz", "data")
    dataset_name: str | None = setting(
        None, "hub data set or folder with SQuAD's columns and splits train and validation", "data"
    )
    dataset_revision: str | None = setting(
        None, "commit, tag or branch of the hub data set --dataset_name", "data", shown_default="main"
    )
    max_train_examples: int | None = setting(None, "train on the first N questions", "data")
    max_predict_examples: int | None = setting(None, "predict the first N questions", "data")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "max_train_examples", "max_predict_examples")
        if self.dataset_revision and not self.dataset_name:
            raise ValueError("--dataset_revision needs --dataset_name")


@dataclass(frozen=True, kw_only=True)
class WindowSettings(UnknownSettings):
    """How contexts are cut into windows; names and defaults of run_squad.py."""

    version_2_with_negative: bool = setting(False, "the data has questions without an answer (SQuAD v2.0)", "data")
    max_seq_length: int = setting(384, "maximum number of tokens per window, question included", "data")
    doc_stride: int = setting(128, "tokens between the starts of windows", "data")
    max_query_length: int = setting(64, "maximum number of tokens of a question", "data")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "doc_stride", "max_query_length")
        check_at_most(self, LONGEST_ROW, "max_seq_length", "doc_stride", "max_query_length")
        if self.max_seq_length <= self.max_query_length + 3:
            raise ValueError(
                f"--max_seq_length {self.max_seq_length} must exceed "
                f"--max_query_length + 3 = {self.max_query_length + 3}"
            )


@dataclass(frozen=True, kw_only=True)
class AnswerSettings(Settings):
    """How answers are chosen; names and defaults of run_squad.py."""

    n_best_size: int = setting(20, "candidates per question in nbest_predictions.json", "prediction")
    max_answer_length: int = setting(30, "maximum number of tokens of an answer", "prediction")
    null_score_diff_threshold: float = setting(
        0.0, "give no answer if its score exceeds the best answer's score by more than this", "prediction"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "n_best_size", "max_answer_length")
        check_at_most(self, MOST_CANDIDATES, "n_best_size")
        check_at_most(self, LONGEST_ROW, "max_answer_length")
