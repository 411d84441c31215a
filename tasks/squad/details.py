"""What the report shows of answered questions: scores by question word and answer length, and wrong
answers."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from tasks.runs.details import MOST_ROWS, Section, marked, of_all, table
from tasks.squad.answers import Prediction
from tasks.squad.metrics import Score, separates_words
from tasks.squad.reading import Examples, Question

QUESTION_WORD = re.compile(r"\b(what|which|who|whose|whom|when|where|why|how)\b")
LEAST_KNOWN_SHARE = 0.5  # of questions with such a word, else they are in another language
# the longest answer of each group but the last
WORDS, CHARACTERS = (1, 2, 4, 8), (2, 4, 8, 16)
NO_ANSWER = "no answer"
LONGEST_ANSWER = 80  # characters, in a column; the context has all of it


def details(
    examples: Examples, predictions: Sequence[Prediction], scores: Mapping[str, Score]
) -> list[Section]:
    """The sections, from the answer and the score of each question."""
    questions = examples.questions
    scored = [scores[question.id] for question in questions]
    words = [
        match[1] if (match := QUESTION_WORD.search(q.text.lower())) else "other" for q in questions
    ]
    sections = list[Section]()
    if words.count("other") < (1 - LEAST_KNOWN_SHARE) * len(words):
        common = [word for word, _ in Counter(words).most_common()]
        sections.append(by_group("By question word", common, words, scored))
    has_words = separates_words(examples.paragraphs)
    unit, limits = ("words", WORDS) if has_words else ("characters", CHARACTERS)
    lengths = [length_of(question, has_words) for question in questions]
    groups = [NO_ANSWER if length is None else group_of(length, limits) for length in lengths]
    in_order = [group_of(length, limits) for length in (*limits, limits[-1] + 1)]
    title = f"By length of the answer, in {unit}"
    sections.append(by_group(title, in_order, groups, scored))
    rows = [*zip(questions, predictions, scored, strict=True)]
    mistakes = [row for row in rows if not row[2].exact]
    wrong = [row for row in mistakes if row[2].f1 == 0]
    wrong.sort(key=lambda row: -row[1].probability)
    part = [row for row in mistakes if row[2].f1 > 0]
    part.sort(key=lambda row: row[2].f1)
    in_all = of_all(len(mistakes), len(rows))
    columns = ["question", "context", "predicted", "answer", "probability"]
    shown = [row_of(examples, *row) for row in wrong[:MOST_ROWS]]
    note = f"{in_all}. No word in common with an answer (green)"
    sections.append(table("Wrong, the surest first", note, columns, shown))
    shown = [[*row_of(examples, *row), f"{row[2].f1:.2f}"] for row in part[:MOST_ROWS]]
    note = "some words in common with an answer (green)"
    sections.append(table("Partly right, the lowest F1 first", note, [*columns, "F1"], shown))
    return sections


def length_of(question: Question, has_words: bool) -> int | None:
    """Of the first answer, in words or, in texts without blanks between them, in characters."""
    if not question.answers:
        return None
    text = question.answers[0][0]
    return len(text.split() if has_words else text)


def group_of(length: int, limits: Sequence[int]) -> str:
    """Its name, such as "3 to 4"."""
    least = 1
    for most in limits:
        if length <= most:
            return str(most) if least == most else f"{least} to {most}"
        least = most + 1
    return f"{least} or more"


def by_group(
    title: str, names: Sequence[str], groups: Sequence[str], scores: Sequence[Score]
) -> Section:
    """A table of the mean scores, in percent, of the questions in each group."""
    members: dict[str, list[Score]] = {name: [] for name in names}
    for group, score in zip(groups, scores, strict=True):
        members.setdefault(group, []).append(score)
    rows = [
        [
            name,
            len(own),
            *(f"{100 * sum(values) / len(own):.2f}" for values in zip(*own, strict=True)),
        ]
        for name, own in members.items()
        if own
    ]
    return table(title, "", ["", "questions", "EM", "F1"], rows)


def shortened(answer: str) -> str:
    if len(answer) > LONGEST_ANSWER:
        return answer[:LONGEST_ANSWER] + "…"
    return answer or "(no answer)"


def row_of(
    examples: Examples, question: Question, prediction: Prediction, score: Score
) -> list[object]:
    context = examples.paragraphs[question.paragraph]
    answer = question.answers[0][0] if question.answers else ""
    marks = (
        [(context.find(answer), context.find(answer) + len(answer), "answer")]
        if answer in context
        else []
    )
    if prediction.text and context.startswith(prediction.text, prediction.start):
        marks.append((prediction.start, prediction.start + len(prediction.text), "predicted"))
    shown = [marked(question.text), marked(context, [mark for mark in marks if mark[0] < mark[1]])]
    return [
        *shown,
        shortened(prediction.text),
        shortened(answer),
        f"{prediction.probability:.3f}",
    ]
