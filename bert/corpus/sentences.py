"""Lines of text -> documents of sentences."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Literal

MOST_DOCUMENT_BYTES = 1 << 20  # a longer document is cut there: what is held in memory stays bounded
# A line of hard-wrapped prose is shorter than this only where its paragraph ends, or in headings and verse.
SHORT_LINE = 40

Separator = Literal["blank", "blanks", "file"]


def gather_documents(blocks: Iterable[list[str]], separator: Separator, running: bool) -> Iterator[list[str]]:
    """Lines, in blocks, -> documents; `running`: their lines are running text, to be cut into sentences."""
    needed = {"blank": 1, "blanks": 2, "file": 1 << 62}[separator]
    found: list[str] = []
    paragraph: list[str] = []
    size = blanks = 0
    for line in itertools.chain.from_iterable(blocks):
        line = line.strip()
        if line:
            blanks = 0
            size += len(line)
            (paragraph if running else found).append(line)
            if size < MOST_DOCUMENT_BYTES:
                if running and len(line) < SHORT_LINE:
                    found += split_sentences(" ".join(paragraph))
                    paragraph = []
                continue
        else:
            blanks += 1
        if paragraph:
            found += split_sentences(" ".join(paragraph))
            paragraph = []
        if found and (blanks >= needed or size >= MOST_DOCUMENT_BYTES):
            yield found
            found, size = [], 0
    if paragraph:
        found += split_sentences(" ".join(paragraph))
    if found:
        yield found


# The end of a sentence: marks, closing quotes and brackets, white space. After the full-width marks of Chinese and
# Japanese none is needed.
_CLOSING = r"[\"'”’»)\]_]*"
_END = re.compile(rf"[.!?…]+{_CLOSING}\s+|[。！？]+[”’」』）]*\s*")
_OPENING = "\"'“‘«([_-—"
_ABBREVIATIONS = frozenset(
    re.findall(
        r"\S+",
        "mr mrs ms dr st messrs mme mlle prof rev hon capt col gen lt sgt esq jr sr vs etc e.g i.e cf no nos vol"
        " viz fig inc ltd co corp jan feb mar apr jun jul aug sep sept oct nov dec u.s u.k a.m p.m ph.d",
    )
)


def split_sentences(text: str) -> list[str]:
    """Cuts running text after `.`, `!`, `?` or `…` (closing quotes included) and white space, and after `。！？`.

    Not where the next word starts with a small letter, and not at a full stop after an abbreviation of a short
    English list or after a single capital letter (an initial).
    """
    found, start = [], 0
    for match in _END.finditer(text):
        stop = match.end()
        following = text[stop : stop + 4].lstrip(_OPENING)[:1]
        if following.islower():
            continue
        if text[match.start()] == "." and match.end() - match.start() == 2:
            word = text[max(start, text.rfind(" ", 0, match.start()) + 1) : match.start()].lstrip(_OPENING)
            if word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I"):
                continue
        sentence = text[start:stop].strip()
        if sentence:
            found.append(sentence)
        start = stop
    rest = text[start:].strip()
    if rest:
        found.append(rest)
    return found
