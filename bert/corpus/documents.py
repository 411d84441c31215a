"""Reads units of text as streams of documents, each a list of sentences."""

import gzip
import io
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import IO

from bert.corpus.inputs import Piece, Unit, find_units, load_data_set
from bert.corpus.sentences import MOST_DOCUMENT_BYTES, Separator, gather_documents
from bert.corpus.settings import TextSettings
from ringbase.errors import InputError, one_line
from ringbase.files import most_unpacked, unpacks_to_too_much
from ringbase.json_files import parse_json

MOST_LINE_BYTES = 16 << 20
READ_BYTES = 1 << 19
ROWS_AT_ONCE = 1024
SMALLEST_SAMPLE_BYTES = 1 << 16  # of one unit


def documents(unit: Unit, text: TextSettings) -> Iterator[list[str]]:
    """The documents of a unit, each a list of sentences; no document and no sentence is empty.

    Raises InputError with the file and the place: invalid UTF-8, damaged compression, no JSON, no such column.
    """
    for piece in unit.pieces:
        if piece.kind == "text":
            blocks = (lines for _, lines in _lines_of(piece, text))
            yield from gather_documents(blocks, text.document_separator, text.split_sentences)
        else:
            for document in _texts_of(piece, text):
                yield from gather_documents([document.split("\n")], "file", text.split_sentences)


def sample_sentences(text: TextSettings, max_bytes: int | None) -> Iterator[str]:
    """The sentences of the whole input, or of evenly spread parts of it that hold about `max_bytes`."""
    units, _ = find_units(text)
    share = len(units) if max_bytes is None else max(1, min(len(units), max_bytes // SMALLEST_SAMPLE_BYTES))
    for unit in (units[number * len(units) // share] for number in range(share)):
        left = float("inf") if max_bytes is None else max_bytes / share
        for sentence in itertools.chain.from_iterable(documents(unit, text)):
            if left <= 0:
                break
            yield sentence
            left -= len(sentence.encode())


# -- lines --------------------------------------------------------------------------------------------------------


def _lines_of(piece: Piece, text: TextSettings) -> Iterator[tuple[int, list[str]]]:
    """The lines of a piece in blocks, each with the offset of its first byte."""
    if piece.stop is None:
        yield from _unpacked_lines(piece.path)
        return
    separator = text.document_separator if piece.kind == "text" else "file"
    with open(piece.path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = _boundary(file, piece.path, piece.start, size, separator)
        stop = _boundary(file, piece.path, piece.stop, size, separator)
        file.seek(start)
        yield from _blocks(file, piece.path, start, stop)


def _unpacked_lines(path: str) -> Iterator[tuple[int, list[str]]]:
    try:
        limit = most_unpacked(os.path.getsize(path))
        with _unpacked(path) as file:
            for position, lines in _blocks(file, path, 0, 1 << 62):
                if position > limit:
                    raise unpacks_to_too_much(f"--input_file {path}", limit)
                yield position, lines
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise InputError(f"--input_file {path}: damaged or cut short: {error}") from error


def _unpacked(path: str) -> IO[bytes]:
    if path.lower().endswith(".gz"):
        return io.BufferedReader(gzip.GzipFile(path), READ_BYTES)
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(path, compression="zstd"), READ_BYTES)


def _boundary(file: IO[bytes], path: str, place: int, size: int, separator: Separator) -> int:
    """The start of the first document at or after byte `place`; there one unit ends and the next begins.

    A document that continues for more than 1 MiB after `place` is cut.
    """
    if place == 0 or place >= size:
        return min(place, size)
    file.seek(place - 1)
    position = place - 1 + len(_line(file, path, place))
    blanks, needed = 0, {"blank": 1, "blanks": 2, "file": 0}[separator]
    while blanks < needed and position < min(size, place + MOST_DOCUMENT_BYTES):
        line = _line(file, path, position)
        position += len(line)
        blanks = 0 if line.strip() else blanks + 1
    return position


def _line(file: IO[bytes], path: str, position: int) -> bytes:
    line = file.readline(MOST_LINE_BYTES + 1)
    if len(line) > MOST_LINE_BYTES:
        raise InputError(
            f"--input_file {path}: the line at byte {position:,} is longer than {MOST_LINE_BYTES >> 20} MiB: "
            "is this text? A line must be a sentence, or a paragraph with --split_sentences"
        )
    return line


def _blocks(file: IO[bytes], path: str, position: int, stop: int) -> Iterator[tuple[int, list[str]]]:
    """The lines that start in [position, stop), decoded; `position` is the start of a line."""
    pending = b""
    while position + len(pending) < stop:
        data = file.read(min(READ_BYTES, stop - position - len(pending)))
        if not data:
            break
        pending += data
        cut = pending.rfind(b"\n") + 1
        if cut:
            yield position, _decode(pending[:cut], path, position).split("\n")[:-1]
            position, pending = position + cut, pending[cut:]
        elif len(pending) > MOST_LINE_BYTES:
            _line(io.BytesIO(pending), path, position)
    if pending:
        pending += _line(file, path, position)
        yield position, [_decode(pending, path, position).rstrip("\n")]


def _decode(data: bytes, path: str, position: int) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"--input_file {path}: byte {position + error.start:,} (0x{data[error.start]:02x}) is not UTF-8 "
            f"({error.reason}): convert the file first, e.g. with iconv -t UTF-8"
        ) from error
    return text.removeprefix("\ufeff") if position == 0 else text


# -- texts in columns ---------------------------------------------------------------------------------------------


def _texts_of(piece: Piece, text: TextSettings) -> Iterator[str]:
    """The text column of a piece; a null is an empty text."""
    if piece.kind == "json":
        for position, lines in _lines_of(piece, text):
            for number, line in enumerate(lines):
                if line.strip():
                    yield _json_text(line, text.text_column, piece.path, position, lines[:number])
    elif piece.kind == "parquet":
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(piece.path, page_checksum_verification=True) as file:
                groups = range(piece.start, piece.stop or 0)
                for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=groups, columns=[text.text_column]):
                    yield from _checked(batch.column(0).to_pylist(), f"--input_file {piece.path}", text)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"--input_file {piece.path}: damaged Parquet file: {one_line(error)}") from error
    else:
        table = load_data_set(text).select_columns([text.text_column])
        for start in range(piece.start, piece.stop or 0, ROWS_AT_ONCE):
            rows = table[start : min(start + ROWS_AT_ONCE, piece.stop or 0)][text.text_column]
            yield from _checked(rows, f"--dataset_name {piece.path}", text)


def _checked(values: Iterable[object], where: str, text: TextSettings) -> Iterator[str]:
    for value in values:
        if value is not None and not isinstance(value, str):
            raise InputError(f"{where}: column {text.text_column} is not text: {value!r:.60} (--text_column)")
        yield value or ""


def _json_text(line: str, column: str, path: str, position: int, lines_before: list[str]) -> str:
    try:
        value = parse_json(line, allow_nan=True)  # of other columns; Python's own writer writes NaN
        if not isinstance(value, dict) or column not in value:
            raise InputError(f"no key {column} (--text_column)")
        if not isinstance(value[column], str | None):
            raise InputError(f"{column} is not text: {value[column]!r:.60} (--text_column)")
        return value[column] or ""
    except InputError as error:
        problem = error
    offset = position + sum(len(line.encode()) + 1 for line in lines_before)
    raise InputError(f"--input_file {path}: the line at byte {offset:,}: {problem}") from problem
