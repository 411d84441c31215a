"""Characters as people see them, and words, in any script (Unicode Standard Annex #29)."""

import regex

# A letter with its accents or vowel signs, a Hangul syllable, an emoji sequence. Two letters make a
# flag; whoever starts at the second one must not take the next flag's first.
_CHARACTER = regex.compile(r"\X")
_REST_OF_CHARACTER = regex.compile(r"[\U0001f1e6-\U0001f1ff]|\X")
# A word does not end at a soft hyphen (U+00AD), at the joiners inside Persian and Indic words
# (U+200C, U+200D) or at U+2060. Blanks and other characters without a width belong to no word.
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}\u00ad\u200c\u200d\u2060]+|(?![\s\p{Cc}\p{Cf}])\X")

Span = tuple[int, int]


def word_spans(text: str) -> list[Span]:
    """The start and end of each run of letters, marks and numbers, and of each other visible
    character."""
    return [match.span() for match in _WORD.finditer(text)]


def character_starts(text: str) -> set[int]:
    """The places at which a character begins; at the others stand accents, vowel signs and the
    like."""
    return {match.start() for match in _CHARACTER.finditer(text)}


def end_of_character(text: str, end: int) -> int:
    """The end of the character that `text[end - 1]` belongs to: `end`, or a place behind more of
    its marks."""
    return _REST_OF_CHARACTER.match(text, end - 1).end()
