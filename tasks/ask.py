"""bert-ask: answers a question from a text file, with a model that bert-squad has trained.

    bert-ask squad_output "Who wrote it?" context.txt
    cat context.txt | bert-ask squad_output "Who wrote it?" - --top_k 3 --json

Each line of the output is an answer: its probability, a tab, and its text. `tasks.predictors.Answer` says what the
probability means.
"""

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ringbase.errors import InputError, one_line
from ringbase.files import read_standard_input, read_text
from ringbase.settings import Settings, setting
from tasks import flags
from tasks.squad.settings import MOST_CANDIDATES

if TYPE_CHECKING:
    from tasks.predictors import Answer
    from tasks.predictors.question_answering import QuestionOptions

AS_TRAINED = "as the run in FOLDER, else as bert-squad"
DESCRIPTION = "Answer a question from a text, with a model that bert-squad has trained."


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """The arguments and flags of bert-ask."""

    folder: str = setting(
        help="a run's folder, its model/, a Hugging Face folder or a hub name", is_positional=True
    )
    question: str = setting(help="the question", is_positional=True)
    context: str = setting(help="UTF-8 file with the text to search; - for standard input", is_positional=True)
    top_k: int = setting(1, "print the best N answers", "output")
    json: bool = setting(False, "print one line of JSON, with places in the text and scores", "output")
    precision: Literal["fp32", "bf16", "fp16"] = setting("fp32", "number format of matrix products", "machine")
    model_revision: str | None = setting(
        None, "commit, tag or branch of a hub model", "model", shown_default="main"
    )
    max_seq_length: int | None = setting(None, "tokens per window", "data", shown_default=AS_TRAINED)
    doc_stride: int | None = setting(None, "tokens between windows", "data", shown_default=AS_TRAINED)
    max_query_length: int | None = setting(None, "tokens of the question", "data", shown_default=AS_TRAINED)
    n_best_size: int | None = setting(
        None, "candidates that the probability is over", "prediction", shown_default=AS_TRAINED
    )
    max_answer_length: int | None = setting(
        None, "maximum number of tokens of an answer", "prediction", shown_default=AS_TRAINED
    )
    version_2_with_negative: bool | None = setting(
        None, "there may be no answer (SQuAD v2.0)", "prediction", shown_default=AS_TRAINED
    )
    null_score_diff_threshold: float | None = setting(
        None,
        "give no answer if its score exceeds the best answer's score by more than this",
        "prediction",
        shown_default=AS_TRAINED,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.top_k <= MOST_CANDIDATES:
            raise ValueError(f"--top_k must be from 1 to {MOST_CANDIDATES:,}, got {self.top_k}")

    @property
    def options(self) -> "QuestionOptions":
        """The settings of `QuestionAnswering` that were given."""
        from tasks.predictors.question_answering import QuestionOptions

        names = QuestionOptions.__annotations__
        return {name: value for name, value in asdict(self).items() if name in names and value is not None}  # type: ignore[return-value]


def main(argv: Sequence[str] | None = None) -> None:
    config = flags.parse(Config, argv, prog="bert-ask", description=DESCRIPTION)
    if not flags.is_first():
        return  # one process of an MPI job is enough, and reads standard input
    with warnings.catch_warnings(record=True) as caught:
        try:
            answers = ask(config)
        except InputError as error:
            print(f"bert-ask: error: {one_line(error)}", file=sys.stderr)
            raise SystemExit(1) from None
    for warning in caught:
        if warning.category is UserWarning:  # ours; libraries use other classes
            print(f"bert-ask: warning: {warning.message}", file=sys.stderr)
    print(as_json(config, answers) if config.json else as_lines(answers))


def ask(config: Config) -> "list[Answer]":
    """The best answers, the best first. Raises InputError."""
    if config.context == "-":
        context = read_standard_input("CONTEXT -, standard input")
    else:
        context = read_text(Path(config.context).expanduser(), f"CONTEXT {config.context}")
    from tasks.predictors import QuestionAnswering

    answers = QuestionAnswering(
        config.folder, precision=config.precision, model_revision=config.model_revision, **config.options
    )
    return answers(config.question, context, top_k=config.top_k)


def as_lines(answers: "Sequence[Answer]") -> str:
    """Lines of probability, tab and text; white space within a text becomes a blank."""
    return "\n".join(f"{a.probability:.4f}\t{' '.join(a.text.split()) or '(no answer)'}" for a in answers)


def as_json(config: Config, answers: "Sequence[Answer]") -> str:
    """One JSON object, with the fields of `Answer`."""
    value = {"question": config.question, "answers": [asdict(answer) for answer in answers]}
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    main()
