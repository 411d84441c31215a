"""The first pass of a corpus: units of text become files of token ids, which allow reads at any place."""

import bisect
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from bert.corpus.documents import documents
from bert.corpus.encoder import Encoder
from bert.corpus.inputs import Unit
from bert.corpus.settings import TextSettings
from ringbase.errors import InputError
from ringbase.files import write_json
from ringbase.json_files import read_json

BATCH_CHARACTERS = 1 << 20
BLOCK_TOKENS = 1 << 20  # the second pass holds a block of this many tokens in memory, plus at most one document
MOST_OPEN_FILES = 256
MOST_KEPT_BYTES = 1 << 21  # of offsets


def id_type(vocab_size: int) -> np.dtype:
    """The type in which token ids are stored: uint16 where they fit, else int32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


# -- writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnitCounts:
    """The contents of a unit's files. `blocks`: the first document of each block, and the number of documents."""

    documents: int
    sentences: int
    tokens: int
    unknown: int
    blocks: tuple[int, ...]


def unit_path(folder: Path, number: int) -> Path:
    """The file that marks a unit as done; its `.tokens`, `.sentences` and `.documents` are beside it."""
    return folder / f"unit-{number:06d}.json"


def tokenize_unit(
    marker: Path, unit: Unit, text: TextSettings, encoder: Encoder, unk_id: int, dtype: np.dtype
) -> None:
    """Writes the token ids of a unit and where its sentences (int64, in tokens) and documents (int64, in
    sentences) start, and then `marker`, which comes from `unit_path`."""
    num_documents = num_sentences = num_tokens = unknown = 0
    blocks, block_start = [0], 0
    with (
        open(marker.with_suffix(".tokens"), "wb") as tokens,
        open(marker.with_suffix(".sentences"), "wb") as sentences,
        open(marker.with_suffix(".documents"), "wb") as bounds,
    ):
        sentences.write(np.zeros(1, np.int64).tobytes())
        bounds.write(np.zeros(1, np.int64).tobytes())
        for batch in batches(documents(unit, text)):
            values, sentence_lengths = encoder(list(chain.from_iterable(batch)))
            filled = sentence_lengths > 0
            sizes = _group_sums(filled, np.fromiter(map(len, batch), np.int64, len(batch)))
            sizes, sentence_lengths = sizes[sizes > 0], sentence_lengths[filled]
            tokens.write(values.astype(dtype).tobytes())
            sentences.write((num_tokens + np.cumsum(sentence_lengths)).tobytes())
            bounds.write((num_sentences + np.cumsum(sizes)).tobytes())
            num_tokens += len(values)
            num_sentences += len(sentence_lengths)
            num_documents += len(sizes)
            unknown += int((values == unk_id).sum())
            if num_tokens - block_start >= BLOCK_TOKENS:
                blocks.append(num_documents)
                block_start = num_tokens
    if blocks[-1] < num_documents:
        blocks.append(num_documents)
    counts = UnitCounts(num_documents, num_sentences, num_tokens, unknown, tuple(blocks))
    write_json(marker, asdict(counts), indent=None, sync=False)


def read_counts(marker: Path) -> UnitCounts:
    values = read_json(marker)
    return UnitCounts(**values | {"blocks": tuple(values["blocks"])})


def is_tokenized(marker: Path, dtype: np.dtype) -> bool:
    """Whether a unit is done and its files complete: files are not synced, so a power cut may have damaged
    them."""
    try:
        counts = read_counts(marker)
        sizes = [marker.with_suffix(f".{name}").stat().st_size for name in ("tokens", "sentences", "documents")]
    except (OSError, InputError):
        return False
    return sizes == [dtype.itemsize * counts.tokens, 8 * (counts.sentences + 1), 8 * (counts.documents + 1)]


