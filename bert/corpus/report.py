"""What a corpus is made of: characters by script, and the lengths of its documents."""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import regex

from ringbase.ragged import Array

# By the names of Unicode (UAX #24). Digits, punctuation and emoji belong to none.
SCRIPTS = (
    "Latin",
    "Greek",
    "Cyrillic",
    "Armenian",
    "Georgian",
    "Hebrew",
    "Arabic",
    "Syriac",
    "Thaana",
    "Devanagari",
    "Bengali",
    "Gurmukhi",
    "Gujarati",
    "Oriya",
    "Tamil",
    "Telugu",
    "Kannada",
    "Malayalam",
    "Sinhala",
    "Thai",
    "Lao",
    "Tibetan",
    "Myanmar",
    "Khmer",
    "Mongolian",
    "Ethiopic",
    "Cherokee",
    "Hangul",
    "Hiragana",
    "Katakana",
    "Han",
)
OTHER = "other characters"
CODE_POINTS = 0x110000
PLANES_OF_HAN = slice(0x20000, 0x40000)
COUNTED_AT_ONCE = 1 << 20  # characters
SHARES = (0.5, 0.9)  # of the documents, whose length is said
FEWEST_SAID = 0.001  # of the characters


@dataclass
class Tally:
    """The counts of a part of a corpus. `lengths` counts documents by the power of two that their
    number of tokens does not exceed."""

    characters: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    longest: int = 0

    def of(self, documents: Iterable[list[str]]) -> Iterator[list[str]]:
        """The same documents, whose characters are counted as they pass by."""
        texts, size = [], 0
        for document in documents:
            text = "".join(document)
            texts.append(text)
            size += len(text)
            if size >= COUNTED_AT_ONCE:
                self._count(texts)
                texts, size = [], 0
            yield document
        self._count(texts)

    def _count(self, texts: list[str]) -> None:
        data = "".join(texts).encode("utf-32-le", "replace")
        numbers = _script_of()[np.frombuffer(data, np.uint32)]
        counts = np.bincount(numbers, minlength=len(SCRIPTS) + 2)
        for name, count in zip((*SCRIPTS, OTHER), counts[:-1].tolist(), strict=True):
            if count:
                self.characters[name] += count

    def add_lengths(self, tokens: Array) -> None:
        """Counts documents with these numbers of tokens, int [n]."""
        powers = np.ceil(np.log2(np.maximum(tokens, 1))).astype(int)
        for power, count in enumerate(np.bincount(powers).tolist()):
            if count:
                self.lengths[1 << power] += count
        self.longest = max(self.longest, int(tokens.max(initial=0)))

    def add(self, other: Mapping[str, Any]) -> None:
        """Adds what `as_json` gave."""
        self.characters.update(other["characters"])
        self.lengths.update({int(most): count for most, count in other["lengths"].items()})
        self.longest = max(self.longest, other["longest"])

    def as_json(self) -> dict[str, Any]:
        return {
            "characters": dict(self.characters.most_common()),
            "lengths": {str(most): self.lengths[most] for most in sorted(self.lengths)},
            "longest": self.longest,
        }


def report_of(tally: Tally, counts: Mapping[str, Any], num_repeated: int, drops: bool) -> dict:
    """The content of report.json: `counts` are those of the manifest."""
    of_corpus = tally.as_json()
    return {
        "documents": counts["documents"],
        "sentences": counts["sentences"],
        "tokens": counts["tokens"],
        "unknown_share": counts["unknown_share"],
        "repeated_documents": num_repeated,
        "repeated_documents_are_dropped": drops,
        "tokens_of_the_longest_document": of_corpus["longest"],
        "documents_of_at_most_so_many_tokens": of_corpus["lengths"],
        "characters_by_script": of_corpus["characters"],
    }


def lines_of(report: Mapping[str, Any]) -> Iterator[str]:
    """The report in words."""
    repeated, number = report["repeated_documents"], report["documents"]
    if report["repeated_documents_are_dropped"]:
        yield f"{repeated:,} documents that repeat an earlier one were left out"
    elif repeated:
        share = repeated / number
        yield (
            f"{repeated:,} documents ({share:.1%}) repeat an earlier one: --deduplicate leaves"
            " them out"
        )
    lengths = report["documents_of_at_most_so_many_tokens"]
    longest = report["tokens_of_the_longest_document"]
    parts = []
    for share in SHARES:
        reached = 0
        for most, count in lengths.items():
            reached += count
            if reached >= share * number:
                parts.append(f"{share:.0%} have at most {min(int(most), longest):,}")
                break
    yield f"tokens of a document: {', '.join(parts)}, the longest has {longest:,}"
    characters = report["characters_by_script"]
    total = sum(characters.values())
    shares = {name: count / total for name, count in characters.items()}
    said = [f"{name} {share:.1%}" for name, share in shares.items() if share >= FEWEST_SAID]
    yield f"characters: {', '.join(said)}"


@functools.cache
def _script_of() -> Array:
    """uint8 [CODE_POINTS]: the number of each character's script; behind the last one stand that of
    other characters and that of blanks."""
    table = np.full(CODE_POINTS, len(SCRIPTS), np.uint8)
    codes = (*range(0xD800), *range(0xE000, PLANES_OF_HAN.start))
    characters = "".join(map(chr, codes))
    places = np.array(codes)
    for number, name in enumerate(SCRIPTS):
        for match in regex.finditer(rf"\p{{Script={name}}}+", characters):
            table[places[slice(*match.span())]] = number
    for match in regex.finditer(r"\s+", characters):
        table[places[slice(*match.span())]] = len(SCRIPTS) + 1
    table[PLANES_OF_HAN] = SCRIPTS.index("Han")
    return table
