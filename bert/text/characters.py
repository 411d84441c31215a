"""Characters as people see them, and words, in any script (Unicode Standard Annex #29)."""

import regex

# A letter with its accents or vowel signs, a Hangul syllable, an emoji sequence. Two letters make a
# flag; whoever starts at the second one must not take the next flag's first.
_CHARACTER = regex.compile(r"\X")
_REST_OF_CHARACTER = regex.compile(r"[\U0001f1e6-\U0001f1ff]|\X")
# A run of letters, marks and numbers does not end at a soft hyphen (U+00AD), at the joiners inside
# Persian and Indic words (U+200C, U+200D) or at U+2060. Blanks and other characters without a width
# belong to no word.
_RUN = r"[\p{L}\p{M}\p{N}\u00ad\u200c\u200d\u2060]+"
# What joins two runs, as the words of CoNLL-2003 and of tagged tweets have it: Jean-Luc, AT&T,
# ada_l, a@b.org, O'Neill, example.com, 4.5 and 1,000; but not Ada's, nor two sentences without a
# blank.
_JOINS = (
    r"[-_&@](?=[\p{L}\p{N}])",
    r"(?<=\p{Lu})['\u2019](?=\p{Lu})",
    r"(?<=[\p{L}\p{N}])\.(?=[\p{Ll}\p{N}])",
    r"(?<=\p{N})[,:](?=\p{N})",
)
_WORDS = (
    r"https?://\S*[\p{L}\p{N}/]",
    r"(?:\p{L}\p{M}*\.){2,}",  # U.S. and e.g.
    rf"(?:(?<![\p{{L}}\p{{N}}])[@#])?{_RUN}(?:(?:{'|'.join(_JOINS)}){_RUN})*",
    r"(?<=\p{L})['\u2019](?:s|m|d|ll|re|ve)\b",  # behind Ada in Ada's
    r"([-.!?])\1+",  # an ellipsis, a dash
    r"(?![\s\p{Cc}\p{Cf}])\X",
)
_WORD = regex.compile("|".join(_WORDS))

# Scripts whose words have no blanks between them: Thai, Lao, Burmese, Khmer, kana and ideographs,
# with their punctuation; no vowel signs, which belong to the letter before.
_WITHOUT_BLANKS = regex.compile(
    r"(?!\p{M})[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    r"\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)

Span = tuple[int, int]


def word_spans(text: str) -> list[Span]:
    """The start and end of each word, and of each other visible character.

    A word is a run of letters, marks and numbers, or several that are joined as in U.S., O'Neill,
    AT&T, Jean-Luc, @ada_l and 4.5.
    """
    return [match.span() for match in _WORD.finditer(text)]


def character_starts(text: str) -> set[int]:
    """The places at which a character begins; at the others stand accents, vowel signs and the
    like."""
    return {match.start() for match in _CHARACTER.finditer(text)}


def end_of_character(text: str, end: int) -> int:
    """The end of the character that `text[end - 1]` belongs to: `end`, or a place behind more of
    its marks."""
    return _REST_OF_CHARACTER.match(text, end - 1).end()


def begins_without_blank(text: str) -> bool:
    """Whether the text begins with a letter, or a mark, of a script whose words have no blanks
    between them."""
    return _WITHOUT_BLANKS.match(text) is not None
