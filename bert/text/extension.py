"""Words of a text that a vocabulary cuts into pieces, as new entries of it."""

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Sequence

import regex
from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer

from bert.text.characters import word_spans
from bert.text.tokenizer import Tokenizer
from ringbase.errors import InputError
from ringbase.ragged import Array

COUNTED_AT_ONCE = 1 << 16  # different words to tokenize
LETTERS = regex.compile(r"[\p{L}\p{M}]{2,}")  # what a new word is made of


def new_words(
    sentences: Iterable[str], words: Tokenizer, number: int, min_frequency: int
) -> list[str]:
    """The words of a text that would save most tokens as entries of their own: how often each
    occurs, times the pieces but for one that it has now, or once if it is [UNK]. Memory holds a
    count of each distinct word. Raises InputError: there are fewer than `number`."""
    counts = Counter[str]()
    for sentence in sentences:
        text = _normalized(words, sentence)
        counts.update(text[start:stop] for start, stop in word_spans(text))
    often = [
        word
        for word, count in counts.items()
        if count >= max(1, min_frequency) and LETTERS.fullmatch(word)
    ]
    saved = Counter[str]()
    for start in range(0, len(often), COUNTED_AT_ONCE):
        part = often[start : start + COUNTED_AT_ONCE]
        for word, ids in zip(part, pieces_of(part, words), strict=True):
            if len(ids) > 1 or words.unk_id in ids:
                saved[word] = counts[word] * max(1, len(ids) - 1)
    if len(saved) < number:
        raise InputError(
            f"--new_words {number}: only {len(saved)} words of the text occur {min_frequency} times"
            f" or more (--min_frequency) and are cut into pieces, or unknown, by {words.source}"
        )
    return heapq.nsmallest(number, saved, key=lambda word: (-saved[word], word))


def pieces_of(new: Sequence[str], words: Tokenizer) -> list[Array]:
    """The ids of the pieces of each word within a text, int32 [n]."""
    return words.encode_ids([f" {word}" for word in new])


def _normalized(words: Tokenizer, text: str) -> str:
    """The text as the vocabulary sees it, so that a word is counted in all its spellings."""
    normalizer = words.backend.normalizer
    if words.kind == "wordpiece" and normalizer:
        return normalizer.normalize_str(text)
    return text


def extended(words: Tokenizer, new: Sequence[str]) -> Tokenizer:
    """The tokenizer with these entries behind its own. WordPiece finds an entry as it finds its
    own, so it may also begin a longer word. Other vocabularies would need merges or scores that a
    text never had: there a new word is an added token, which is found where it is a whole word."""
    content = json.loads(words.backend.to_str())
    if words.kind == "wordpiece":
        vocabulary = content["model"]["vocab"]
        for number, word in enumerate(new, words.vocab_size):
            vocabulary[word] = number
    backend = RustTokenizer.from_str(json.dumps(content))
    if words.kind != "wordpiece":
        # with the blank before it, for which there would be a token of its own
        backend.add_tokens([AddedToken(word, single_word=True, lstrip=True) for word in new])
    return words.with_backend(backend)
