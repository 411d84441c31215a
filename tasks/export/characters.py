"""What BERT's normalization and splitting into words make of each character, as arrays.

Both look at one character at a time. So a table of all characters says the same as the tokenizer, and can be part
of a graph. No TensorFlow here.
"""

import json
import sys
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ringbase.ragged import offsets_of

if TYPE_CHECKING:
    from bert.text.tokenizer import Tokenizer

SPACE = 32
MARK = "☃"  # a symbol that nothing else becomes, and before which no character moves
LETTER = "x"
CONTINUATION = "##"
SURROGATES = range(0xD800, 0xE000)  # no characters, so no text in UTF-8 has them
STEPS = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer", "model": "WordPiece"}


@dataclass(frozen=True)
class Characters:
    """What each character becomes: no characters, or some, with a space where words end.

    The character with number c becomes `values[offsets[c] : offsets[c + 1]]`, both int32.
    """

    values: np.ndarray
    offsets: np.ndarray


def why_not(tokenizer: "Tokenizer") -> str:
    """Why a table of characters does not say what this tokenizer does; "" if it does."""
    if tokenizer.kind != "wordpiece":
        return "its tokenizer is a SentencePiece model"
    settings = json.loads(tokenizer.backend.to_str())
    for step, kind in STEPS.items():
        found = (settings[step] or {}).get("type")
        if found != kind:
            return f"the {step} of its tokenizer is {found}, not BERT's"
    if settings["model"]["continuing_subword_prefix"] != CONTINUATION:
        return f"pieces that continue a word begin with {settings['model']['continuing_subword_prefix']!r}"
    if any(not token["special"] for token in settings["added_tokens"]):
        return "its tokenizer has added tokens, which are found before the text is split into words"
    if unordered := [piece for piece in vocabulary(tokenizer) if any(_moves(character) for character in piece)]:
        return f"the order of combining characters matters for {unordered[0]!r} of its vocabulary"
    return ""


def _moves(character: str) -> bool:
    """Whether normalization may move a character among others, and does not remove it as an accent."""
    return unicodedata.combining(character) > 0 and unicodedata.category(character) != "Mn"


def vocabulary(tokenizer: "Tokenizer") -> dict[str, int]:
    """Piece -> id, of a WordPiece tokenizer."""
    return tokenizer.backend.get_vocab(with_added_tokens=False)


def table_of(tokenizer: "Tokenizer") -> Characters:
    """The table of a tokenizer for which `why_not` says nothing."""
    normal = _normalized(tokenizer.backend.normalizer)
    kinds = _kinds(tokenizer.backend.pre_tokenizer, sorted(set().union(*normal)))
    shown = {
        character: {"space": " ", "mark": f" {character} "}.get(kind, character)
        for character, kind in kinds.items()
    }
    texts = ["".join(shown[character] for character in text) for text in normal]
    values = np.frombuffer("".join(texts).encode("utf-32-le"), np.int32)
    return Characters(values, offsets_of(np.array([len(text) for text in texts])).astype(np.int32))


def _normalized(normalizer: Any) -> list[str]:
    """What the normalizer makes of each character alone."""
    characters = [chr(c) for c in range(sys.maxunicode + 1) if c not in SURROGATES and chr(c) != MARK]
    normal = normalizer.normalize_str(MARK.join(characters)).split(MARK)
    assert len(normal) == len(characters), "a character becomes the mark"
    by_character = dict(zip(characters, normal, strict=True)) | {MARK: normalizer.normalize_str(MARK)}
    return [by_character.get(chr(c), "") for c in range(sys.maxunicode + 1)]


def _kinds(pre_tokenizer: Any, characters: list[str]) -> dict[str, str]:
    """Whether each character separates words ("space"), is a word ("mark") or is part of a word ("letter")."""
    text = LETTER + LETTER.join(characters) + LETTER
    lengths = np.zeros(len(text), np.int64)  # of the word that holds each character
    for word, (start, end) in pre_tokenizer.pre_tokenize_str(text):
        assert len(word) == end - start
        lengths[start:end] = end - start
    names = np.array(["letter", "space", "mark"])
    inside = lengths[1::2]
    kinds = names[np.where(inside == 0, 1, np.where(inside == 1, 2, 0))]
    return dict(zip(characters, kinds.tolist(), strict=True))
