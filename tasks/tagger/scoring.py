"""Entities, or words with plain tags; their scores by the rules of conlleval and seqeval, and what
the report shows of them."""

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ringbase.errors import InputError
from ringbase.results import Result
from tasks.runs.details import (
    MOST_LABELS,
    Details,
    figures,
    marked,
    matrix,
    table_of_figures,
)
from tasks.tagger.decoder import Tagged
from tasks.tagger.reading import Sentences, goes_on, is_plain, parted

Span = tuple[str, int, int]  # the type, the first and the last word of an entity


@dataclass(frozen=True, slots=True)
class Entity(Result):
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


def details(labels: Sequence[str], sentences: Sentences, found: Sequence[Tagged]) -> Details:
    """The figures of each type, or plain tag; for the page also the confused ones."""
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
    kind, counted = "type", "entities"
    if is_plain(labels):
        kind, counted = "tag", "words"
    about = f"a row for the true {kind} of each word, a column for the predicted one"
    sections = [
        table_of_figures(f"{kind}s".title(), "", (kind, counted), comparison.by_type),
        matrix("Confusion", about, types, confusion),
    ]
    return Details({f"eval_{kind}s": comparison.by_type}, sections)


def shown(text: str, true: Sequence[Entity], found: Sequence[Entity]) -> dict:
    """What the page shows of a sentence: its text, and the entities that only one side has."""
    cells = {}
    marks = []
    for column, color, some, others in (
        ("true", "answer", true, found),
        ("predicted", "predicted", found, true),
    ):
        names = []
        for entity in some:
            if entity not in others:
                marks.append((entity.start, entity.end, color))
                names.append(f"{entity.text} ({entity.label})")
        cells[column] = names
    return {"text": marked(text, marks), **cells}
