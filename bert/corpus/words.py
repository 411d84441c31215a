"""Sentences of a corpus -> the token ids that `Tokenizer.encode` gives, several times faster for
WordPiece."""

from collections.abc import Sequence
from string import punctuation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bert.text.tokenizer import Tokenizer
from ringbase.ragged import Array, gather, joined

MOST_CACHED_CHARACTERS = 1 << 21
MARK = "!"  # between words that are tokenized together; no other character decomposes into it

# A line end or a punctuation mark is a word. A blank belongs to the word that follows it.
_IS_MARK = np.zeros(256, bool)
_IS_MARK[np.frombuffer(f"\n{punctuation}".encode(), np.uint8)] = True
# The common characters of three UTF-8 bytes that BERT treats as words of their own.
_IS_IDEOGRAPH = np.zeros(1 << 16, bool)
# tokenization.py, _is_chinese_char
_IS_IDEOGRAPH[0x3400:0x4DC0] = _IS_IDEOGRAPH[0x4E00:0xA000] = True
_IS_IDEOGRAPH[[ord(mark) for mark in "“”‘’„‹›–—…、。，！？；：「」『』（）"]] = True


class Encoder:
    """Sentences -> token ids.

    WordPiece looks at one word at a time, so each distinct word is tokenized once and its ids are
    then copied. Other tokenizers, and vocabularies without "!", get whole sentences.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._mark_id = tokenizer.backend.token_to_id(MARK)
        self._by_word = _splits_at_white_space(tokenizer) and self._mark_id is not None
        self._forget()

    def __call__(self, sentences: Sequence[str]) -> tuple[Array, Array]:
        """Token ids of all sentences, int32 [tokens], and the number in each sentence, int64
        [sentences].

        Sentences must not contain line ends.
        """
        if not self._by_word:
            ids, offsets = joined(self._tokenizer.encode_ids(sentences))
            return ids, np.diff(offsets)
        if self._characters > MOST_CACHED_CHARACTERS:
            self._forget()
        lines = "".join(f"{sentence}\n" for sentence in sentences)
        words = _words_of(lines.encode())
        distinct = words.dictionary.to_pylist()
        self._learn([word for word in distinct if word not in self._numbers])
        known = np.array([self._numbers[word] for word in distinct], np.int64)
        numbers = known[np.from_dlpack(words.indices)]
        starts = self._offsets[numbers]
        lengths = self._offsets[numbers + 1] - starts
        ids = gather(self._values, starts, lengths)
        is_line_end = numbers == self._numbers.get("\n")
        line_ends = np.cumsum(lengths)[is_line_end]
        return ids, np.diff(line_ends, prepend=0)

    def _forget(self) -> None:
        """Empties the memory of words: the number of each, and the ids of each number as a ragged
        array."""
        self._numbers = {MARK: 0}
        self._characters = 0
        self._values = np.array([self._mark_id or 0], np.int32)
        self._offsets = np.arange(2)

    def _learn(self, words: list[str]) -> None:
        self._characters += sum(map(len, words))
        text = f" {MARK} ".join([*words, ""])
        (ids,) = self._tokenizer.encode_ids([text])
        is_mark = ids == self._mark_id
        lengths = np.diff(np.flatnonzero(is_mark), prepend=-1) - 1
        assert len(lengths) == len(words)
        for word in words:
            self._numbers[word] = len(self._numbers)
        self._values = np.append(self._values, ids[~is_mark])
        ends = self._offsets[-1] + np.cumsum(lengths)
        self._offsets = np.append(self._offsets, ends)


def _words_of(text: bytes) -> pa.DictionaryArray:
    """The words of UTF-8 lines, in order, each with the blanks before it. Line ends are words
    too."""
    data = np.frombuffer(text, np.uint8)
    is_mark = _IS_MARK[data]
    is_blank = data == ord(" ")
    is_start = is_mark.copy()
    is_start[:1] = True
    begins_blanks = is_blank[1:] & ~is_blank[:-1]
    is_start[1:] |= is_mark[:-1] | begins_blanks
    if not text.isascii():
        # first bytes of characters of three UTF-8 bytes
        first = np.flatnonzero((data >= 0xE0) & (data < 0xF0))
        high, middle, low = (data[first + place].astype(np.int32) for place in range(3))
        codes = (high & 0x0F) << 12 | (middle & 0x3F) << 6 | low & 0x3F
        ideographs = first[_IS_IDEOGRAPH[codes]]
        is_start[ideographs] = is_start[ideographs + 3] = True
    starts = np.flatnonzero(is_start)
    offsets = np.append(starts, len(data)).astype(np.int32)
    buffers = pa.py_buffer(offsets), pa.py_buffer(text)
    words = pa.StringArray.from_buffers(len(starts), *buffers)
    return pc.dictionary_encode(words)


def _splits_at_white_space(tokenizer: Tokenizer) -> bool:
    """Whether it works like BERT's: no token or normalization crosses white space, punctuation or
    ideographs."""
    backend = tokenizer.backend
    normalizer = backend.normalizer
    if not isinstance(normalizer, BertNormalizer) or tokenizer.kind != "wordpiece":
        return False
    splits = normalizer.clean_text and normalizer.handle_chinese_chars
    is_bert = splits and isinstance(backend.pre_tokenizer, BertPreTokenizer)
    return is_bert and not tokenizer.added_tokens
