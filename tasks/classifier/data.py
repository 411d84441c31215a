"""Texts and labels for the classifier: read, check, and cut to token ids by Google's rules (`run_classifier.py`).

Named tasks are read as they are published: tab-separated, no quoting. Files of the user's are CSV (quoted as in
RFC 4180), TSV (no quoting: a quotation mark is text), JSON lines or Parquet, with a header or keys.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert.text.tokenizer import Tokenizer
from distributed.rows import Rows, metadata_of, write_rows
from distributed.run import Run
from ringbert.errors import InputError
from ringbert.files import build_folder
from ringbert.hashing import digest
from tasks.classifier.files import Table, read_table, read_tsv, unit
from tasks.classifier.tasks import Columns, Task
from tasks.squad.windows import MOST_UNKNOWN_SHARE, TOKENIZED_AT_ONCE, is_unicode

EXAMPLES_VERSION = 1  # bump when the code below changes what it writes: old caches are then not used


@dataclass(frozen=True)
class Texts:
    """The examples of a file or split, in its order; an empty text stays an example.

    Attributes:
      source: the file or data set, for messages.
      ids: what the file calls each example, else its number from 0.
      first, second: the texts; second None without pairs.
      labels: as written in the data (float for regression); None when unlabelled.
      places: (file, line or row numbers from 1) of each file, in order.
      num_short_rows: how many rows were left out for having too few columns (`Task.skips_short_rows`).
    """

    source: str
    ids: list[str]
    first: list[str]
    second: list[str] | None
    labels: list[str] | list[float] | None
    places: tuple[tuple[str, Sequence[int]], ...] = ()
    num_short_rows: int = 0

    def __len__(self) -> int:
        return len(self.first)

    def place(self, number: int) -> str:
        """Where example `number` (from 0) stands: "train.tsv: line 7"."""
        for file, lines in self.places:
            if number < len(lines):
                return f"{file}: {unit(file)} {lines[number]}"
            number -= len(lines)
        return f"{self.source}: row {number + 1}"

    def head(self, most: int | None) -> "Texts":
        """The first `most` examples; all for None."""
        if most is None or most >= len(self):
            return self
        second, labels = self.second and self.second[:most], self.labels and self.labels[:most]
        return Texts(
            self.source, self.ids[:most], self.first[:most], second, labels, self.places, self.num_short_rows
        )


# -- named tasks --------------------------------------------------------------------------------------------------


def read_task(task: Task, data_dir: str, split: str, language: str = "en") -> Texts:
    """A split ("train", "dev", "test" or one of `task.splits`) of a named task's folder.

    `data_dir` is the task's folder or the GLUE folder that holds it. Labels are None where the files have none.

    Raises InputError: a missing file or column, a row with another number of columns, a score that is no number,
      text that is not UTF-8, a language that the file lacks.
    """
    part = task.split(split)
    folder = Path(data_dir).expanduser()
    if (folder / task.folder).is_dir():
        folder = folder / task.folder
    read = []
    for name in part.files:
        path = _present(task, folder, [spelling.format(language=language) for spelling in (name, *part.instead)])
        table = read_tsv(
            path,
            f"--data_dir {path}",
            _wanted(part.columns),
            part.columns.num_columns,
            task.skips_short_rows,
            part.columns.is_quoted,
        )
        chosen = _of_language(table, part.columns.language, language)
        labelled = not split.startswith("test")
        read.append(_texts(table, str(path), part.columns, task.is_regression, labelled, task.spellings, chosen))
    return _joined(read)


def read_task_hub(task: Task, split: str, language: str = "en") -> Texts:
    """The same from the hub, through `datasets`. Raises InputError: no such data set, split or column."""
    part, hub = task.split(split), task.hub
    if hub is None or part.hub is None:
        raise InputError(f"--task_name {task.name}: no data set of the hub is known for it; give --data_dir")
    import datasets

    config = hub.config and hub.config.format(language=language)
    where = f"{hub.name}{f' {config}' if config else ''} ({part.hub})"
    try:
        data = datasets.load_dataset(hub.name, config, split=part.hub, revision=hub.revision)
    except Exception as error:  # the hub's errors have no common class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"--task_name {task.name}: {where}: {reason}; or give --data_dir") from error
    columns: dict[str | int, Sequence[Any]] = {name: data[name][:] for name in data.column_names}
    if hub.label in columns:
        values = columns[hub.label]
        if all(value in (-1, None) for value in values):
            del columns[hub.label]  # GLUE's test sets
        elif not task.is_regression and task.labels != ("0", "1"):
            to_text = getattr(data.features[hub.label], "int2str", str)
            columns[hub.label] = [to_text(value) if isinstance(value, int) else value for value in values]
    table = Table(f"--task_name {task.name}: {where}", tuple(columns), columns, range(1, len(data) + 1))
    names = Columns(hub.text, hub.pair, hub.label, hub.id)
    return _texts(table, where, names, task.is_regression, not split.startswith("test"), task.spellings)


def _present(task: Task, folder: Path, names: Sequence[str]) -> Path:
    """The first of these files that is there."""
    for name in names:
        if (folder / name).is_file():
            if name == "msr_paraphrase_train.txt" and (folder / "dev.tsv").is_file():
                raise InputError(
                    f"--data_dir {folder}: {name} holds the examples of dev.tsv too: train.tsv is needed"
                )
            return folder / name
    raise InputError(
        f"--data_dir {folder}: no file {' or '.join(names)}, which --task_name {task.name} needs"
        + ("" if folder.is_dir() else "; the folder does not exist")
    )


def _of_language(table: Table, column: str | None, language: str) -> np.ndarray | None:
    """The rows in `language`; None for all rows."""
    if column is None:
        return None
    values = table.column(column)
    chosen = np.flatnonzero(np.asarray(values) == language)
    if not len(chosen):
        raise InputError(f"{table.where}: no row in --language {language}, only {', '.join(sorted(set(values)))}")
    return chosen


def _joined(read: Sequence[Texts]) -> Texts:
    if len(read) == 1:
        return read[0]
    bare = [texts.source for texts in read if texts.labels is None]
    if 0 < len(bare) < len(read):
        raise InputError(f"--data_dir {bare[0]}: it has no labels and the other files of the split have")

    def all_of(name: str) -> Any:
        return None if getattr(read[0], name) is None else [value for t in read for value in getattr(t, name)]

    return Texts(
        " + ".join(texts.source for texts in read),
        [str(number) for number in range(sum(map(len, read)))],
        all_of("first"),
        all_of("second"),
        all_of("labels"),
        tuple(place for texts in read for place in texts.places),
        sum(texts.num_short_rows for texts in read),
    )


# -- files of the user's ------------------------------------------------------------------------------------------


def read_file(
    path: str,
    flag: str,
    text_column: str,
    text_pair_column: str | None,
    label_column: str,
    *,
    numeric_labels: bool = False,
    needs_labels: bool = False,
) -> Texts:
    """A file with named columns, by its extension: .csv, .tsv, .txt (read as .tsv), .jsonl, .json (lines), each
    also with .gz, and .parquet. `flag` is the flag that named it. Labels are None when `label_column` is absent,
    unless `needs_labels`.

    Raises InputError: file missing, damaged, empty or of another extension; a missing column; a ragged row; an
      empty label; a text that is none; with `numeric_labels` a label that is no finite number.
    """
    file, where = Path(path).expanduser(), f"{flag} {path}"
    columns = Columns(text_column, text_pair_column, label_column, id="")
    table = read_table(file, where, _wanted(columns))
    return _texts(table, path, columns, numeric_labels, needs_labels)


def _wanted(columns: Columns) -> list[str | int]:
    names = (columns.text, columns.pair, columns.label, columns.id, columns.language)
    return list(dict.fromkeys(name for name in names if name not in (None, "")))


# -- columns to texts ---------------------------------------------------------------------------------------------


def _texts(
    table: Table,
    source: str,
    columns: Columns,
    is_regression: bool,
    needs_labels: bool,
    spellings: Mapping[str, str] | None = None,
    chosen: np.ndarray | None = None,
) -> Texts:
    """The examples in a table's rows, or in the `chosen` ones."""
    if not len(table.lines):
        raise InputError(f"{table.where}: the file has no row after its header")

    def values(name: str | int) -> Sequence[Any]:
        all_values = table.column(name)
        return all_values if chosen is None else [all_values[row] for row in chosen]

    lines = table.lines if chosen is None else [table.lines[row] for row in chosen]
    places = ((source, lines),)
    first = _checked_texts(values(columns.text), columns.text, table.where, lines)
    second = None
    if columns.pair is not None:
        second = _checked_texts(values(columns.pair), columns.pair, table.where, lines)
    labels: list[str] | list[float] | None = None
    if needs_labels or columns.label in table.columns:
        written = values(columns.label)
        named = [f"{table.where}: {unit(source)} {line}: {columns.label}" for line in lines]
        if is_regression:
            labels = list(map(_number, written, named))
        else:
            texts = map(_label, written, named)
            labels = [(spellings or {}).get(text, text) for text in texts]
    has_ids = columns.id in table.columns
    ids = [str(name) for name in (values(columns.id) if has_ids else range(len(first)))]
    return Texts(source, ids, first, second, labels, places, table.num_short_rows)


