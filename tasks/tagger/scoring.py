"""Entities, their scores by the rules of conlleval and seqeval, and what the report shows of
them."""

import itertools
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringbase.errors import InputError
from tasks.details import (
    MOST_LABELS,
    MOST_ROWS,
    REPORT,
    figures,
    marked,
    matrix,
    table,
    table_of_figures,
)
from tasks.tagger.reading import Sentence, goes_on, text_of
from tasks.tagger.task import Tags


@dataclass(frozen=True, slots=True)
class Entity:
    """The characters `[start:end]` of a text. The probability is the lowest of its words' tags."""

    text: str
    label: str
    start: int
    end: int
    probability: float


def spans(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """The entities of a sentence: type, first and last word. Each tag that does not go on with one
    and is not O begins one (conlleval.pl of the CoNLL shared tasks; for E- and S- seqeval)."""
    first = 0
    for place, (tag, after) in enumerate(itertools.pairwise([*tags, "O"])):
        if not goes_on(tag, after):
            if tag != "O":
                yield tag[2:], first, place
            first = place + 1


def entities(text: str, words: Sequence[str], starts: Sequence[int], tags: Tags) -> list[Entity]:
    """The entities of a text with these words, which start at these characters."""
    found = []
    for label, first, last in spans(tags[0]):
        start, end = starts[first], starts[last] + len(words[last])
        found.append(Entity(text[start:end], label, start, end, min(tags[1][first : last + 1])))
    return found


class Comparison:
    """The entities of sentences and those that were found: counts by type."""

    def __init__(self, sentences: Sequence[Sentence], found: Sequence[Tags]):
        self.true = [set(spans(each.tags or ())) for each in sentences]
        self.found = [set(spans(tags)) for tags, _ in found]
        parts = self.true, self.found, [a & b for a, b in zip(self.true, self.found, strict=True)]
        counts = [Counter(label for each in part for label, _, _ in each) for part in parts]
        labels = sorted(counts[0] | counts[1])
        self.by_type = {label: figures(*(count[label] for count in counts)) for label in labels}
        self.all = figures(*(count.total() for count in counts))


def measure(
    kind: str,
    labels: Sequence[str],
    characters: bool,
    sentences: Sequence[Sentence],
    found: Sequence[Tags],
    losses: Sequence[np.ndarray],
) -> dict[str, float]:
    """F1, precision and recall of the entities, the mean F1 of the types, and the share of right
    tags. For characters the mean F1 of their tags (KLUE's `char_macro_f1`); with documents the mean
    of their F1."""
    comparison = Comparison(sentences, found)
    scores = {name: comparison.all[name] for name in ("f1", "precision", "recall")}
    scores["macro_f1"] = statistics.fmean(
        [each["f1"] for each in comparison.by_type.values()] or [0.0]
    )
    tags = (
        [tag for each in sentences for tag in each.tags or ()],
        [tag for tags, _ in found for tag in tags],
    )
    scores["accuracy"] = statistics.fmean(map(str.__eq__, *tags))
    if characters:
        from sklearn.metrics import f1_score  # a second to import

        scores["char_macro_f1"] = f1_score(
            *tags, labels=list(labels), average="macro", zero_division=1.0
        )
    pairs = zip(sentences, found, strict=True)
    documents = [
        [*zip(*part, strict=True)]
        for _, part in itertools.groupby(pairs, lambda pair: pair[0].document)
    ]
    if len(documents) > 1:
        scores["document_f1"] = statistics.fmean(
            [Comparison(*document).all["f1"] for document in documents]
        )
    losses_of_words = np.concatenate(losses)
    if not len(losses_of_words):
        raise InputError(f"no word of the {kind} set has a token: there is nothing to score")
    scores["loss"] = np.mean(losses_of_words)
    return {f"{kind}_{name}": float(value) for name, value in scores.items()}


def details(
    characters: bool, sentences: Sequence[Sentence], found: Sequence[Tags]
) -> dict[str, Any]:
    """For result.json: the figures of each type; and for the report these, the confused types, and
    the sentences with the most wrong entities."""
    comparison = Comparison(sentences, found)
    types = ["O", *comparison.by_type][:MOST_LABELS]
    counts = Counter[tuple[str, str]]()
    for each, (tags, _) in zip(sentences, found, strict=True):
        counts.update(
            (a[2:] or "O", b[2:] or "O") for a, b in zip(each.tags or (), tags, strict=True)
        )
    errors = [len(a ^ b) for a, b in zip(comparison.true, comparison.found, strict=True)]
    worst = sorted(
        filter(errors.__getitem__, range(len(errors))), key=lambda number: -errors[number]
    )
    rows = []
    for number in worst[:MOST_ROWS]:
        each, (tags, shares) = sentences[number], found[number]
        text, starts = text_of(each.words, characters)
        both = [
            entities(text, each.words, starts, (own, shares)) for own in (each.tags or (), tags)
        ]
        kinds = zip(("answer", "predicted"), both, strict=True)
        marks = [(entity.start, entity.end, kind) for kind, part in kinds for entity in part]
        rows.append(
            [
                marked(text, marks),
                *(", ".join(f"{e.text} ({e.label})" for e in part) for part in both),
            ]
        )
    note = "true entities are green, predicted ones red, both where they agree"
    return {
        "eval_types": comparison.by_type,
        REPORT: [
            table_of_figures("Types", "", ("type", "entities"), comparison.by_type),
            matrix(
                "Confusion",
                "a row for the true type of each word, a column for the predicted one",
                types,
                [[counts[one, other] for other in types] for one in types],
            ),
            table("Most wrong", note, ["text", "true", "predicted"], rows),
        ],
    }
