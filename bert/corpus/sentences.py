"""Lines of text -> documents of sentences."""

import re
from collections.abc import Iterable, Iterator
from typing import Literal

MOST_DOCUMENT_BYTES = 1 << 20  # longer documents are cut, to limit memory
# In hard-wrapped prose a line of fewer characters ends its paragraph, or is a heading or verse.
SHORT_LINE = 40


def gather_documents(
    lines: Iterable[str], separator: Literal["blank", "blanks", "file"], running: bool
) -> Iterator[list[str]]:
    """Lines -> documents, each a list of sentences.

    With `running`, the lines are running text and are cut into sentences; otherwise each line is a sentence.
    """
    needed = {"blank": 1, "blanks": 2, "file": 1 << 62}[separator]
    document: list[str] = []
    paragraph: list[str] = []
    size = blanks = 0
    for line in lines:
        line = line.strip()
        if line:
            blanks = 0
            size += len(line)
            (paragraph if running else document).append(line)
            if size < MOST_DOCUMENT_BYTES and not (running and len(line) < SHORT_LINE):
                continue
        else:
            blanks += 1
        if paragraph:
            document += split_sentences(" ".join(paragraph))
            paragraph = []
        if document and (blanks >= needed or size >= MOST_DOCUMENT_BYTES):
            yield document
            document, size = [], 0
    if paragraph:
        document += split_sentences(" ".join(paragraph))
    if document:
        yield document


# The end of a sentence: punctuation, closing quotes or brackets, white space. Full-width punctuation (Chinese and
# Japanese) needs no white space.
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
    """Cuts running text into sentences: after `.`, `!`, `?` or `…` before white space, and after `。！？`.

    There is no cut before a lower-case letter, or at a full stop after a common English abbreviation or a single
    capital letter (an initial).
    """
    sentences, start = [], 0
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
            sentences.append(sentence)
        start = stop
    rest = text[start:].strip()
    if rest:
        sentences.append(rest)
    return sentences