def _checked_texts(values: Sequence[Any], name: str | int, where: str, lines: Sequence[int]) -> list[str]:
    for value, line in zip(values, lines, strict=True):
        if not isinstance(value, str):
            raise InputError(f"{where}: {unit(where)} {line}: {name} is no text but {value!r}"[:300])
        if not value.isascii() and not is_unicode(value):
            raise InputError(f"{where}: {unit(where)} {line}: {name} holds half a surrogate pair, no Unicode text")
    return list(values)


def _label(value: Any, where: str) -> str:
    if value in (None, "") or not isinstance(value, str | int | float) or value != value:  # the last: NaN
        raise InputError(f"{where} is {value!r}, needed is a label")
    return str(value)


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where} is {value!r}, needed is a finite number for regression")
    return number


# -- labels -------------------------------------------------------------------------------------------------------


def labels_of(texts: Texts) -> list[str]:
    """The labels that occur, sorted: as numbers when all are whole numbers, else as texts."""
    found = {str(label) for label in texts.labels or ()}
    if all(label.removeprefix("-").isdecimal() for label in found):
        return sorted(found, key=lambda label: (int(label), label))
    return sorted(found)


def check_labels(texts: Texts, labels: Sequence[str], flag: str = "") -> None:
    """Raises InputError for the first label that is not among `labels`; `flag` is the flag that named the data."""
    known = set(labels)
    for number, label in enumerate(texts.labels or ()):
        if label not in known:
            raise InputError(
                f"{flag} {texts.place(number)}: label {label!r} is none of {', '.join(labels)}".strip()
            )


