"""Sentences of a corpus -> the token ids that `Tokenizer.encode` gives, several times faster for WordPiece."""

import json
from collections.abc import Sequence
from string import punctuation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert.corpus.columns import values_of
from bert.text.tokenizer import Tokenizer
from ringbase.ragged import gather, joined, offsets_of

MOST_CACHED_WORDS, MOST_CACHED_CHARACTERS = 1 << 18, 1 << 21
WORDS_AT_ONCE = 1 << 10

# A line end or a punctuation mark is a word. A blank belongs to the word that follows it.
_IS_MARK = np.zeros(256, bool)
_IS_MARK[np.frombuffer(f"\n{punctuation}".encode(), np.uint8)] = True
# The common characters of three UTF-8 bytes that BERT treats as words of their own.
_IS_IDEOGRAPH = np.zeros(1 << 16, bool)
_IS_IDEOGRAPH[0x3400:0x4DC0] = _IS_IDEOGRAPH[0x4E00:0xA000] = True  # tokenization.py, _is_chinese_char
_IS_IDEOGRAPH[[ord(mark) for mark in "“”‘’„‹›–—…、。，！？；：「」『』（）"]] = True


class Encoder:
    """Sentences -> token ids.

    WordPiece looks at one word at a time, so each distinct word is tokenized once and its ids are then copied.
    Other tokenizers get whole sentences.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, to_id = tokenizer, tokenizer.backend.token_to_id
        self._by_word = _splits_at_white_space(json.loads(tokenizer.backend.to_str()))
        self._mark = next((mark for mark in punctuation if to_id(mark) is not None), "")
        self._mark_id = to_id(self._mark)
        self._forget()

    def __call__(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of all sentences, int32 [tokens], and the number in each sentence, int64 [sentences].

        Sentences must not contain line ends.
        """
        if not self._by_word:
            return self._encode(sentences)
        if len(self._numbers) > MOST_CACHED_WORDS or self._characters > MOST_CACHED_CHARACTERS:
            self._forget()
        words = _words_of("".join(f"{sentence}\n" for sentence in sentences).encode())
        distinct, places = words.dictionary.to_pylist(), values_of(words.indices)
        self._learn([word for word in distinct if word not in self._numbers])
        numbers = np.fromiter(map(self._numbers.__getitem__, distinct), np.int64, len(distinct))[places]
        starts = self._offsets[numbers]
        lengths = self._offsets[numbers + 1] - starts
        line_ends = np.flatnonzero(places == distinct.index("\n")) if sentences else places[:0]
        return gather(self._values, starts, lengths), np.diff(np.cumsum(lengths)[line_ends], prepend=0)

    def _forget(self) -> None:
        """Empties the memory of words: their numbers, and the ids of each number as a ragged array."""
        self._numbers: dict[str, int] = {}
        self._values, self._offsets, self._characters = np.empty(0, np.int32), np.zeros(1, np.int64), 0

    def _learn(self, words: list[str]) -> None:
        """Numbers new words and adds their ids."""
        self._numbers.update(zip(words, range(len(self._numbers), len(self._numbers) + len(words)), strict=True))
        self._characters += sum(map(len, words))
        starts = range(0, len(words), WORDS_AT_ONCE)
        parts = [self._encode_words(words[start : start + WORDS_AT_ONCE]) for start in starts]
        self._values = np.concatenate([self._values, *(values for values, _ in parts)])
        self._offsets = offsets_of(np.concatenate([np.diff(self._offsets), *(lengths for _, lengths in parts)]))

    def _encode_words(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of single words, and the number of each word's, in one call of the Rust library: joins the words
        with a punctuation mark, which no other word contains."""
        if self._mark and self._mark not in words:
            (ids,) = self._tokenizer.encode_ids([f" {self._mark} ".join([*words, ""])])
            is_mark = ids == self._mark_id
            ends = np.flatnonzero(is_mark)
            if len(ends) == len(words):  # there are more if a letter decomposes into the mark
                return ids[~is_mark], np.diff(ends, prepend=-1) - 1
        return self._encode(words)

    def _encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, offsets = joined(self._tokenizer.encode_ids(texts))
        return ids, np.diff(offsets)


def _words_of(text: bytes) -> pa.DictionaryArray:
    """The words of UTF-8 lines, in order, each with the blanks before it. Line ends are words too."""
    data = np.frombuffer(text, np.uint8)
    is_mark, is_blank = _IS_MARK[data], data == ord(" ")
    is_start = is_mark.copy()
    is_start[:1] = True
    is_start[1:] |= is_mark[:-1] | (is_blank[1:] & ~is_blank[:-1])
    if not text.isascii():
        first = np.flatnonzero((data >= 0xE0) & (data < 0xF0))  # first bytes of characters of three UTF-8 bytes
        high, middle, low = (data[first + place].astype(np.int32) for place in range(3))
        ideographs = first[_IS_IDEOGRAPH[(high & 0x0F) << 12 | (middle & 0x3F) << 6 | low & 0x3F]]
        is_start[ideographs] = is_start[ideographs + 3] = True
    starts = np.flatnonzero(is_start)
    offsets = np.append(starts, len(data)).astype(np.int32)
    words = pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(text))
    return pc.dictionary_encode(words)


def _splits_at_white_space(parts: dict) -> bool:
    """Whether it works like BERT's: no token or normalization crosses white space, punctuation or ideographs."""
    kinds = [(parts.get(name) or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    if kinds != ["BertNormalizer", "BertPreTokenizer", "WordPiece"]:
        return False
    splits = parts["normalizer"]["clean_text"] and parts["normalizer"]["handle_chinese_chars"]
    return splits and all(token["special"] for token in parts["added_tokens"])
