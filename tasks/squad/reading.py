"""Reads and checks SQuAD's questions.

They come from JSON files of SQuAD v1.1 and v2.0 (and KorQuAD 1.0, which has the same format), plain or `.gz`, or
from a hub data set with SQuAD's columns.
"""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bert import hub
from ringbase.errors import InputError, shortened
from ringbase.json_files import read_json
from tasks.squad.settings import QuestionSettings

WHITESPACE = " \t\r\n\u202f"  # where run_squad.py splits words
MAX_MISPLACED_SHARE = 0.05
NEEDS_VERSION_2 = "SQuAD v2.0 data needs --version_2_with_negative"


@dataclass(frozen=True)
class Source:
    """Where questions are read from.

    For training the positions of answers are checked too, and questions whose answer is not there are left out.
    """

    path: str  # a file, or the name or folder of a data set that `datasets` reads
    flag: str  # that named it, for messages
    is_training: bool
    limit: int | None = None  # read only the first questions
    split: str | None = None  # of the data set; None for a file
    revision: str | None = None  # the data set's commit, tag or branch on the hub; None for the default

    def __str__(self) -> str:
        return f"{self.flag} {self.path}" + (f" ({self.split})" if self.split else "")


class Question(NamedTuple):
    """One question. `answers` holds (text, start in the context); it is empty if there is no answer or no
    label."""

    id: str
    text: str
    paragraph: int
    answers: tuple[tuple[str, int], ...]
    is_impossible: bool = False


@dataclass(frozen=True)
class Examples:
    """The questions of a source and their contexts. `misplaced` has the ids of the questions that were left
    out."""

    source: Source
    version: str
    paragraphs: list[str]
    questions: list[Question]
    misplaced: tuple[str, ...] = ()

    @property
    def references(self) -> dict[str, list[str]]:
        """Question id -> the texts of its answers, for scoring."""
        return {question.id: [text for text, _ in question.answers] for question in self.questions}

    @property
    def is_labelled(self) -> bool:
        return any(question.answers or question.is_impossible for question in self.questions)


def sources(settings: QuestionSettings) -> tuple[Source, Source]:
    """The questions for training and those for prediction: a file, else a split of `--dataset_name`."""
    name, revision = str(settings.dataset_name), settings.dataset_revision

    def source(path: str | None, flag: str, split: str, limit: int | None) -> Source:
        is_training = split == "train"
        if path is not None:
            return Source(path, flag, is_training, limit)
        return Source(name, "--dataset_name", is_training, limit, split, revision)

    return (
        source(settings.train_file, "--train_file", "train", settings.max_train_examples),
        source(settings.predict_file, "--predict_file", "validation", settings.max_predict_examples),
    )


def read(source: Source, allow_impossible: bool = False) -> Examples:
    """Reads the questions of a source. With `allow_impossible` (`--version_2_with_negative`) some may have no
    answer.

    Raises InputError: the file or data set is missing, damaged or not SQuAD's; a context or question is empty; an
      answer is out of range; a question has no answer although that is not allowed; more than 5 % of the answers
      are not at their position.
    """
    return _checked(_from_hub(source, allow_impossible) if source.split else _from_file(source), allow_impossible)


def _from_file(source: Source) -> Examples:
    data = read_json(Path(source.path).expanduser(), str(source))
    if not isinstance(data, dict) or not isinstance(data.get("data"), list):
        raise InputError(f'{source}: not a SQuAD file: it has no list "data" at its top level')
    paragraphs: list[str] = []
    questions: list[Question] = []
    try:
        for paragraph in itertools.chain.from_iterable(entry["paragraphs"] for entry in data["data"]):
            paragraphs.append(paragraph["context"])
            for qa in paragraph["qas"]:
                questions.append(_question(qa, len(paragraphs) - 1))
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else f"an entry of another type ({error})"
        raise InputError(f"{source}: not a SQuAD file: {reason} in question {len(questions) + 1}") from error
    questions = questions[: source.limit]
    used = questions[-1].paragraph + 1 if questions else 0
    return Examples(source, str(data.get("version", "")), paragraphs[:used], questions)


def _question(qa: dict[str, Any], paragraph: int) -> Question:
    """Raises KeyError, TypeError or AttributeError for what is not a question of SQuAD."""
    answers = tuple((answer["text"], answer["answer_start"]) for answer in qa.get("answers") or ())
    impossible = qa.get("is_impossible") or False
    if type(impossible) is not bool or type(qa["id"]) not in (str, int):
        raise TypeError("is_impossible must be true or false, and id a string")
    return Question(str(qa["id"]), qa["question"], paragraph, answers, impossible)