# -- examples -----------------------------------------------------------------------------------------------------


def examples(
    texts: Texts,
    tokenizer: Tokenizer,
    cache_dir: Path,
    *,
    max_seq_length: int,
    labels: tuple[str, ...] | None,
    allow_unknown: bool,
    run: Run,
) -> str:
    """The folder's name below `cache_dir` that holds `examples.arrow`; built unless there.

    A row: `input_ids` ([CLS] first [SEP], and second [SEP] of a pair; int32), `sentence_a_tokens` (how many of
    them are of type 0; int32), `label` (its index in `labels`, int32, -1 where unlabelled; for `labels` None the
    number itself, float32, NaN where unlabelled).

    Raises InputError: a label that is not in `labels`; a length without room for text; more than 10 % of the
      tokens are [UNK] and not `allow_unknown`.
    """
    room = max_seq_length - (2 if texts.second is None else 3)
    if room < 1:
        raise InputError(f"--max_seq_length {max_seq_length} leaves no room for text")
    if labels is not None:
        check_labels(texts, labels)
    content = [texts.first, texts.second, texts.labels]
    key = digest("classifier examples", EXAMPLES_VERSION, tokenizer.digest, max_seq_length, labels, content)
    folder = cache_dir / key
    fresh = build_folder(folder, lambda folder: _build(folder, texts, tokenizer, room, labels, run))
    rows = Rows.open(folder / "examples.arrow")
    facts = metadata_of(rows)
    said = f"{texts.source}: {len(rows):,} examples, {facts['unknown_share']:.2%} [UNK]"
    said += f", {facts['num_cut']:,} cut to --max_seq_length {max_seq_length}" if facts["num_cut"] else ""
    said += f", {facts['num_empty']:,} with an empty text" if facts["num_empty"] else ""
    said += f", {texts.num_short_rows:,} rows with too few columns left out" if texts.num_short_rows else ""
    run.say(said + ("" if fresh else " (cached)"))
    if facts["unknown_share"] > MOST_UNKNOWN_SHARE and not allow_unknown:
        raise InputError(
            f"{texts.source}: {facts['unknown_share']:.1%} of the tokens are [UNK] with {tokenizer.source}, lower "
            f"case {tokenizer.lower_case}: check --vocab_file and --do_lower_case, or give --allow_unknown"
        )
    return key


