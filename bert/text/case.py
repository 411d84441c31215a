"""Checks that lower-casing fits the checkpoint and the vocabulary."""

import re
from collections.abc import Callable, Sequence
from pathlib import PurePath

from ringbase.errors import InputError

LOWER_CASE_CHECKPOINTS = (
    "multilingual_l-12_h-768_a-12",
    "chinese_l-12_h-768_a-12",
)  # besides "uncased" ones
HANGUL_SYLLABLES, HANGUL_LETTERS = re.compile("[\uac00-\ud7a3]"), re.compile("[\u1100-\u11ff]")


def check_case(do_lower_case: bool, checkpoint_name: str) -> None:
    """Google's `validate_case_matches_checkpoint`: the folder names of published checkpoints tell their case.

    Raises InputError if `do_lower_case` contradicts the name.
    """
    path = PurePath(checkpoint_name)
    name = (path.parent if "ckpt" in path.name else path).name.lower()
    cased = "cased" in re.split("[_-]", name)
    uncased = "uncased" in re.split("[_-]", name) or name in LOWER_CASE_CHECKPOINTS
    if (cased and do_lower_case) or (uncased and not do_lower_case):
        raise InputError(
            f"--do_lower_case={do_lower_case} does not match checkpoint {checkpoint_name}: use "
            f"--do_lower_case={uncased}"
        )


def case_problem(pieces: Sequence[str], lower_case: bool, normalize: Callable[[str], str]) -> str:
    """What the vocabulary loses because the text is lower-cased, or because it is not; "" if nothing.

    Args:
      pieces: the vocabulary.
      lower_case: whether the text is lower-cased and stripped of accents.
      normalize: the tokenizer's normalization, which it applies before it looks pieces up.
    """
    if lower_case and _splits_hangul(pieces, normalize):
        return (
            "whole Hangul syllables, which lower-casing takes apart, so that Korean text becomes [UNK]: "
            "give --do_lower_case=False"
        )
    if not lower_case and _lacks_capitals(pieces):
        return "no capital letters, so that they become [UNK]: give --do_lower_case"
    return ""


def _splits_hangul(pieces: Sequence[str], normalize: Callable[[str], str]) -> bool:
    """Whether normalization breaks up Korean syllables that the vocabulary holds whole.

    BERT's lower-casing strips accents by NFD, which turns U+AC00..U+D7A3 into the letters U+1100..U+11FF; pieces
    with a syllable that normalization changes are never matched. A vocabulary made with lower-casing holds letters
    instead, so the result is true when there are more lost pieces than pieces with letters.
    """
    lost = letters = 0
    for piece in pieces:
        syllable = HANGUL_SYLLABLES.search(piece)
        lost += syllable is not None and syllable[0] not in normalize(syllable[0])
        letters += HANGUL_LETTERS.search(piece) is not None
    return lost > letters


def _lacks_capitals(pieces: Sequence[str]) -> bool:
    """Whether the vocabulary holds a to z and none of A to Z, like ALBERT's."""
    letters = set("".join(piece for piece in pieces if not re.fullmatch(r"\[.*\]", piece)))
    return letters >= set("abcdefghijklmnopqrstuvwxyz") and letters.isdisjoint("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
