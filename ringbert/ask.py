"""bert-ask: answers a question from a text file, with a model that bert-squad has trained.

bert-ask squad_output "Who wrote it?" context.txt
cat context.txt | bert-ask squad_output "Who wrote it?" - --top_k 3 --json
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringbase.files import STANDARD_INPUT, read_standard_input, read_text
from ringbase.settings import Settings, fields_of, setting
from tasks.runs import flags
from tasks.runs.settings import Precision
from tasks.squad.settings import MOST_CANDIDATES, AnswerSettings, WindowSettings

AS_THE_RUN = "as the run in FOLDER, else as bert-squad"


class Arguments(Settings):
    """Answer a question from a text, with a model that bert-squad has trained."""

    folder: str = setting(
        help="a run's folder, its model/, a Hugging Face folder or a hub name", is_positional=True
    )
    question: str = setting(help="the question", is_positional=True)
    context: str = setting(
        help="UTF-8 file with the text to search; - for standard input", is_positional=True
    )
    top_k: int = setting(
        1, "print the best N answers", "output", at_least=1, at_most=MOST_CANDIDATES
    )
    json: bool = setting(
        False, "print one line of JSON, with places in the text and scores", "output"
    )
    precision: Precision = setting("fp32", "number format of matrix products", "machine")
    model_revision: str | None = setting(
        None, "commit, tag or branch of a hub model", "model", shown_default="main"
    )


# the flags of bert-squad that are those of the run unless they are given
OF_THE_RUN = {
    field.name: field for field in (*fields_of(WindowSettings), *fields_of(AnswerSettings))
}
MEMBERS: dict[str, Any] = {"__annotations__": {}}
for name, field in OF_THE_RUN.items():
    MEMBERS[name] = setting(
        None,
        field.help,
        field.group,
        shown_default=AS_THE_RUN,
        at_least=field.at_least,
        at_most=field.at_most,
    )
    MEMBERS["__annotations__"][name] = field.type | None
Config: Any = type("Config", (Arguments,), MEMBERS)


def main(argv: Sequence[str] | None = None) -> None:
    config = flags.parse(Config, argv, prog="bert-ask", description=Arguments.__doc__)
    if not flags.is_first():
        return  # one process of an MPI job is enough, and reads standard input
    with flags.reporting("bert-ask"):
        if config.context == STANDARD_INPUT:
            context = read_standard_input("CONTEXT -, standard input")
        else:
            context = read_text(Path(config.context).expanduser(), f"CONTEXT {config.context}")
        from ringbert.predictors import QuestionAnswering

        names = ["precision", "model_revision", *OF_THE_RUN]
        options = {name: getattr(config, name) for name in names}
        answering = QuestionAnswering(config.folder, **options)
        answers = answering(config.question, context, top_k=config.top_k)
    if config.json:
        answered = {"question": config.question, "answers": [asdict(answer) for answer in answers]}
        print(json.dumps(answered, ensure_ascii=False))
    else:  # white space within a text becomes a blank
        for answer in answers:
            text = " ".join(answer.text.split()) or "(no answer)"
            print(f"{answer.probability:.4f}\t{text}")
