"""The first pass of a corpus: each unit of text becomes token ids in files that are then read at random places."""

import bisect
import itertools
import json
import os
import string
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tokenizers

from bert.documents import Source, Unit, documents
from bert.tokenizer import Tokenizer

BATCH_CHARACTERS = 1 << 20
BLOCK_TOKENS = 1 << 20  # what the second pass holds at a time, plus at most one document
MOST_CACHED_WORDS = 1 << 17
MOST_CACHED_CHARACTERS = 1 << 20
WORDS_AT_ONCE = 1 << 10
OPEN_FILES = 256
MOST_KEPT_BYTES = 1 << 21  # of offsets
# str.split() takes these for white space, BERT's cleaning deletes them.
_DELETED = dict.fromkeys((0x0B, 0x0C, 0x1C, 0x1D, 0x1E, 0x1F, 0x85))
# Some of what BERT's pre-tokenization splits off; the more of it is in a text, the fewer distinct words remain.
_PUNCTUATION = string.punctuation + "“”‘’„«»‹›–—…¡¿、。，！？；：「」『』（）"


def id_type(vocab_size: int) -> np.dtype:
    """The type in which token ids are stored: uint16 where they fit, else int32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


# -- tokenizing ---------------------------------------------------------------------------------------------------


class _Numbers(dict):
    """Word -> its number, in order of first sight."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


@dataclass(frozen=True)
class Words:
    """What workers need of a tokenizer; to read it back takes no `transformers`, which is slow to import.

    Attributes:
      serialized: the Rust tokenizer as JSON.
      continues_word: as in `bert.masking.Masking`, when whole words are masked.
    """

    vocab_size: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    digest: str
    lower_case: bool
    serialized: str
    continues_word: np.ndarray | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, whole_words: bool = False) -> "Words":
        serialized = tokenizer._backend.to_str()
        names = ("vocab_size", "unk_id", "cls_id", "sep_id", "mask_id", "digest", "lower_case")
        taken = {name: getattr(tokenizer, name) for name in names}
        return cls(
            **taken, serialized=serialized, continues_word=tokenizer.continues_word if whole_words else None
        )


