"""Reads and checks SQuAD's questions, from JSON files of SQuAD v1.1 and v2.0 (and KorQuAD 1.0,
which has the same format), plain or `.gz`, or from a hub data set or a Parquet file with SQuAD's
columns."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ringbase.errors import InputError, shortened
from ringbase.files import read_json
from ringbase.settings import shown
from tasks.runs.rows import sources
from tasks.runs.rows.tables import BINARY_FORMATS, Table, ending_of

WHITESPACE = " \t\r\n\u202f"  # where run_squad.py splits words
KINDS = {list: "a list", str: "text", int: "an integer", bool: "true or false"}
Paragraphs = Iterator[tuple[str, list]]  # the context and the questions of each
COLUMNS = ("id", "context", "question", "answers")  # of a Parquet file
HUB_KEYS = ("text", "answer_start")  # of which answers on the hub have a list each
NO_PLACE = -1  # of an answer that is not trained on
MAX_MISPLACED_SHARE = 0.05


class Source(sources.Source):
    """The questions to train on ("train") or to predict. Only those to train on must have an answer
    at its place in the context."""

    splits: ClassVar = {"train": "train", "predict": "validation"}


class Question(NamedTuple):
    """`answers` holds (text, start in the context or NO_PLACE); it is empty if there is no answer
    or no label."""

    id: str
    text: str
    paragraph: int
    answers: tuple[tuple[str, int], ...]
    is_impossible: bool = False


class Examples(NamedTuple):
    """The questions of a source and their contexts. `misplaced` has the ids of those that were left
    out."""

    version: str
    paragraphs: list[str]
    questions: list[Question]
    misplaced: Sequence[str] = ()

    @property
    def references(self) -> dict[str, list[str]]:
        """Question id -> the texts of its answers, for scoring."""
        return {question.id: [text for text, _ in question.answers] for question in self.questions}


def read(source: Source, allow_impossible: bool = False) -> Examples:
    """Reads and checks the questions of a source. With `allow_impossible` some may have no answer.
    Raises InputError also for more than 5 % of answers that are not at their position."""
    paragraphs: list[str] = []
    questions: list[Question] = []
    is_training = source.kind == "train"
    version, found = _paragraphs(source, allow_impossible)
    for context, qas in found:
        for qa in qas:
            where = f"{source}: question {len(questions) + 1}"
            questions.append(_question(qa, len(paragraphs), is_training, where))
        paragraphs.append(context)
        if source.limit and len(questions) >= source.limit:
            break
    if not questions:
        raise InputError(f"{source}: holds no question")
    questions = questions[: source.limit]
    paragraphs = paragraphs[: questions[-1].paragraph + 1]
    id_, times = Counter(question.id for question in questions).most_common(1)[0]
    if times > 1:
        raise InputError(
            f"{source}: question {id_} occurs {times} times: predictions are stored by id"
        )
    has_answers = any(question.answers for question in questions)
    if is_training and not has_answers:
        raise InputError(
            f"{source}: none of its {len(questions):,} questions has an answer to train on"
        )
    needs_answers = is_training or (has_answers and not allow_impossible)
    kept, misplaced = [], []
    for question in questions:
        where = f"{source}: question {question.id}"
        context = paragraphs[question.paragraph]
        if not (question.text.strip(WHITESPACE) and context.strip(WHITESPACE)):
            raise InputError(f"{where}: its text or its context is empty")
        has_none = question.is_impossible or (needs_answers and not question.answers)
        if has_none and not (question.is_impossible and allow_impossible):
            raise InputError(
                f"{where} has no answer: SQuAD v2.0 marks such questions by is_impossible, and its"
                " data need --version_2_with_negative"
            )
        is_trained = is_training and not has_none
        if is_trained and not _is_in_place(*question.answers[0], context, where):
            misplaced.append(question.id)
        else:
            kept.append(question)
    if len(misplaced) > MAX_MISPLACED_SHARE * len(questions):
        raise InputError(
            f"{source}: {len(misplaced)} of {len(questions)} answers are not at their answer_start "
            f"({shortened(misplaced, 5)}); were the contexts changed after the answers were marked?"
        )
    return Examples(version, paragraphs, kept, misplaced)


def _paragraphs(source: Source, allow_impossible: bool) -> tuple[str, Paragraphs]:
    """The version of a file, "" for a table, and its paragraphs."""
    path = Path(source.file or "").expanduser()
    where = str(source)
    if not source.file or ending_of(path) in BINARY_FORMATS:
        return "", _of_table(source.table(COLUMNS), allow_impossible)
    data = read_json(path, where)
    version = data.get("version", "") if isinstance(data, dict) else ""
    return str(version), _of_file(data, where)


def _of_file(data: Any, source: str) -> Paragraphs:
    """Raises InputError: it is not SQuAD's form."""
    number = 0
    for entry in _part(data, "data", list, source):
        where = f"{source}: `data` after paragraph {number}"
        for paragraph in _part(entry, "paragraphs", list, where):
            number += 1
            where = f"{source}: paragraph {number}"
            yield _part(paragraph, "context", str, where), _part(paragraph, "qas", list, where)


