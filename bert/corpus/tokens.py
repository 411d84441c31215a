"""The first pass of a corpus: each unit of text becomes token ids in files that are then read at random places."""

import bisect
import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from bert.corpus.documents import Source, Unit, documents
from bert.corpus.encoder import Encoder, sums

BATCH_CHARACTERS = 1 << 20
BLOCK_TOKENS = 1 << 20  # what the second pass holds at a time, plus at most one document
OPEN_FILES = 256
MOST_KEPT_BYTES = 1 << 21  # of offsets


def id_type(vocab_size: int) -> np.dtype:
    """The type in which token ids are stored: uint16 where they fit, else int32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


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
            document_sizes = sums(filled, document_sizes)
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