def _from_hub(source: Source, allow_impossible: bool) -> Examples:
    where = f"{source.flag} {source.path}"
    table = hub.load_data_set(source.path, None, str(source.split), where, source.revision)
    missing = {"id", "question", "context", "answers"} - set(table.column_names)
    if missing:
        raise InputError(f"{source}: column {', '.join(sorted(missing))} is missing")
    numbers: dict[str, int] = {}  # of the contexts, which are repeated for each of their questions
    questions = []
    for row in itertools.islice(table, source.limit):
        paragraph = numbers.setdefault(row["context"], len(numbers))
        answers = tuple(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True))
        questions.append(
            Question(str(row["id"]), row["question"], paragraph, answers, allow_impossible and not answers)
        )
    return Examples(source, "", list(numbers), questions)


def _checked(examples: Examples, allow_impossible: bool) -> Examples:
    """The examples without the questions whose answer is not at its position. Raises InputError as `read`."""
    source, questions = examples.source, examples.questions
    if not questions:
        raise InputError(f"{source}: holds no question")
    ids, kept, misplaced = set(), [], []
    for question in questions:
        where, context = f"{source}: question {question.id}", examples.paragraphs[question.paragraph]
        _check_texts(question, context, where)
        if question.id in ids:
            raise InputError(f"{where} occurs twice: ids must be unique, because predictions are stored by id")
        ids.add(question.id)
        if question.is_impossible and not allow_impossible:
            raise InputError(f"{where} is_impossible: {NEEDS_VERSION_2}")
        is_answered = source.is_training and not question.is_impossible
        if is_answered and not _is_at_its_place(question, context, where):
            misplaced.append(question.id)
        else:
            kept.append(question)
    unanswered = [question.id for question in questions if not question.answers]
    if not allow_impossible and 0 < len(unanswered) < len(questions):
        raise InputError(
            f"{source}: question {unanswered[0]} has no answer although others have one: {NEEDS_VERSION_2}"
        )
    if len(misplaced) > MAX_MISPLACED_SHARE * len(questions):
        raise InputError(
            f"{source}: {len(misplaced)} of {len(questions)} answers are not at their answer_start "
            f"({shortened(misplaced, 5)}); were the contexts changed after the answers were marked?"
        )
    return replace(examples, questions=kept, misplaced=tuple(misplaced))


def _check_texts(question: Question, context: object, where: str) -> None:
    """Raises InputError for a context, question or answer that is not text or is empty."""
    for text, name in ((context, "context"), (question.text, "text")):
        if not isinstance(text, str):
            raise InputError(f"{where}: its {name} is not a string")
        if not text.strip(WHITESPACE):
            raise InputError(f"{where}: its {name} is empty")
    if not all(isinstance(text, str) for text, _ in question.answers):
        raise InputError(f"{where}: an answer has no text")


def _is_at_its_place(question: Question, context: str, where: str) -> bool:
    """Whether the words at the answer's position contain its words. Raises InputError for a question that cannot
    be trained on."""
    if not question.answers:
        raise InputError(f"{where} has no answer to train on and is not marked is_impossible; {NEEDS_VERSION_2}")
    text, start = question.answers[0]
    if type(start) is not int or not text.strip(WHITESPACE):
        raise InputError(f"{where}: its answer has an empty text or no integer answer_start")
    if start < 0 or start + len(text) > len(context):
        raise InputError(
            f"{where}: answer_start {start} with {len(text)} characters reaches past the end of its "
            f"{len(context)}-character context"
        )
    first, stop = touched_words(context, start, start + len(text))
    return " ".join(text.split()) in " ".join(context[first:stop].split())


def touched_words(context: str, start: int, stop: int) -> tuple[int, int]:
    """The start and end of the words that these characters belong to. White space belongs to the word before
    it."""
    while start > 0 and context[start] in WHITESPACE:
        start -= 1
    while stop > start + 1 and context[stop - 1] in WHITESPACE:
        stop -= 1
    while start > 0 and context[start - 1] not in WHITESPACE:
        start -= 1
    while stop < len(context) and context[stop] not in WHITESPACE:
        stop += 1
    return start, stop