def batches(texts: Iterable[list[str]], characters: int = BATCH_CHARACTERS) -> Iterator[list[list[str]]]:
    """Documents in lists of about this many characters."""
    batch, size = [], 0
    for document in texts:
        batch.append(document)
        size += sum(map(len, document))
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _group_sums(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The sums of consecutive groups of these sizes."""
    totals = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(sizes)
    return totals[ends] - totals[ends - sizes]


# -- reading ------------------------------------------------------------------------------------------------------


class OpenFiles:
    """Reads from many files, and keeps the most recently used ones open. Nothing is mapped into memory."""

    def __init__(self) -> None:
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def read(self, path: Path, place: int, count: int) -> bytes:
        """`count` bytes from byte `place` on. Raises OSError if the file is shorter."""
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            if len(self._descriptors) >= MOST_OPEN_FILES:
                os.close(self._descriptors.popitem(last=False)[1])
            descriptor = self._descriptors[path] = os.open(path, os.O_RDONLY)
        else:
            self._descriptors.move_to_end(path)
        data = os.pread(descriptor, count, place)
        while len(data) < count:
            rest = os.pread(descriptor, count - len(data), place + len(data))
            if not rest:
                raise OSError(0, f"ends at byte {place + len(data)}, expected {place + count} bytes", str(path))
            data += rest
        return data


@dataclass(frozen=True)
class Block:
    """Neighbouring documents of a unit.

    Attributes:
      tokens: their token ids.
      sentences: int64, where each sentence starts among the tokens, and the end.
      documents: int64, where each document starts among the sentences, and the end.
      first_document: the first document's number in the corpus.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    first_document: int


class TokenFiles:
    """The token ids of the whole corpus, read from disk on demand."""

    def __init__(self, folder: Path, unit_documents: Sequence[int], dtype: np.dtype):
        """`unit_documents`: the number of documents of each unit."""
        self.dtype = dtype
        self._ends = np.cumsum(unit_documents).tolist()
        self._files = OpenFiles()
        self._kept: dict[tuple[int, int], memoryview] = {}
        self._room = MOST_KEPT_BYTES
        markers = [unit_path(folder, number) for number in range(len(self._ends))]
        self._paths = [
            [marker.with_suffix(f".{name}") for name in ("tokens", "sentences", "documents")] for marker in markers
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
        """Token ids of whole consecutive sentences of a document, at least one sentence.

        They begin with the sentence at the fraction `place` (in [0, 1)) of the document, and end when there are
        `needed` tokens or the document ends.
        """
        unit = bisect.bisect_right(self._ends, document)
        local = document - (self._ends[unit - 1] if unit else 0)
        start, stop = self._kept_offsets(unit, 2, local, local + 1)
        start += int(place * (stop - start))
        stop = min(stop, start + max(needed, 1))  # a sentence has at least one token
        offsets = self._kept_offsets(unit, 1, start, stop)
        last = min(bisect.bisect_left(offsets, offsets[0] + needed, 1), stop - start)
        return self._tokens(unit, offsets[0], offsets[last])

    def _kept_offsets(self, unit: int, kind: int, start: int, stop: int) -> memoryview:
        """The offsets start, …, stop of a file. Kept in memory when it fits, because small reads are slow."""
        cached, path = self._kept.get((unit, kind)), self._paths[unit][kind]
        if cached is None:
            size = path.stat().st_size
            is_kept = size <= self._room
            self._room -= size * is_kept
            cached = memoryview(self._files.read(path, 0, size * is_kept)).cast("q")
            self._kept[unit, kind] = cached
        if cached:
            return cached[start : stop + 1]
        return memoryview(self._files.read(path, 8 * start, 8 * (stop - start + 1))).cast("q")

    def _tokens(self, unit: int, start: int, stop: int) -> bytes:
        size = self.dtype.itemsize
        return self._files.read(self._paths[unit][0], size * start, size * (stop - start))

    def _offsets(self, unit: int, kind: int, start: int, stop: int) -> np.ndarray:
        data = self._files.read(self._paths[unit][kind], 8 * start, 8 * (stop - start + 1))
        return np.frombuffer(data, np.int64)