def _of_table(table: Table, allow_impossible: bool) -> Paragraphs:
    """As `_of_file`, with a paragraph for successive rows of one context. A table without any
    answer has no labels; in another one a question without answers has none."""
    placed = [(place, row | {"answers": _answers_of(row)}) for place, row in table.rows]
    has_labels = any(row["answers"] for _, row in placed)

    def context_of(placed: tuple[str, dict]) -> str:
        place, row = placed
        return _part(row, "context", str, f"{table.where}: {place}")

    for context, rows in itertools.groupby(placed, context_of):
        questions = []
        for _, row in rows:
            is_impossible = allow_impossible and has_labels and not row["answers"]
            questions.append(row | {"is_impossible": is_impossible})
        yield context, questions


def _answers_of(row: dict) -> Any:
    """The answers of a table's row in the form of a file's."""
    answers = row.get("answers") or []
    if isinstance(answers, dict):
        lists: list = [answers.get(key) for key in HUB_KEYS]
        if all(isinstance(each, list) for each in lists):
            pairs = itertools.zip_longest(*lists)
            return [dict(zip(HUB_KEYS, pair, strict=True)) for pair in pairs]
    return answers


def _part(parent: Any, name: str, kind: type, where: str, default: Any = None) -> Any:
    """The part of this name and kind of an object; without a default it must be there."""
    if not isinstance(parent, dict):
        raise InputError(
            f"{where}: expected an object with {name!r}, as in SQuAD, got {shown(parent)}"
        )
    value = default if parent.get(name) is None else parent[name]
    if value is None:
        raise InputError(f"{where}: expected {name!r}, as in SQuAD, in {shown(parent)}")
    if kind is not object and type(value) is not kind:
        raise InputError(f"{where}: {name} must be {KINDS[kind]}, got {shown(value)}")
    return value


def _question(qa: Any, paragraph: int, is_training: bool, where: str) -> Question:
    """Raises InputError: it is not of SQuAD's form."""
    id_ = str(_part(qa, "id", object, where))
    where = f"{where} ({id_})"
    answers = []
    for answer in _part(qa, "answers", list, where, []):
        start = _part(answer, "answer_start", int, where) if is_training else NO_PLACE
        answers.append((_part(answer, "text", str, where), start))
    is_impossible = _part(qa, "is_impossible", bool, where, False)
    text = _part(qa, "question", str, where)
    return Question(id_, text, paragraph, tuple(answers), is_impossible)


def _is_in_place(text: str, start: int, context: str, where: str) -> bool:
    """Whether the answer's text is at its position. Raises InputError: the position is not in the
    context."""
    if not text.strip() or not 0 <= start <= len(context) - len(text):
        place = f"answer_start {start} is not inside its {len(context)}-character context"
        raise InputError(f"{where}: its answer {shown(text)} at {place}")
    return answer_characters(text, start, context) is not None


def answer_characters(text: str, start: int, context: str) -> tuple[int, int] | None:
    """The first and the last character + 1 of an answer in its context; None if its text is not
    there.

    Any run of blanks equals any other, as in run_squad.py.
    """
    if context.startswith(text, start):
        return start, start + len(text)
    words = r"\s+".join(map(re.escape, text.split()))
    match = re.compile(rf"\s*({words})").match(context, start)
    return match.span(1) if match else None
