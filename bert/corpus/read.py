"""Reads units of text as streams of documents, each a list of sentences."""

import io
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator
from typing import IO, Literal

import pyarrow as pa
import pyarrow.parquet

from bert.corpus.settings import TextSettings
from bert.corpus.units import Piece, Unit, find_units, load_data_set, packing_of
from ringbase.errors import InputError, one_line, unread
from ringbase.files import parse_json

MOST_LINE_BYTES = 16 << 20
READ_BYTES = 1 << 19
ROWS_AT_ONCE = 1024
MOST_DOCUMENT_BYTES = 1 << 20  # longer documents are cut, to limit memory
BLANK_LINES = {"blank": 1, "blanks": 2}  # that end a document, by --document_separator
# characters: in hard-wrapped prose a shorter line ends its paragraph, or is a heading or verse
SHORT_LINE = 40


def documents(unit: Unit, text: TextSettings) -> Iterator[list[str]]:
    """The documents of a unit, each a list of sentences; none of them is empty.

    Raises InputError with the file and the place: invalid UTF-8, damaged compression, no JSON, no
    such column.
    """
    running = text.split_sentences
    for piece in unit:
        where = f"--{'dataset_name' if piece.kind == 'hub' else 'input_file'} {piece.path}"
        try:
            if piece.kind == "text":
                lines: Iterable[str] = _lines(piece, text, where)
                yield from gather_documents(lines, text.document_separator, running)
                continue
            for value, place in _values(piece, text, where):
                if not isinstance(value, str | None):
                    raise InputError(
                        f"{place}: {text.text_column} is not text: {value!r:.60} (--text_column)"
                    )
                lines = (value or "").split("\n")
                yield from gather_documents(lines, "file", running)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            damaged = f"{where}: damaged or cut short: {one_line(error)}"
            raise unread(error, where, damaged) from error


def sample_sentences(text: TextSettings, max_bytes: int | None) -> Iterator[str]:
    """The sentences of the whole input, or of the beginnings of all units, about `max_bytes`
    together."""
    units = find_units(text)
    for unit in units:
        left = math.inf if max_bytes is None else max_bytes / len(units)
        for sentence in itertools.chain.from_iterable(documents(unit, text)):
            if left <= 0:
                break
            yield sentence
            left -= len(sentence.encode())


def _values(piece: Piece, text: TextSettings, where: str) -> Iterator[tuple[object, str]]:
    """The values in the text column of a piece, and their places for messages."""
    column = text.text_column
    numbers = range(piece.start, piece.stop or 0)
    if piece.kind == "json":
        for line in filter(str.strip, _lines(piece, text, where)):
            place = f"{where}: the line {line.strip()!r:.60}"
            try:
                value = parse_json(line)[column]  # Python's own writer writes NaN
            except (InputError, KeyError, TypeError) as error:
                raise InputError(
                    f"{place}: expected a key {column} (--text_column): {one_line(error)}"
                ) from error
            yield value, place
    elif piece.kind == "parquet":
        with pa.parquet.ParquetFile(piece.path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=numbers, columns=[column]):
                for value in batch.column(0).to_pylist():
                    yield value, where
    else:
        rows = load_data_set(text).select_columns([column]).select(numbers)
        for batch in rows.iter(ROWS_AT_ONCE):
            for value in batch[column]:
                yield value, where


def _lines(piece: Piece, text: TextSettings, where: str) -> Iterator[str]:
    """The lines of the documents that begin in a piece."""
    stream = pa.input_stream(piece.path, compression=packing_of(piece.path))
    with io.BufferedReader(stream, READ_BYTES) as file:
        position, stop = 0, 1 << 62
        if piece.stop is not None:
            blanks = BLANK_LINES.get(text.document_separator, 0) * (piece.kind == "text")
            size = os.path.getsize(piece.path)
            position = _boundary(file, where, piece.start, size, blanks)
            stop = _boundary(file, where, piece.stop, size, blanks)
            file.seek(position)
        while position < stop and (data := _line(file, where, position)):
            try:
                line = data.decode()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{where}: byte {position + error.start:,} (0x{data[error.start]:02x}) is not"
                    f" UTF-8 ({error.reason}): convert the file first, e.g. with iconv -t UTF-8"
                ) from error
            yield line if position else line.removeprefix("\ufeff")
            position += len(data)


