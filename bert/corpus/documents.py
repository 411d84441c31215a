"""Text of any size as a stream of documents, each a list of sentences.

The input is divided into units of 4 to 8 MiB that are read independently of each other: which document belongs to
which unit depends on the input alone, never on who reads it.
"""

import functools
import glob
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal

from bert.corpus.sentences import MOST_DOCUMENT_BYTES, Separator, gather_documents
from ringbert.errors import InputError

LARGEST_UNIT_BYTES, SMALLEST_UNIT_BYTES = 8 << 20, 4 << 20  # of text
UNITS = 64  # of a corpus between, so that several workers end together
MOST_LINE_BYTES = 16 << 20
READ_BYTES = 1 << 19
PACKED = 4  # how many bytes of text one byte of a compressed file is taken for
JSON_LINES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class Source:
    """What to read and how.

    Attributes:
      input_file: globs separated by commas: plain text, JSON lines (.jsonl .ndjson .json), Parquet; text and JSON
        lines may be compressed (.gz .zst).
      dataset_name: instead of files a hub data set, or a folder that `datasets.load_dataset` reads; split train.
      dataset_config: its configuration, for one that has several.
      text_column: the column, or key, that holds a document, in all but plain text.
      split_sentences: False: each line is a sentence. True: running text: the lines of a paragraph are joined and
        cut into sentences by `split_sentences`; a blank line or one of fewer than 40 characters ends a paragraph.
      document_separator: what stands between the documents of plain text: "blank" (a blank line), "blanks" (two
        or more), "file" (only the end of the file).
    """

    input_file: str | None = None
    dataset_name: str | None = None
    text_column: str = "text"
    split_sentences: bool = False
    document_separator: Separator = "blank"
    dataset_config: str | None = None

    def __post_init__(self):
        if (self.input_file is None) == (self.dataset_name is None):
            raise InputError("one of --input_file and --dataset_name is needed")


@dataclass(frozen=True)
class Piece:
    """A part of a file: bytes [start, stop) of text or JSON lines, row groups of Parquet, rows of a data set.

    A compressed file is one piece, with `stop` None.
    """

    path: str
    kind: Literal["text", "json", "parquet", "hub"]
    start: int
    stop: int | None


@dataclass(frozen=True)
class Unit:
    """Neighbouring pieces that are read by one worker at a time."""

    pieces: tuple[Piece, ...]


def find_files(patterns: str, flag: str = "--input_file") -> list[str]:
    """The files that globs separated by commas match, sorted within each glob, each once.

    Raises InputError that names a glob without a match.
    """
    found: dict[str, None] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        name = os.path.expanduser(pattern)
        matches = [path for path in sorted(glob.glob(name, recursive=True)) if os.path.isfile(path)]
        if not matches and os.path.isfile(name):  # a name with brackets in it
            matches = [name]
        if not matches:
            reason = f"it is a folder: give '{pattern}/*'" if os.path.isdir(name) else "no file matches"
            raise InputError(f"{flag} {pattern}: {reason}")
        found.update(dict.fromkeys(matches))
    if not found:
        raise InputError(f"{flag} '{patterns}' names no file")
    return list(found)


