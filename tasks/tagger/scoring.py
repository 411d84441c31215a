"""Entities, or words with plain tags; their scores by the rules of conlleval and seqeval, and what
the report shows of them."""

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ringbase.errors import InputError
from tasks.runs.details import (
    MOST_LABELS,
    MOST_ROWS,
    NONE,
    Details,
    figures,
    marked,
    matrix,
    of_all,
    table,
    table_of_figures,
)
from tasks.tagger.decoder import Tagged
from tasks.tagger.reading import Sentence, Sentences, goes_on, is_plain, parted, text_of

Span = tuple[str, int, int]  # the type, the first and the last word of an entity


@dataclass(frozen=True, slots=True)
class Entity:
    """The characters `[start:end]` of a text. The probability is the lowest of its words' tags.

    >>> Entity("Ada", "PER", 0, 3, 0.9).label
    'PER'
    """

    text: str
    label: str
    start: int
    end: int
    probability: float


def spans(tags: Sequence[str]) -> Iterator[Span]:
    """The entities of a sentence: type, first and last word. Each tag that does not go on with one
    and is not O begins one (conlleval.pl of the CoNLL shared tasks; for E- and S- seqeval). A word
    with a plain tag is one."""
    first = 0
    for place, (tag, after) in enumerate(itertools.pairwise([*tags, "O"])):
        if not goes_on(tag, after):
            if tag != "O":
                yield parted(tag)[1], first, place
            first = place + 1


def entities(
    text: str, words: Sequence[str], starts: Sequence[int], tagged: Tagged
) -> list[Entity]:
    """The entities of a text with these words, which start at these characters."""
    found = []
    for label, first, last in spans(tagged.tags):
        start = starts[first]
        end = starts[last] + len(words[last])
        found.append(Entity(text[start:end], label, start, end, tagged.share(first, last)))
    return found


def sureness_of_mistake(true: Sequence[str], tagged: Tagged) -> float | None:
    """How sure the model was of the entities that only one side has: the highest of the lowest
    probabilities of their words' tags. None if the entities are the same."""
    wrong = set(spans(true)) ^ set(spans(tagged.tags))
    return max((tagged.share(first, last) for _, first, last in wrong), default=None)


class Comparison:
    """The entities of sentences and those that were found: counts by type."""

    def __init__(self, sentences: Sentences, found: Sequence[Tagged]):
        self.true = [set(spans(sentence.tags or ())) for sentence in sentences]
        self.found = [set(spans(tagged.tags)) for tagged in found]
        num_true = _types(self.true)
        num_found = _types(self.found)
        num_right = _types(map(set.intersection, self.true, self.found))
        self.by_type = {}
        for label in sorted(num_true | num_found):
            self.by_type[label] = figures(num_true[label], num_found[label], num_right[label])
        self.all = figures(num_true.total(), num_found.total(), num_right.total())


def _types(entities: Iterable[set[Span]]) -> Counter[str]:
    """How many entities of each type sentences have."""
    return Counter(label for each in entities for label, _, _ in each)


def measure(
    kind: str,
    labels: Sequence[str],
    characters: bool,
    sentences: Sentences,
    found: Sequence[Tagged],
    losses: np.ndarray,
) -> dict[str, float]:
    """F1, precision and recall of the entities, the mean F1 of the types, the share of right tags,
    and the mean of `losses`, those of words. For characters the mean F1 of their tags (KLUE's
    `char_macro_f1`); with documents the mean of their F1. Of plain tags the mean F1, the share of
    right ones and the loss."""
    if not len(losses):
        raise InputError(f"no word of the {kind} set has a token: there is nothing to score")
    comparison = Comparison(sentences, found)
    scores = {name: comparison.all[name] for name in ("f1", "precision", "recall")}
    f1_of_types = [of_type["f1"] for of_type in comparison.by_type.values()]
    scores["macro_f1"] = statistics.fmean(f1_of_types or [0.0])
    true_tags = [tag for sentence in sentences for tag in sentence.tags or ()]
    found_tags = [tag for tagged in found for tag in tagged.tags]
    scores["accuracy"] = statistics.fmean(map(str.__eq__, true_tags, found_tags))
    if characters:
        from sklearn.metrics import f1_score  # a second to import

        scores["char_macro_f1"] = f1_score(
            true_tags, found_tags, labels=[*labels], average="macro", zero_division=1.0
        )
    pairs = zip(sentences, found, strict=True)
    f1_of_documents = []
    for _, document in itertools.groupby(pairs, lambda pair: pair[0].document):
        of_document = Comparison(*zip(*document, strict=True))
        f1_of_documents.append(of_document.all["f1"])
    if len(f1_of_documents) > 1:
        scores["document_f1"] = statistics.fmean(f1_of_documents)
    scores["loss"] = np.mean(losses)
    if is_plain(labels):
        scores = {name: scores[name] for name in ("accuracy", "macro_f1", "loss")}
    return {f"{kind}_{name}": float(value) for name, value in scores.items()}


def details(
    characters: bool, labels: Sequence[str], sentences: Sentences, found: Sequence[Tagged]
) -> Details:
    """The figures of each type, or plain tag; for the page also the confused ones, and the
    sentences with the most wrong entities."""
    comparison = Comparison(sentences, found)
    counts = Counter[tuple[str, str]]()
    for sentence, tagged in zip(sentences, found, strict=True):
        for true, tag in zip(sentence.tags or (), tagged.tags, strict=True):
            _, true_type = parted(true)
            _, type_found = parted(tag)
            counts[true_type or "O", type_found or "O"] += 1
    types = [*comparison.by_type]
    if "O" in labels:
        types.insert(0, "O")
    types = types[:MOST_LABELS]
    confusion = [[counts[true_type, type_found] for type_found in types] for true_type in types]
    pairs = zip(comparison.true, comparison.found, strict=True)
    num_errors = [len(true_spans ^ found_spans) for true_spans, found_spans in pairs]
    wrong = [number for number, count in enumerate(num_errors) if count]
    wrong.sort(key=lambda number: -num_errors[number])
    rows = [_row(characters, sentences[number], found[number]) for number in wrong[:MOST_ROWS]]
    kind, counted = "type", "entities"
    if is_plain(labels):
        kind, counted = "tag", "words"
    about = f"a row for the true {kind} of each word, a column for the predicted one"
    colors = f"true {counted} are green, predicted ones red, both where they agree"
    note = f"{of_all(len(wrong), len(num_errors))}. {colors}"
    sections = [
        table_of_figures(f"{kind}s".title(), "", (kind, counted), comparison.by_type),
        matrix("Confusion", about, types, confusion),
        table("Most wrong", note, ["text", "true", "predicted"], rows),
    ]
    return Details({f"eval_{kind}s": comparison.by_type}, sections)


def _row(characters: bool, sentence: Sentence, tagged: Tagged) -> list:
    """The cells of a sentence: its text with marks, the true entities, the predicted ones."""
    text, starts = text_of(sentence.words, characters)
    marks, cells = [], []
    true, predicted = sentence.tags or (), tagged.tags
    for color, tags, others in (("answer", true, predicted), ("predicted", predicted, true)):
        if is_plain(tags):  # of all words only the wrong ones
            tags = ["O" if tag == other else tag for tag, other in zip(tags, others, strict=True)]
        names = []
        for entity in entities(text, sentence.words, starts, Tagged(tags, tagged.shares)):
            marks.append((entity.start, entity.end, color))
            names.append(f"{entity.text} ({entity.label})")
        cells.append(", ".join(names) or NONE)
    return [marked(text, marks), *cells]