def _boundary(file: IO[bytes], where: str, place: int, size: int, blanks: int) -> int:
    """The start of the first document at or after byte `place`, which follows this many blank
    lines; there one unit ends and the next begins. A document that continues for more than 1 MiB
    after `place` is cut."""
    if place == 0 or place >= size:
        return min(place, size)
    file.seek(place - 1)
    position = place - 1 + len(_line(file, where, place))
    seen = 0
    while seen < blanks and position < min(size, place + MOST_DOCUMENT_BYTES):
        line = _line(file, where, position)
        position += len(line)
        seen = 0 if line.strip() else seen + 1
    return position


def _line(file: IO[bytes], where: str, position: int) -> bytes:
    line = file.readline(MOST_LINE_BYTES + 1)
    if len(line) > MOST_LINE_BYTES:
        raise InputError(
            f"{where}: the line at byte {position:,} is longer than {MOST_LINE_BYTES >> 20} MiB: "
            "is this text? A line must be a sentence, or a paragraph with --split_sentences"
        )
    return line


# -- documents and sentences -----------------------------------------------------------------------


def gather_documents(
    lines: Iterable[str], separator: Literal["blank", "blanks", "line", "file"], running: bool
) -> Iterator[list[str]]:
    """Lines -> documents, each a list of sentences: the lines, or with `running` those of running
    text."""
    needed = BLANK_LINES.get(separator, 1 << 62)
    document, paragraph = list[str](), list[str]()
    size = blanks = 0
    for line in itertools.chain(lines, [None]):
        if text := (line or "").strip():
            blanks = 0
            size += len(text)
            (paragraph if running else document).append(text)
            ends_paragraph = separator == "line" or (running and len(text) < SHORT_LINE)
            if size < MOST_DOCUMENT_BYTES and not ends_paragraph:
                continue
        else:
            blanks += 1
        if paragraph:
            document += split_sentences(" ".join(paragraph))
            paragraph = []
        is_end = blanks >= needed or size >= MOST_DOCUMENT_BYTES
        if document and (is_end or separator == "line" or line is None):
            yield document
            document, size = [], 0


# The end of a sentence: punctuation, closing quotes or brackets, white space. What only ends
# sentences needs no white space: in Chinese and Japanese, Hindi, Arabic and Urdu, Burmese, Khmer,
# Amharic, Armenian (UAX #29, STerm).
_CLOSING = r"[\"'”’»)\]_]*"
_END = re.compile(rf"[.!?…]+{_CLOSING}\s+|[。！？।॥؟۔။។።։]+[”’」』）»]*\s*")
_OPENING = "\"'“‘«([_-—"
_ABBREVIATIONS = (
    " mr mrs ms dr st messrs mme mlle prof rev hon capt col gen lt sgt esq jr sr vs etc e.g i.e cf"
    " no nos vol viz fig inc ltd co corp jan feb mar apr jun jul aug sep sept oct nov dec u.s u.k"
    " a.m p.m ph.d "
)


def split_sentences(text: str) -> list[str]:
    """Cuts running text into sentences: after `.`, `!`, `?` or `…` before white space, and after
    `。！？` and such marks of other scripts.

    There is no cut before a lower-case letter, or at a full stop after a common English
    abbreviation or a single capital letter (an initial).
    """
    sentences, start = [], 0
    for match in _END.finditer(text):
        stop = match.end()
        following = text[stop : stop + 4].lstrip(_OPENING)
        if following[:1].islower():
            continue
        end = match.start()
        if text[end] == "." and stop - end == 2:
            begin = max(start, text.rfind(" ", 0, end) + 1)
            word = text[begin:end].lstrip(_OPENING)
            is_initial = len(word) == 1 and word.isupper() and word != "I"
            if is_initial or f" {word.lower()} " in _ABBREVIATIONS:
                continue
        sentences.append(text[start:stop].strip())
        start = stop
    return list(filter(None, [*sentences, text[start:].strip()]))
