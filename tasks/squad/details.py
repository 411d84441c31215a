"""What the report shows of answered questions: scores by question word and answer length, and wrong
answers."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tasks.runs.details import MOST_ROWS, Section, marked, of_all, table
from tasks.squad.answers import Prediction
from tasks.squad.metrics import Score, percent, separates_words
from tasks.squad.reading import Examples, Question

QUESTION_WORD = re.compile(r"\b(what|which|who|whose|whom|when|where|why|how)\b")
OTHER = "other"
NO_ANSWER = "(no answer)"
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
    question_words = [*map(question_word, questions)]
    sections = []
    if question_words.count(OTHER) < (1 - LEAST_KNOWN_SHARE) * len(questions):
        common = [word for word, _ in Counter(question_words).most_common()]
        sections.append(by_group("By question word", common, question_words, scored))
    groups = WORDS if separates_words(examples.paragraphs) else CHARACTERS
    lengths = [length_of(question, groups) for question in questions]
    sections.append(by_group("By length of the answer", groups.values(), lengths, scored))
    wrong, partly_right = [], []
    for row in zip(questions, predictions, scored, strict=True):
        score = row[2]
        if score.f1 == 0 and not score.exact:
            wrong.append(row)
        elif not score.exact:
            partly_right.append(row)
    wrong.sort(key=lambda row: -row[1].probability)
    partly_right.sort(key=lambda row: row[2].f1)
    in_all = of_all(len(wrong) + len(partly_right), len(questions))
    none_in_common = f"{in_all}. No word in common with an answer (green)"
    some_in_common = "some words in common with an answer (green)"
    columns = ["question", "context", "predicted", "answer", "probability", "F1"]
    for title, note, rows in (
        ("Wrong, the surest first", none_in_common, wrong),
        ("Partly right, the lowest F1 first", some_in_common, partly_right),
    ):
        cells = [row_of(examples, *row) for row in rows[:MOST_ROWS]]
        sections.append(table(title, note, columns, cells))
    return sections


def question_word(question: Question) -> str:
    match = QUESTION_WORD.search(question.text.lower())
    return match[1] if match else OTHER


def length_of(question: Question, groups: Mapping[int, str]) -> str:
    """The group of a question by its first answer's number of words, or of characters."""
    if not question.answers:
        return "no answer"
    text = question.answers[0][0]
    number = len(text.split() if groups is WORDS else text)
    return next(name for most, name in groups.items() if number <= most)


def by_group(
    title: str, names: Iterable[str], groups: Sequence[str], scores: Sequence[Score]
) -> Section:
    """A table of the mean scores, in percent, of the questions in each group; of other groups than
    those of `names` after these."""
    members: dict[str, list[Score]] = {name: [] for name in names}
    for group, score in zip(groups, scores, strict=True):
        members.setdefault(group, []).append(score)
    rows = []
    for name, of_group in members.items():
        if of_group:
            exact, f1 = percent(of_group, len(of_group))
            rows.append([name, len(of_group), f"{exact:.2f}", f"{f1:.2f}"])
    return table(title, "", ["", "questions", "EM", "F1"], rows)


def row_of(examples: Examples, question: Question, prediction: Prediction, score: Score) -> list:
    """The cells of a question."""
    context = examples.paragraphs[question.paragraph]
    answer = question.answers[0][0] if question.answers else ""
    marks = []
    true = answer, context.find(answer), "answer"
    predicted = prediction.text, prediction.start, "predicted"
    for text, start, name in (true, predicted):
        if text and start >= 0 and context.startswith(text, start):
            marks.append((start, start + len(text), name))
    return [
        marked(question.text),
        marked(context, marks),
        prediction.text or NO_ANSWER,
        answer or NO_ANSWER,
        f"{prediction.probability:.3f}",
        f"{score.f1:.2f}",
    ]
