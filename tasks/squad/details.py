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
WORDS = {1: "1 word", 2: "2 words", 4: "3 to 4", 8: "5 to 8", 10**9: "9 or more"}
# of texts without blanks between words
CHARACTERS = {2: "1 or 2 characters", 4: "3 to 4", 8: "5 to 8", 16: "9 to 16", 10**9: "17 or more"}


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
    groups = WORDS if separates_words(examples.paragraphs) else CHARACTERS
    lengths = [length_of(question, groups) for question in questions]
    if words.count("other") < (1 - LEAST_KNOWN_SHARE) * len(words):
        common = [word for word, _ in Counter(words).most_common()]
        sections.append(by_group("By question word", common, words, scored))
    sections.append(by_group("By length of the answer", [*groups.values()], lengths, scored))
    rows = [*zip(questions, predictions, scored, strict=True)]
    mistakes = [row for row in rows if not row[2].exact]
    wrong = [row for row in mistakes if row[2].f1 == 0]
    wrong.sort(key=lambda row: -row[1].probability)
    part = [row for row in mistakes if row[2].f1 > 0]
    part.sort(key=lambda row: row[2].f1)
    in_all = of_all(len(mistakes), len(rows))
    columns = ["question", "context", "predicted", "answer", "probability", "F1"]
    for title, note, kept in (
        ("Wrong, the surest first", f"{in_all}. No word in common with an answer (green)", wrong),
        ("Partly right, the lowest F1 first", "some words in common with an answer (green)", part),
    ):
        shown = [row_of(examples, *row) for row in kept[:MOST_ROWS]]
        sections.append(table(title, note, columns, shown))
    return sections


def length_of(question: Question, groups: Mapping[int, str]) -> str:
    """The group of a question by its first answer's number of words, or of characters."""
    if not question.answers:
        return "no answer"
    text = question.answers[0][0]
    number = len(text.split() if groups is WORDS else text)
    return next(name for most, name in groups.items() if number <= most)


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
    none = "(no answer)"
    return [
        *shown,
        prediction.text or none,
        answer or none,
        f"{prediction.probability:.3f}",
        f"{score.f1:.2f}",
    ]