def find_units(source: Source) -> tuple[list[Unit], list[str]]:
    """The units of the input, in order, and the files that are empty and were left out.

    Raises InputError: nothing matches, nothing but empty files, an unreadable Parquet file or data set.
    """
    empty: list[str] = []
    pieces: list[tuple[Piece, int]] = []  # with its weight in bytes of text
    if source.dataset_name is not None:
        unit_bytes = LARGEST_UNIT_BYTES
        pieces = _pieces_of_data_set(source)
    else:
        files = find_files(source.input_file or "")
        empty = [path for path in files if os.path.getsize(path) == 0]
        total = sum(os.path.getsize(path) * (PACKED if _without_compression(path)[1] else 1) for path in files)
        unit_bytes = min(LARGEST_UNIT_BYTES, max(SMALLEST_UNIT_BYTES, total // UNITS))
        for path in files:
            if path not in empty:
                pieces += _pieces_of_file(path, source, unit_bytes)
    if not pieces:
        raise InputError(f"--input_file {source.input_file}: all files are empty ({len(empty)})")
    units, weight = [[pieces[0][0]]], pieces[0][1]
    for piece, more in pieces[1:]:
        weight += more
        if weight > unit_bytes:
            units.append([])
            weight = more
        units[-1].append(piece)
    return [Unit(tuple(unit)) for unit in units], empty


def documents(unit: Unit, source: Source) -> Iterator[list[str]]:
    """The documents of a unit, each a list of sentences (never empty, no sentence blank).

    Raises InputError with file and place: invalid UTF-8, damaged compression, no JSON, no such column.
    """
    for piece in unit.pieces:
        if piece.kind == "text":
            blocks = (lines for _, lines in _lines_of(piece, source))
            yield from gather_documents(blocks, source.document_separator, source.split_sentences)
        else:
            for text in _texts_of(piece, source):
                yield from gather_documents([text.split("\n")], "file", source.split_sentences)


# -- units --------------------------------------------------------------------------------------------------------


def _pieces_of_file(path: str, source: Source, unit_bytes: int) -> list[tuple[Piece, int]]:
    name, compression = _without_compression(path)
    size = os.path.getsize(path)
    if name.endswith(".parquet"):
        if compression:
            raise InputError(f"--input_file {path}: Parquet is compressed inside: unpack it first")
        return _pieces_of_parquet(path, source)
    kind: Literal["text", "json"] = "json" if name.endswith(JSON_LINES) else "text"
    if compression:
        return [(Piece(path, kind, 0, None), PACKED * size)]
    stops = [min(at + unit_bytes, size) for at in range(0, size, unit_bytes)]
    return [(Piece(path, kind, at, stop), stop - at) for at, stop in zip([0, *stops], stops, strict=False)]


def _without_compression(path: str) -> tuple[str, str]:
    name = path.lower()
    ending = next((ending for ending in (".gz", ".zst") if name.endswith(ending)), "")
    return name.removesuffix(ending), ending


def _pieces_of_parquet(path: str, source: Source) -> list[tuple[Piece, int]]:
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            metadata, columns = file.metadata, file.schema_arrow.names
    except (OSError, ValueError) as error:
        raise InputError(f"--input_file {path}: no Parquet file: {str(error).splitlines()[0]}") from error
    _check_column(source.text_column, columns, f"--input_file {path}")
    return [
        (Piece(path, "parquet", group, group + 1), metadata.row_group(group).total_byte_size)
        for group in range(metadata.num_row_groups)
    ]


def _pieces_of_data_set(source: Source) -> list[tuple[Piece, int]]:
    table = _data_set(source.dataset_name or "", source.dataset_config)
    where = f"--dataset_name {source.dataset_name}"
    _check_column(source.text_column, table.column_names, where)
    if not len(table):
        raise InputError(f"{where}: the data set has no rows")
    step = max(1, LARGEST_UNIT_BYTES * len(table) // max(1, table.data.nbytes))
    name, starts = source.dataset_name or "", range(0, len(table), step)
    return [(Piece(name, "hub", at, min(at + step, len(table))), LARGEST_UNIT_BYTES) for at in starts]


@functools.lru_cache(maxsize=1)
def _data_set(name: str, config: str | None) -> Any:
    import datasets

    try:
        return datasets.load_dataset(name, config, split="train")
    except Exception as error:  # the hub's errors have no common class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        where = f"--dataset_name {name}{f' --dataset_config {config}' if config else ''}"
        raise InputError(f"{where} (train): {reason}") from error


def _check_column(column: str, columns: Sequence[str], where: str) -> None:
    if column not in columns:
        raise InputError(f"{where}: no column {column}; there are {', '.join(columns)} (--text_column)")


# -- lines --------------------------------------------------------------------------------------------------------


def _lines_of(piece: Piece, source: Source) -> Iterator[tuple[int, list[str]]]:
    """The lines of a piece in blocks, each with the offset of its first byte."""
    if piece.stop is None:
        yield from _unpacked_lines(piece.path)
        return
    separator = source.document_separator if piece.kind == "text" else "file"
    with open(piece.path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = _boundary(file, piece.path, piece.start, size, separator)
        stop = _boundary(file, piece.path, piece.stop, size, separator)
        file.seek(start)
        yield from _blocks(file, piece.path, start, stop)


def _unpacked_lines(path: str) -> Iterator[tuple[int, list[str]]]:
    try:
        with _unpacked(path) as file:
            yield from _blocks(file, path, 0, 1 << 62)
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise InputError(f"--input_file {path}: damaged or cut short: {error}") from error


def _unpacked(path: str) -> IO[bytes]:
    if path.lower().endswith(".gz"):
        return io.BufferedReader(gzip.GzipFile(path), READ_BYTES)
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(path, compression="zstd"), READ_BYTES)


def _boundary(file: IO[bytes], path: str, at: int, size: int, separator: Separator) -> int:
    """Where the unit that begins at byte `at` really begins: at the first document from there on.

    The unit before ends at the same place. A document that goes on for more than 1 MiB past it is cut.
    """
    if at == 0 or at >= size:
        return min(at, size)
    file.seek(at - 1)
    position = at - 1 + len(_line(file, path, at))
    blanks, needed = 0, {"blank": 1, "blanks": 2, "file": 0}[separator]
    while blanks < needed and position < min(size, at + MOST_DOCUMENT_BYTES):
        line = _line(file, path, position)
        position += len(line)
        blanks = 0 if line.strip() else blanks + 1
    return position


def _line(file: IO[bytes], path: str, position: int) -> bytes:
    line = file.readline(MOST_LINE_BYTES + 1)
    if len(line) > MOST_LINE_BYTES:
        raise InputError(
            f"--input_file {path}: the line at byte {position:,} is longer than {MOST_LINE_BYTES >> 20} MiB: "
            "is this text? Lines are sentences, or paragraphs with --split_sentences"
        )
    return line


def _blocks(file: IO[bytes], path: str, position: int, stop: int) -> Iterator[tuple[int, list[str]]]:
    """The lines that start in [position, stop), decoded; `position` is the start of a line."""
    pending = b""
    while position + len(pending) < stop:
        more = file.read(min(READ_BYTES, stop - position - len(pending)))
        if not more:
            break
        pending += more
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


def _texts_of(piece: Piece, source: Source) -> Iterator[str]:
    """The text column of a piece; a null is an empty text."""
    if piece.kind == "json":
        for position, lines in _lines_of(piece, source):
            for number, line in enumerate(lines):
                if line.strip():
                    yield _json_text(line, source.text_column, piece.path, position, lines[:number])
    elif piece.kind == "parquet":
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(piece.path) as file:
                groups = range(piece.start, piece.stop or 0)
                for batch in file.iter_batches(1024, row_groups=groups, columns=[source.text_column]):
                    yield from _checked(batch.column(0).to_pylist(), f"--input_file {piece.path}", source)
        except OSError as error:
            raise InputError(f"--input_file {piece.path}: damaged Parquet file: {error}") from error
    else:
        table = _data_set(piece.path, source.dataset_config).select_columns([source.text_column])
        for at in range(piece.start, piece.stop or 0, 1024):
            rows = table[at : min(at + 1024, piece.stop or 0)][source.text_column]
            yield from _checked(rows, f"--dataset_name {piece.path}", source)


def _checked(texts: Iterable[object], where: str, source: Source) -> Iterator[str]:
    for text in texts:
        if text is not None and not isinstance(text, str):
            raise InputError(f"{where}: column {source.text_column} holds no text: {text!r:.60} (--text_column)")
        yield text or ""


def _json_text(line: str, column: str, path: str, position: int, before: list[str]) -> str:
    problem = ""
    try:
        text = json.loads(line)[column]
        if text is None or isinstance(text, str):
            (text or "").encode()
            return text or ""
        problem = f"{column} is no text: {text!r:.60} (--text_column)"
    except json.JSONDecodeError as error:
        problem = f"not JSON ({error.msg})"
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        problem = f"{column} holds half a surrogate pair (\\u{half:04x}), which is no character"
    except (KeyError, TypeError):
        problem = f"no key {column} (--text_column)"
    offset = position + sum(len(line.encode()) + 1 for line in before)
    raise InputError(f"--input_file {path}: the line at byte {offset:,}: {problem}")


# -- what tells that an input changed -----------------------------------------------------------------------------


def input_facts(source: Source) -> list[tuple[str, int, int]]:
    """Path, size and time of change of every input file: what tells that an input changed.

    Of a data set its name, number of rows and a number made of its fingerprint.
    """
    if source.dataset_name is not None:
        table = _data_set(source.dataset_name, source.dataset_config)
        return [(source.dataset_name, len(table), int(table._fingerprint, 16) % (1 << 62))]
    stats = [(path, os.stat(path)) for path in find_files(source.input_file or "")]
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
