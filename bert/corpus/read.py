"""Reads units of text as streams of documents, each a list of sentences."""

import io
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import IO

import pyarrow as pa
import pyarrow.parquet

from bert.corpus.sentences import MOST_DOCUMENT_BYTES, gather_documents
from bert.corpus.settings import TextSettings
from bert.corpus.units import Piece, Unit, find_units, load_data_set
from ringbase.errors import InputError, one_line
from ringbase.json_files import parse_json

MOST_LINE_BYTES = 16 << 20
READ_BYTES = 1 << 19
ROWS_AT_ONCE = 1024


def documents(unit: Unit, text: TextSettings) -> Iterator[list[str]]:
    """The documents of a unit, each a list of sentences; no document and no sentence is empty.

    Raises InputError with the file and the place: invalid UTF-8, damaged compression, no JSON, no such column.
    """
    for piece in unit:
        if piece.kind == "text":
            yield from gather_documents(_lines_of(piece, text), text.document_separator, text.split_sentences)
        else:
            for document in _texts_of(piece, text):
                yield from gather_documents(document.split("\n"), "file", text.split_sentences)


def sample_sentences(text: TextSettings, max_bytes: int | None) -> Iterator[str]:
    """The sentences of the whole input, or of the beginnings of all units, about `max_bytes` together."""
    units = find_units(text)
    for unit in units:
        left = float("inf") if max_bytes is None else max_bytes / len(units)
        for sentence in itertools.chain.from_iterable(documents(unit, text)):
            if left <= 0:
                break
            yield sentence
            left -= len(sentence.encode())


# -- lines --------------------------------------------------------------------------------------------------------


def _lines_of(piece: Piece, text: TextSettings) -> Iterator[str]:
    path = piece.path
    if piece.stop is None:
        yield from _unpacked_lines(path)
        return
    with open(path, "rb") as file:
        blanks = {"blank": 1, "blanks": 2, "file": 0}[text.document_separator] if piece.kind == "text" else 0
        start, stop = (_boundary(file, path, place, blanks) for place in (piece.start, piece.stop))
        file.seek(start)
        yield from _lines(file, path, start, stop)


def _unpacked_lines(path: str) -> Iterator[str]:
    kind = "gzip" if path.lower().endswith(".gz") else "zstd"
    with pa.OSFile(path) as packed:
        try:
            with io.BufferedReader(pa.input_stream(packed, compression=kind), READ_BYTES) as file:
                yield from _lines(file, path, 0, 1 << 62)
        except OSError as error:
            raise InputError(f"--input_file {path}: damaged or cut short: {error}") from error


def _boundary(file: IO[bytes], path: str, place: int, blanks: int) -> int:
    """The start of the first document at or after byte `place`, which follows this many blank lines; there one
    unit ends and the next begins. A document that continues for more than 1 MiB after `place` is cut."""
    size = os.fstat(file.fileno()).st_size
    if place == 0 or place >= size:
        return min(place, size)
    file.seek(place - 1)
    position = place - 1 + len(_line(file, path, place))
    seen = 0
    while seen < blanks and position < min(size, place + MOST_DOCUMENT_BYTES):
        line = _line(file, path, position)
        position += len(line)
        seen = 0 if line.strip() else seen + 1
    return position


def _line(file: IO[bytes], path: str, position: int) -> bytes:
    line = file.readline(MOST_LINE_BYTES + 1)
    if len(line) > MOST_LINE_BYTES:
        raise InputError(
            f"--input_file {path}: the line at byte {position:,} is longer than {MOST_LINE_BYTES >> 20} MiB: "
            "is this text? A line must be a sentence, or a paragraph with --split_sentences"
        )
    return line


def _lines(file: IO[bytes], path: str, position: int, stop: int) -> Iterator[str]:
    """The lines that start in [position, stop); `position` is the start of a line."""
    while position < stop and (data := _line(file, path, position)):
        try:
            line = data.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"--input_file {path}: byte {position + error.start:,} (0x{data[error.start]:02x}) is not UTF-8 "
                f"({error.reason}): convert the file first, e.g. with iconv -t UTF-8"
            ) from error
        yield line if position else line.removeprefix("\ufeff")
        position += len(data)


# -- texts in columns ---------------------------------------------------------------------------------------------


def _texts_of(piece: Piece, text: TextSettings) -> Iterator[str]:
    """The text column of a piece; a null is an empty text."""
    column, where = text.text_column, f"--input_file {piece.path}"
    if piece.kind == "json":
        for line in filter(str.strip, _lines_of(piece, text)):
            yield from _json_text(line, column, where)
    elif piece.kind == "parquet":
        try:
            with pa.parquet.ParquetFile(piece.path, page_checksum_verification=True) as file:
                groups = range(piece.start, piece.stop or 0)
                for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=groups, columns=[column]):
                    yield from _checked(batch.column(0).to_pylist(), where, column)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{where}: damaged Parquet file: {one_line(error)}") from error
    else:
        table, stop = load_data_set(text).select_columns([column]), piece.stop or 0
        for start in range(piece.start, stop, ROWS_AT_ONCE):
            rows = table[start : min(start + ROWS_AT_ONCE, stop)][column]
            yield from _checked(rows, f"--dataset_name {piece.path}", column)


def _checked(values: Iterable[object], where: str, column: str) -> Iterator[str]:
    for value in values:
        if value is not None and not isinstance(value, str):
            raise InputError(f"{where}: column {column} is not text: {value!r:.60} (--text_column)")
        yield value or ""


def _json_text(line: str, column: str, where: str) -> Iterator[str]:
    where = f"{where}: the line {line.strip()!r:.60}"
    try:
        value = parse_json(line)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if not isinstance(value, dict) or column not in value:
        raise InputError(f"{where}: no key {column} (--text_column)")
    return _checked([value[column]], where, column)
