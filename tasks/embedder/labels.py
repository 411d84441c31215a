"""Pairs to train on from labels: of pairs of texts, such as those of NLI, or of texts alone, whose
class they name."""

from collections import Counter
from collections.abc import Mapping, Sequence

from distributed.order import Order
from ringbase.errors import InputError

# what a label of a pair says of its second text
RIGHT = "entailment", "duplicate", "equivalent", "true", "1"
WRONG = "contradiction", "not_duplicate", "not_equivalent", "false", "0"
NEITHER = "neutral", "-", "-1"  # the last two of pairs on which annotators did not agree
KINDS: Mapping[str, str] = {
    **dict.fromkeys(RIGHT, "right"),
    **dict.fromkeys(WRONG, "wrong"),
    **dict.fromkeys(NEITHER, "neither"),
}

Row = tuple[str, ...]


def kind_of(label: str, where: str) -> str:
    """Whether a label says that a pair is "right", "wrong" or "neither". Raises InputError."""
    kind = KINDS.get(label.lower())
    if kind is None:
        raise InputError(
            f"{where}: the label of a pair must be one of {', '.join(KINDS)}, got {label!r:.80}"
            " (numbers of other labels have no order that all data sets share: give names)"
        )
    return kind


def rows_of_judged(found: Sequence[tuple[str, str, str]], counts: Counter[str]) -> list[Row]:
    """The rows of pairs and their kinds: an anchor with a right text, and all of its wrong ones as
    hard negatives."""
    texts_of: dict[str, dict[str, list[str]]] = {}
    for anchor, text, kind in found:
        counts["pairs whose label says neither left out"] += kind == "neither"
        texts_of.setdefault(anchor, {}).setdefault(kind, []).append(text)
    rows = []
    for anchor, texts in texts_of.items():
        right, wrong = texts.get("right", []), texts.get("wrong", [])
        counts["anchors without a right text left out"] += not right
        rows += [(anchor, text, *wrong) for text in right]
    return rows


def rows_of_classes(
    found: Sequence[tuple[str, str]], counts: Counter[str]
) -> tuple[list[Row], list[str]]:
    """The rows of texts and their labels, and the label of each row: every text with another of its
    class, and each once as that; the choice is the same for the same data."""
    texts_of: dict[str, dict[str, None]] = {}
    for text, label in found:
        of_class = texts_of.setdefault(label, {})
        counts["texts that their class has already left out"] += text in of_class
        of_class[text] = None
    partners: dict[tuple[str, str], str] = {}
    for label, of_class in texts_of.items():
        texts = [*of_class]
        if len(texts) < 2:
            counts["texts alone in their class left out"] += 1
            continue
        circle = [texts[place] for place in Order(len(texts), 0).rows_at(0, len(texts))]
        for text, other in zip(circle, [*circle[1:], circle[0]], strict=True):
            partners[text, label] = other
    keys = [key for key in dict.fromkeys(found) if key in partners]
    return [(text, partners[text, label]) for text, label in keys], [label for _, label in keys]