class Encoder:
    """Sentences -> token ids, the same as `Tokenizer.encode` gives, several times faster for WordPiece.

    WordPiece looks at one word (what white space separates) at a time, and each punctuation mark is a word of its
    own: so each distinct word, without the marks around it, is tokenized once, and its ids are then copied. Other
    tokenizers get whole sentences.
    """

    def __init__(self, words: Words):
        self._backend = tokenizers.Tokenizer.from_str(words.serialized)
        self._backend.encode_special_tokens = True  # as in bert/tokenizer.py; the JSON does not hold it
        self._by_word = _splits_at_white_space(json.loads(words.serialized))
        found = [(mark, self._backend.token_to_id(mark)) for mark in string.punctuation]
        self._marks = {mark: token for mark, token in found if token is not None}
        self._words, self._parts = _Known(), _Known()

    def __call__(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of all sentences, int32 [tokens], and how many each has, int64 [sentences]."""
        if not self._by_word:
            return self._encode(sentences)
        # Words with the punctuation around them are many, and soon learnt again from their parts.
        if self._words.is_full:
            self._words = _Known()
        if self._parts.is_full:
            self._parts = _Known()
        texts = pa.array(
            [text if text.isprintable() else text.translate(_DELETED) for text in sentences], pa.string()
        )
        split = pc.utf8_split_whitespace(texts)
        distinct = pc.dictionary_encode(split.values)
        numbers = self._words.numbers_of(distinct.dictionary.to_pylist(), self._learn)
        values, lengths = self._words.ids_of(numbers[distinct.indices.to_numpy()])
        return values, _sums(lengths, np.diff(split.offsets.to_numpy()))

    def _learn(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of words: those of the punctuation before, of what is within, of the punctuation behind."""
        parts: list[str] = []
        for word in words:
            within = word.strip(_PUNCTUATION)
            at = word.find(within)
            parts += (word[:at], within, word[at + len(within) :])
        values, lengths = self._parts.ids_of(self._parts.numbers_of(parts, self._encode_words))
        return values, lengths.reshape(-1, 3).sum(axis=1)

    def _encode_words(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of single words: many in one text, where a mark that is in none of them stands behind each."""
        found = [self._encode_marked(words[at : at + WORDS_AT_ONCE]) for at in range(0, len(words), WORDS_AT_ONCE)]
        values, lengths = zip(*found, strict=True)
        return np.concatenate(values), np.concatenate(lengths)

    def _encode_marked(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        used = set("".join(words))
        for mark, token in self._marks.items():
            if mark in used:
                continue
            ids, _ = self._encode([f" {mark} ".join(words) + f" {mark}"])
            is_mark = ids == token
            ends = np.flatnonzero(is_mark)
            if len(ends) == len(words):  # not if a letter of them is decomposed into the mark
                return ids[~is_mark], np.diff(ends, prepend=-1) - 1
        return self._encode(words)

    def _encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        # Without the places in the text, which `Tokenizer.encode` gives too.
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.int32), lengths


class _Known:
    """Texts and their token ids, each text by the number that it got at first sight."""

    def __init__(self) -> None:
        self.numbers, self.characters = _Numbers(), 0
        self._values = np.empty(0, np.int32)
        self._starts = np.zeros(1, np.int64)  # of each text in `_values`, and the end

    @property
    def is_full(self) -> bool:
        return len(self.numbers) > MOST_CACHED_WORDS or self.characters > MOST_CACHED_CHARACTERS

    def numbers_of(
        self, texts: Sequence[str], encode: Callable[[list[str]], tuple[np.ndarray, np.ndarray]]
    ) -> np.ndarray:
        """The texts' numbers, int64 [texts]. `encode`: unknown texts -> ids of all, how many each has."""
        known = len(self.numbers)
        found = np.fromiter(map(self.numbers.__getitem__, texts), np.int64, len(texts))
        if len(self.numbers) > known:
            unknown = list(itertools.islice(self.numbers, known, None))
            self.characters += sum(map(len, unknown))
            values, lengths = encode(unknown)
            self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(lengths)])
            self._values = np.concatenate([self._values, values])
        return found

    def ids_of(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all these texts, int32 [tokens], and how many each has, int64."""
        starts = self._starts[numbers]
        lengths = self._starts[numbers + 1] - starts
        return gather(self._values, starts, lengths), lengths


def _splits_at_white_space(parts: dict) -> bool:
    """Whether the tokenizer is BERT's: no token, no normalization reaches over white space."""
    kinds = tuple((parts.get(name) or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model"))
    special = all(token.get("special") for token in parts.get("added_tokens") or ())
    cleans = (parts.get("normalizer") or {}).get("clean_text")
    return kinds == ("BertNormalizer", "BertPreTokenizer", "WordPiece") and special and bool(cleans)


def gather(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The concatenation of values[start : start + length] for each start and length."""
    if not len(starts):
        return values[:0]
    ends = np.cumsum(lengths)
    places = np.repeat(starts - (ends - lengths), lengths)
    places += np.arange(len(places))
    return values[places]


def _sums(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sums of consecutive groups of these sizes."""
    totals = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(counts)
    return totals[ends] - totals[ends - counts]


# -- files of a unit ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnitCounts:
    """What the files of a unit hold. `blocks`: its documents' numbers at which the blocks start, and their end."""

    documents: int
    sentences: int
    tokens: int
    unknown: int
    blocks: tuple[int, ...]


def unit_path(folder: Path, number: int) -> Path:
    """The file that says that a unit is done; `.tokens`, `.sentences`, `.documents` stand beside it."""
    return folder / f"unit-{number:06d}.json"


def tokenize_unit(
    folder: Path, number: int, unit: Unit, source: Source, encoder: Encoder, unk_id: int, dtype: np.dtype
) -> None:
    """Writes the token ids of a unit, where its sentences start (int64, tokens) and its documents (sentences)."""
    marker = unit_path(folder, number)
    num_documents = num_sentences = num_tokens = unknown = 0
    blocks, block_start = [0], 0
    with (
        open(marker.with_suffix(".tokens"), "wb") as tokens,
        open(marker.with_suffix(".sentences"), "wb") as sentences,
        open(marker.with_suffix(".documents"), "wb") as bounds,
    ):
        sentences.write(np.zeros(1, np.int64).tobytes())
        bounds.write(np.zeros(1, np.int64).tobytes())
        for batch in batches(documents(unit, source)):
            values, sentence_lengths = encoder(list(chain.from_iterable(batch)))
            document_sizes = np.fromiter(map(len, batch), np.int64, len(batch))
            filled = sentence_lengths > 0
            document_sizes = _sums(filled, document_sizes)
            document_sizes = document_sizes[document_sizes > 0]
            sentence_lengths = sentence_lengths[filled]
            tokens.write(values.astype(dtype).tobytes())
            sentences.write((num_tokens + np.cumsum(sentence_lengths)).tobytes())
            bounds.write((num_sentences + np.cumsum(document_sizes)).tobytes())
            num_tokens += len(values)
            num_sentences += len(sentence_lengths)
            num_documents += len(document_sizes)
            unknown += int((values == unk_id).sum())
            if num_tokens - block_start >= BLOCK_TOKENS:
                blocks.append(num_documents)
                block_start = num_tokens
    if blocks[-1] < num_documents:
        blocks.append(num_documents)
    counts = UnitCounts(num_documents, num_sentences, num_tokens, unknown, tuple(blocks))
    write_json(marker, asdict(counts), is_forced=False)


def read_counts(folder: Path, number: int) -> UnitCounts:
    values = json.loads(unit_path(folder, number).read_text())
    return UnitCounts(**values | {"blocks": tuple(values["blocks"])})


def is_tokenized(folder: Path, number: int, dtype: np.dtype) -> bool:
    """Whether a unit is done and its files are whole. They are not forced to the disk, which takes time: a power
    cut may have left parts of them."""
    try:
        counts = read_counts(folder, number)
        sizes = [
            unit_path(folder, number).with_suffix(f".{name}").stat().st_size
            for name in ("tokens", "sentences", "documents")
        ]
    except (OSError, ValueError):
        return False
    return sizes == [dtype.itemsize * counts.tokens, 8 * (counts.sentences + 1), 8 * (counts.documents + 1)]


def write_json(path: Path, values: object, indent: int | None = None, is_forced: bool = True) -> None:
    """Writes a file whole or not at all; with `is_forced` through a power cut too."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(json.dumps(values, indent=indent, ensure_ascii=False) + "\n")
        if is_forced:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if is_forced:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames within a folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def batches(found: Iterable[list[str]], characters: int = BATCH_CHARACTERS) -> Iterator[list[list[str]]]:
    """Documents in lists of about so many characters."""
    batch, size = [], 0
    for document in found:
        batch.append(document)
        size += sum(map(len, document))
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class OpenFiles:
    """Reads at given places of many files, of which the last used stay open. Nothing is mapped into memory."""

    def __init__(self) -> None:
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def read(self, path: Path, place: int, count: int) -> bytes:
        """`count` bytes from byte `place` on. Raises OSError: the file is shorter."""
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            if len(self._descriptors) >= OPEN_FILES:
                os.close(self._descriptors.popitem(last=False)[1])
            descriptor = self._descriptors[path] = os.open(path, os.O_RDONLY)
        else:
            self._descriptors.move_to_end(path)
        data = os.pread(descriptor, count, place)
        while len(data) < count:
            more = os.pread(descriptor, count - len(data), place + len(data))
            if not more:
                raise OSError(0, f"ends at byte {place + len(data)}, needed are {place + count}", str(path))
            data += more
        return data

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


@dataclass(frozen=True)
class Block:
    """Neighbouring documents of a unit: token ids; where sentences start in them; where documents start among
    the sentences (both int64, with the end); the first document's number in the corpus."""

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    first_document: int


class TokenFiles:
    """The token ids of the whole corpus, read where they are needed."""

    def __init__(self, folder: Path, documents_of_units: Sequence[int], dtype: np.dtype):
        self.dtype = dtype
        self._ends = np.cumsum(documents_of_units).tolist()
        self._files = OpenFiles()
        self._kept: dict[tuple[int, int], memoryview] = {}
        self._room = MOST_KEPT_BYTES
        paths = [unit_path(folder, number) for number in range(len(self._ends))]
        self._paths = [
            [path.with_suffix(f".{name}") for name in ("tokens", "sentences", "documents")] for path in paths
        ]

    @property
    def num_documents(self) -> int:
        return self._ends[-1]

    def block(self, unit: int, start: int, stop: int) -> Block:
        """The documents start, …, stop - 1 of a unit."""
        before = self._ends[unit - 1] if unit else 0
        bounds = self._offsets(unit, 2, start, stop)
        sentences = self._offsets(unit, 1, int(bounds[0]), int(bounds[-1]))
        tokens = np.frombuffer(self._tokens(unit, int(sentences[0]), int(sentences[-1])), self.dtype)
        return Block(tokens, sentences - sentences[0], bounds - bounds[0], before + start)

    def continuation(self, document: int, place: float, needed: int) -> bytes:
        """Tokens of whole sentences of a document, from the one at share `place` (in [0, 1)) of them on, until at
        least `needed` tokens or its end are reached; at least one sentence."""
        unit = bisect.bisect_right(self._ends, document)
        local = document - (self._ends[unit - 1] if unit else 0)
        start, stop = self._kept_offsets(unit, 2, local, local + 1)
        start += int(place * (stop - start))
        stop = min(stop, start + max(needed, 1))  # a sentence has at least one token
        offsets = self._kept_offsets(unit, 1, start, stop)
        last = min(bisect.bisect_left(offsets, offsets[0] + needed, 1), stop - start)
        return self._tokens(unit, offsets[0], offsets[last])

    def _kept_offsets(self, unit: int, kind: int, start: int, stop: int) -> memoryview:
        """The offsets start, …, stop of a file. It stays in memory if there is room: small reads cost more than
        what they find."""
        kept, path = self._kept.get((unit, kind)), self._paths[unit][kind]
        if kept is None:
            size = path.stat().st_size
            is_kept = size <= self._room
            self._room -= size * is_kept
            kept = memoryview(self._files.read(path, 0, size * is_kept)).cast("q")
            self._kept[unit, kind] = kept
        if kept:
            return kept[start : stop + 1]
        return memoryview(self._files.read(path, 8 * start, 8 * (stop - start + 1))).cast("q")

    def _tokens(self, unit: int, start: int, stop: int) -> bytes:
        size = self.dtype.itemsize
        return self._files.read(self._paths[unit][0], size * start, size * (stop - start))

    def _offsets(self, unit: int, kind: int, start: int, stop: int) -> np.ndarray:
        return np.frombuffer(
            self._files.read(self._paths[unit][kind], 8 * start, 8 * (stop - start + 1)), np.int64
        )
