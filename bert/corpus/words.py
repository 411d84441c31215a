"""Sentences of a corpus -> the token ids that `Tokenizer.encode` gives, several times faster for WordPiece."""

import json
import string
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert.corpus.columns import values_of
from bert.text.tokenizer import Tokenizer
from ringbase.ragged import gather, joined

MOST_CACHED_WORDS, MOST_CACHED_CHARACTERS = 1 << 18, 1 << 21
WORDS_AT_ONCE = 1 << 10

# Kinds of UTF-8 bytes. A byte of an odd kind is a word of its own. A byte of an even kind begins a word after a
# byte of an odd kind, and a blank also begins a word after a letter: blanks belong to the word that follows them.
_BLANK, _ALONE, _LETTER, _LINE_END = 0, 1, 2, 3
_KINDS = np.full(256, _LETTER, np.uint8)
_KINDS[np.frombuffer(b" \t\r", np.uint8)] = _BLANK
_KINDS[np.frombuffer(string.punctuation.encode(), np.uint8)] = _ALONE
_KINDS[ord("\n")] = _LINE_END

# The common characters of three UTF-8 bytes that BERT treats as words of their own.
_IDEOGRAPHS = np.zeros(1 << 16, bool)
_IDEOGRAPHS[0x3400:0x4DC0] = _IDEOGRAPHS[0x4E00:0xA000] = True  # tokenization.py, _is_chinese_char
_IDEOGRAPHS[[ord(mark) for mark in "“”‘’„‹›–—…、。，！？；：「」『』（）"]] = True


class Encoder:
    """Sentences -> token ids.

    WordPiece looks at one word at a time. Words are separated by white space, and each punctuation mark or
    ideograph is a word of its own. So each distinct word is tokenized once and its ids are then copied. Other
    tokenizers get whole sentences.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        parts = json.loads(tokenizer.backend.to_str())
        self._by_word = _splits_at_white_space(parts)
        vocabulary: dict[str, int] = parts["model"]["vocab"] if self._by_word else {}
        self._marks = {mark: vocabulary[mark] for mark in string.punctuation if mark in vocabulary}
        self._forget()

    def __call__(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of all sentences, int32 [tokens], and the number in each sentence, int64 [sentences].

        Sentences must not contain line ends.
        """
        if not self._by_word:
            return self._encode(sentences)
        if len(self._numbers) > MOST_CACHED_WORDS or self._characters > MOST_CACHED_CHARACTERS:
            self._forget()
        words, line_ends = _words_of("".join(f"{text}\n" for text in sentences).encode())
        distinct = words.dictionary.to_pylist()
        self._learn([word for word in distinct if word not in self._numbers])
        numbers = np.fromiter(map(self._numbers.__getitem__, distinct), np.int64, len(distinct))
        numbers = numbers[values_of(words.indices)]
        starts = self._offsets[numbers]
        lengths = self._offsets[numbers + 1] - starts
        values = gather(self._values, starts, lengths)
        return values, np.diff(np.cumsum(lengths)[line_ends], prepend=0)

    def _forget(self) -> None:
        """Empties the memory of words: their numbers, and the ids of each number as a ragged array."""
        self._numbers: dict[str, int] = {}
        self._values, self._offsets, self._characters = np.empty(0, np.int32), np.zeros(1, np.int64), 0

    def _learn(self, words: list[str]) -> None:
        """Numbers new words and adds their ids."""
        self._numbers.update(zip(words, range(len(self._numbers), len(self._numbers) + len(words)), strict=True))
        self._characters += sum(map(len, words))
        for start in range(0, len(words), WORDS_AT_ONCE):
            values, lengths = self._encode_words([word.strip() for word in words[start : start + WORDS_AT_ONCE]])
            self._values = np.concatenate([self._values, values])
            self._offsets = np.concatenate([self._offsets, self._offsets[-1] + np.cumsum(lengths)])

    def _encode_words(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of single words, and the number of each word's, in one call of the Rust library: joins the words
        with a mark that none of them contains."""
        used = set("".join(words))
        for mark, token in self._marks.items():
            if mark in used:
                continue
            ids, _ = self._encode([f" {mark} ".join(words) + f" {mark}"])
            is_mark = ids == token
            ends = np.flatnonzero(is_mark)
            if len(ends) == len(words):  # there are more if a letter decomposes into the mark
                return ids[~is_mark], np.diff(ends, prepend=-1) - 1
        return self._encode(words)

    def _encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, offsets = joined(self._tokenizer.encode_ids(texts))
        return ids, np.diff(offsets)


def _words_of(text: bytes) -> tuple[pa.DictionaryArray, np.ndarray]:
    """The words of UTF-8 lines, in order, each with the blanks before it.

    Line ends are words too; the second array, int64 [lines], holds their places.
    """
    data = np.frombuffer(text, np.uint8)
    kinds = _KINDS[data]
    is_alone, is_blank = (kinds & 1).view(bool), kinds == _BLANK
    is_start = np.ones(len(data), bool)
    is_start[1:] = is_alone[1:] | is_alone[:-1] | (is_blank[1:] & ~is_blank[:-1])
    if not text.isascii():
        first = np.flatnonzero((data >= 0xE0) & (data < 0xF0))  # first bytes of characters of three UTF-8 bytes
        high, middle, low = (data[first + place].astype(np.int32) for place in range(3))
        ideographs = first[_IDEOGRAPHS[(high & 0x0F) << 12 | (middle & 0x3F) << 6 | low & 0x3F]]
        is_start[ideographs] = is_start[ideographs + 3] = True
    starts = np.flatnonzero(is_start)
    offsets = np.append(starts, len(data)).astype(np.int32)
    words = pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(text))
    return pc.dictionary_encode(words), np.flatnonzero(data[starts] == ord("\n"))


def _splits_at_white_space(parts: dict) -> bool:
    """Whether it works like BERT's: no token or normalization crosses white space, punctuation or ideographs."""
    kinds = tuple((parts.get(name) or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model"))
    special = all(token.get("special") for token in parts.get("added_tokens") or ())
    settings = parts.get("normalizer") or {}
    splits = bool(settings.get("clean_text") and settings.get("handle_chinese_chars"))
    return kinds == ("BertNormalizer", "BertPreTokenizer", "WordPiece") and special and splits