def _build(
    folder: Path, texts: Texts, tokenizer: Tokenizer, room: int, labels: tuple[str, ...] | None, run: Run
) -> None:
    values, lengths, first_lengths = [], [], []
    num_unknown = num_tokens = num_cut = 0
    for first, second in _tokenized(texts, tokenizer, run):
        first_length, second_length = truncated(first[1], None if second is None else second[1], room)
        row_values, row_lengths = _joined_rows(first, first_length, second, second_length, tokenizer)
        values.append(row_values)
        lengths.append(row_lengths)
        first_lengths.append(first_length + 2)
        for tokens, _ in filter(None, (first, second)):
            num_unknown += int((tokens == tokenizer.unk_id).sum())
            num_tokens += len(tokens)
        whole = first[1] + (0 if second is None else second[1])
        num_cut += int((first_length + second_length < whole).sum())
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    input_ids = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(np.concatenate(values)))
    write_rows(
        folder / "examples.arrow",
        {
            "input_ids": input_ids,
            "sentence_a_tokens": pa.array(np.concatenate(first_lengths), pa.int32()),
            "label": _label_column(texts, labels),
        },
        {
            "unknown_share": num_unknown / max(num_tokens, 1),
            "num_cut": num_cut,
            "num_empty": sum(not text.strip() for text in (*texts.first, *(texts.second or ()))),
        },
    )


_Ragged = tuple[np.ndarray, np.ndarray]  # tokens of several texts one after another, and how many each has


def _tokenized(texts: Texts, tokenizer: Tokenizer, run: Run) -> Iterator[tuple[_Ragged, _Ragged | None]]:
    """The tokens of the first and second texts, a few thousand at once."""

    def encode(part: list[str]) -> _Ragged:
        ids = tokenizer.encode_ids(part)
        return np.concatenate(ids), np.fromiter(map(len, ids), np.int64, len(ids))

    progress = run.progress(len(texts), "tokenizing", "example")
    for start in range(0, len(texts), TOKENIZED_AT_ONCE):
        part = slice(start, start + TOKENIZED_AT_ONCE)
        yield encode(texts.first[part]), None if texts.second is None else encode(texts.second[part])
        progress.update(min(start + TOKENIZED_AT_ONCE, len(texts)))
    progress.close()


def truncated(first: np.ndarray, second: np.ndarray | None, room: int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens stay of each text, int64 [n] from int64 [n]: `_truncate_seq_pair` of run_classifier.py,
    which takes from the end of the longer one, of the second when both are equal, until the two fit in `room`."""
    if second is None:
        return np.minimum(first, room), np.zeros_like(first)
    kept = np.minimum(second, np.maximum(room // 2, room - first))
    return np.minimum(first, room - kept), kept


def _joined_rows(
    first: _Ragged,
    first_length: np.ndarray,
    second: _Ragged | None,
    second_length: np.ndarray,
    tokenizer: Tokenizer,
) -> _Ragged:
    """[CLS] first [SEP] and, of pairs, second [SEP], cut to the given lengths."""
    lengths = first_length + 2 + (0 if second is None else second_length + 1)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    joined = np.full(int(ends[-1]), tokenizer.sep_id, np.int32)
    joined[starts] = tokenizer.cls_id
    parts = [(first, first_length, starts + 1)]
    if second is not None:
        parts.append((second, second_length, starts + 2 + first_length))
    for (tokens, token_lengths), kept, targets in parts:
        sources = np.cumsum(token_lengths) - token_lengths
        joined[_ranges(targets, kept)] = tokens[_ranges(sources, kept)]
    return joined, lengths


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start, start + 1, … of each start, as many as its length, one after another."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def _label_column(texts: Texts, labels: tuple[str, ...] | None) -> pa.Array:
    if labels is None:
        numbers = np.full(len(texts), np.nan) if texts.labels is None else np.asarray(texts.labels, np.float64)
        return pa.array(numbers, pa.float32())
    index = {label: number for number, label in enumerate(labels)}
    return pa.array(
        [-1] * len(texts) if texts.labels is None else [index[str(x)] for x in texts.labels], pa.int32()
    )
