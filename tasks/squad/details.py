"""What the report shows of answered questions: scores by question word and answer length, and
answers in their contexts."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tasks.runs.details import Section, marked, table
from tasks.squad.answers import Prediction
from tasks.squad.metrics import Score, percent, separates_words
from tasks.squad.reading import Examples, Question

QUESTION_WORD = re.compile(r"\b(what|which|who|whose|whom|when|where|why|how)\b")
OTHER, NO_ANSWER = "other", "no answer"
LEAST_KNOWN_SHARE = 0.5  # of questions with such a word, else they are in another language
WORDS = {1: "1 word", 2: "2 words", 4: "3 to 4", 8: "5 to 8", 10**9: "9 or more"}
# of texts without blanks between words
CHARACTERS = {2: "1 or 2 characters", 4: "3 to 4", 8: "5 to 8", 16: "9 to 16", 10**9: "17 or more"}


def details(examples: Examples, scores: Mapping[str, Score]) -> list[Section]:
    """The sections, from the score of each question."""
    questions = examples.questions
    scored = [scores[question.id] for question in questions]
    question_words = [*map(question_word, questions)]
    counts = Counter(question_words)
    sections = []
    if counts[OTHER] < (1 - LEAST_KNOWN_SHARE) * len(questions):
        common = [word for word, _ in counts.most_common()]
        sections.append(by_group("By question word", common, question_words, scored))
    groups = WORDS if separates_words(examples.paragraphs) else CHARACTERS
    lengths = [length_of(question, groups) for question in questions]
    names = [*groups.values(), NO_ANSWER]
    sections.append(by_group("By length of the answer", names, lengths, scored))
    return sections


def question_word(question: Question) -> str:
    match = QUESTION_WORD.search(question.text.lower())
    return match[1] if match else OTHER


def length_of(question: Question, groups: Mapping[int, str]) -> str:
    """The group of a question by its first answer's number of words, or of characters."""
    if not question.answers:
        return NO_ANSWER
    text = question.answers[0][0]
    number = len(text.split() if groups is WORDS else text)
    return next(name for most, name in groups.items() if number <= most)


def by_group(
    title: str, names: Iterable[str], groups: Sequence[str], scores: Sequence[Score]
) -> Section:
    """A table of the mean scores, in percent, of the questions in each of the groups `names`."""
    rows = []
    for name in names:
        of_group = [score for group, score in zip(groups, scores, strict=True) if group == name]
        if of_group:
            exact, f1 = percent(of_group, len(of_group))
            rows.append([name, len(of_group), f"{exact:.2f}", f"{f1:.2f}"])
    return table(title, "", ["", "questions", "EM", "F1"], rows)


def marked_context(context: str, question: Question, prediction: Prediction) -> Section:
    """A context with the true answer and the predicted one."""
    marks = []
    answers = [(text, context.find(text), "answer") for text, _ in question.answers[:1]]
    for text, start, name in (*answers, (prediction.text, prediction.start, "predicted")):
        if text and context.startswith(text, start):
            marks.append((start, start + len(text), name))
    return marked(context, marks)
