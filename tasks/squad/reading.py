"""Reads and checks SQuAD's questions, from JSON files of SQuAD v1.1 and v2.0 (and KorQuAD 1.0, which has the same
format), plain or `.gz`, or from a hub data set with SQuAD's columns."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bert import hub
from ringbase.errors import InputError, shortened
from ringbase.files import read_json
from ringbase.settings import shown
from tasks.squad.settings import QuestionSettings

WHITESPACE = " \t\r\n\u202f"  # where run_squad.py splits words
NO_PLACE = -1  # of an answer that is not trained on
MAX_MISPLACED_SHARE = 0.05


@dataclass(frozen=True)
class Source:
    """Where questions are read from. Only those to train on must have an answer at its place in the context."""

    path: str  # a file, or the name or folder of a data set that `datasets` reads
    is_training: bool
    limit: int | None = None  # read only the first questions
    split: str | None = None  # of the data set; None for a file
    revision: str | None = None  # the data set's commit, tag or branch on the hub; None for the default

    def __str__(self) -> str:
        if self.split:
            return f"--dataset_name {self.path} ({self.split})"
        return f"--{'train' if self.is_training else 'predict'}_file {self.path}"


class Question(NamedTuple):
    """`answers` holds (text, start in the context or NO_PLACE); it is empty if there is no answer or no label."""

    id: str
    text: str
    paragraph: int
    answers: tuple[tuple[str, int], ...]
    is_impossible: bool = False


@dataclass(frozen=True)
class Examples:
    """The questions of a source and their contexts. `misplaced` has the ids of those that were left out."""

    version: str
    paragraphs: list[str]
    questions: list[Question]
    misplaced: Sequence[str] = ()

    @property
    def references(self) -> dict[str, list[str]]:
        """Question id -> the texts of its answers, for scoring."""
        return {question.id: [text for text, _ in question.answers] for question in self.questions}


def source_of(settings: QuestionSettings, is_training: bool) -> Source:
    """The questions to train on or to predict: a file, else a split of `--dataset_name`."""
    path = settings.train_file if is_training else settings.predict_file
    limit = settings.max_train_examples if is_training else settings.max_predict_examples
    if path is not None:
        return Source(path, is_training, limit)
    split = "train" if is_training else "validation"
    return Source(str(settings.dataset_name), is_training, limit, split, settings.dataset_revision)


def read(source: Source, allow_impossible: bool = False) -> Examples:
    """Reads and checks the questions of a source. With `allow_impossible` some may have no answer. Raises
    InputError also for more than 5 % of answers that are not at their position."""
    file = Path(source.path).expanduser()
    data = _from_hub(source, allow_impossible) if source.split else read_json(file, str(source))
    paragraphs: list[str] = []
    questions: list[Question] = []
    try:
        for paragraph in itertools.chain.from_iterable(entry["paragraphs"] for entry in data["data"]):
            paragraphs.append(paragraph["context"])
            for qa in paragraph["qas"]:
                questions.append(_question(qa, paragraphs, source.is_training))
            if source.limit and len(questions) >= source.limit:
                break
        version = str(data.get("version", ""))
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else f"an entry of another type ({error})"
        raise InputError(f"{source}: not SQuAD's form: {reason} in question {len(questions) + 1}") from error
    if not questions:
        raise InputError(f"{source}: holds no question")
    questions = questions[: source.limit]
    paragraphs = paragraphs[: questions[-1].paragraph + 1]
    needs_answers = source.is_training or (not allow_impossible and any(each.answers for each in questions))
    id_, times = Counter(question.id for question in questions).most_common(1)[0]
    if times > 1:
        raise InputError(f"{source}: question {id_} occurs {times} times: predictions are stored by id")
    kept: list[Question] = []
    misplaced: list[str] = []
    for question in questions:
        where, context = f"{source}: question {question.id}", paragraphs[question.paragraph]
        if not (question.text.strip(WHITESPACE) and context.strip(WHITESPACE)):
            raise InputError(f"{where}: its text or its context is empty")
        has_none = question.is_impossible or (needs_answers and not question.answers)
        if has_none and not (question.is_impossible and allow_impossible):
            raise InputError(
                f"{where} has no answer: SQuAD v2.0 marks such questions by is_impossible, and its data need "
                "--version_2_with_negative"
            )
        if source.is_training and not has_none and not _is_in_place(*question.answers[0], context, where):
            misplaced.append(question.id)
        else:
            kept.append(question)
    if len(misplaced) > MAX_MISPLACED_SHARE * len(questions):
        raise InputError(
            f"{source}: {len(misplaced)} of {len(questions)} answers are not at their answer_start "
            f"({shortened(misplaced, 5)}); were the contexts changed after the answers were marked?"
        )
    return Examples(version, paragraphs, kept, misplaced)


def _from_hub(source: Source, allow_impossible: bool) -> dict[str, Any]:
    """A split of a data set as a SQuAD file has it, with a paragraph for successive rows of one context."""
    flag = f"--dataset_name {source.path}"
    table = hub.load_data_set(source.path, None, str(source.split), flag, source.revision)

    def qa(row: dict[str, Any]) -> dict[str, Any]:
        places = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in places]
        return row | {"answers": answers, "is_impossible": allow_impossible and not answers}

    groups = itertools.groupby(table, lambda row: row["context"])
    return {"data": [{"paragraphs": ({"context": context, "qas": map(qa, rows)} for context, rows in groups)}]}


def _question(qa: dict[str, Any], paragraphs: list[str], is_training: bool) -> Question:
    """A question about the last paragraph. Raises KeyError, TypeError or AttributeError if it is not SQuAD's."""
    answers = qa.get("answers") or ()
    places = [answer["answer_start"] if is_training else NO_PLACE for answer in answers]
    texts = [answer["text"] for answer in answers]
    is_impossible = qa.get("is_impossible") or False
    kinds = {type(text) for text in (paragraphs[-1], qa["question"], *texts)}
    if type(is_impossible) is not bool or kinds != {str}:
        raise TypeError("is_impossible must be true or false, and texts strings")
    answered = tuple(zip(texts, places, strict=True))
    return Question(str(qa["id"]), qa["question"], len(paragraphs) - 1, answered, is_impossible)


def _is_in_place(text: str, start: int, context: str, where: str) -> bool:
    """Whether the answer's text is at its position. Raises InputError: the position is not in the context."""
    if type(start) is not int or not text.strip() or not 0 <= start <= len(context) - len(text):
        place = f"answer_start {start} is not inside its {len(context)}-character context"
        raise InputError(f"{where}: its answer {shown(text)} at {place}")
    return answer_characters(text, start, context) is not None


def answer_characters(text: str, start: int, context: str) -> tuple[int, int] | None:
    """The first and the last character + 1 of an answer in its context; None if its text is not there.

    Any run of blanks equals any other, as in run_squad.py.
    """
    if context.startswith(text, start):
        return start, start + len(text)
    words = r"\s+".join(map(re.escape, text.split()))
    match = re.compile(rf"\s*({words})").match(context, start)
    return match.span(1) if match else None
