"""bert-ask: answers a question from a text file, with a model that bert-squad has trained.

    bert-ask squad_output "Who wrote it?" context.txt
    cat context.txt | bert-ask squad_output "Who wrote it?" - --top_k 3 --json

Each line of the output is an answer: its probability, a tab, and its text. `tasks.predictors.Answer` says what the
probability means.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, make_dataclass
from pathlib import Path
from typing import Any, Literal

from ringbase.files import read_standard_input, read_text
from ringbase.settings import Field, Settings, fields_of, setting
from tasks import flags
from tasks.squad.settings import MOST_CANDIDATES, AnswerSettings, WindowSettings

DESCRIPTION = "Answer a question from a text, with a model that bert-squad has trained."
# The flags of bert-squad that are those of the run unless they are given.
OPTIONS = [
    field
    for part in (WindowSettings, AnswerSettings)
    for field in fields_of(part)
    if field.name != "allow_unknown"
]


@dataclass(frozen=True, kw_only=True)
class Arguments(Settings):
    """The arguments and flags of bert-ask that are its own."""

    folder: str = setting(
        help="a run's folder, its model/, a Hugging Face folder or a hub name", is_positional=True
    )
    question: str = setting(help="the question", is_positional=True)
    context: str = setting(help="UTF-8 file with the text to search; - for standard input", is_positional=True)
    top_k: int = setting(1, "print the best N answers", "output", at_least=1, at_most=MOST_CANDIDATES)
    json: bool = setting(False, "print one line of JSON, with places in the text and scores", "output")
    precision: Literal["fp32", "bf16", "fp16"] = setting("fp32", "number format of matrix products", "machine")
    model_revision: str | None = setting(
        None, "commit, tag or branch of a hub model", "model", shown_default="main"
    )


def unless_given(field: Field) -> Any:
    shown = "as the run in FOLDER, else as bert-squad"
    limits: dict[str, Any] = {"at_least": field.at_least, "at_most": field.at_most}
    return setting(None, field.help, field.group, shown_default=shown, **limits)


Config: Any = make_dataclass(
    "Config",
    [(field.name, field.type | None, unless_given(field)) for field in OPTIONS],
    bases=(Arguments,),
    frozen=True,
    kw_only=True,
)


def main(argv: Sequence[str] | None = None) -> None:
    config = flags.parse(Config, argv, prog="bert-ask", description=DESCRIPTION)
    if not flags.is_first():
        return  # one process of an MPI job is enough, and reads standard input
    with flags.reporting("bert-ask"):
        if config.context == "-":
            context = read_standard_input("CONTEXT -, standard input")
        else:
            context = read_text(Path(config.context).expanduser(), f"CONTEXT {config.context}")
        from tasks.predictors import QuestionAnswering

        options = {name: getattr(config, name) for name in ("precision", "model_revision")}
        options |= {field.name: getattr(config, field.name) for field in OPTIONS}
        answers = QuestionAnswering(config.folder, **options)(config.question, context, top_k=config.top_k)
    if config.json:
        answered = {"question": config.question, "answers": [asdict(answer) for answer in answers]}
        print(json.dumps(answered, ensure_ascii=False))
    else:  # white space within a text becomes a blank
        for answer in answers:
            print(f"{answer.probability:.4f}\t{' '.join(answer.text.split()) or '(no answer)'}")


if __name__ == "__main__":
    main()
