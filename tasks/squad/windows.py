"""SQuAD's questions as rows: contexts cut into windows by Google's rules (google-research/bert `run_squad.py`)."""

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from bert.text.tokenizer import Tokenizer, check_unknown, unknown_share
from distributed.rows import Rows, metadata_of, ragged, write_rows
from distributed.run import Run
from ringbase.errors import InputError, shortened
from ringbase.files import write_json
from ringbase.hashing import digest
from ringbase.json_files import read_json
from tasks import cache
from tasks.squad.reading import Examples, Question, Source, read, touched_words
from tasks.squad.settings import WindowSettings
from tasks.texts import parts

WINDOWS_VERSION = 1  # increase when reading or cutting accepts or writes something else: old caches are not used
COLUMNS = ("input_ids", "question_tokens", "start_position", "end_position", "question", "document_start")


def prepare(settings: WindowSettings, source: Source, tokenizer: Tokenizer, cache_dir: Path, run: Run) -> str:
    """Reads the questions of a source and returns their `windows`. A file with the same bytes is not parsed again.

    Raises InputError as `read` and `windows` do.
    """
    path = _record_path(settings, source, tokenizer, cache_dir)
    record = path and _read_record(path)
    if record and cache.holds(cache_dir / record.windows, run):
        _announce(settings, source, record, tokenizer, cache_dir, run, "(cached)")
        return record.windows
    examples = read(source, settings.version_2_with_negative)
    key = windows(settings, examples, tokenizer, cache_dir, run)
    if path:
        record = _Record(key, len(examples.questions), examples.misplaced)
        with contextlib.suppress(OSError):  # with a read-only cache the next start parses the file again
            write_json(path, record._asdict(), indent=None, sync=False)
    return key


def windows(settings: WindowSettings, examples: Examples, tokenizer: Tokenizer, cache_dir: Path, run: Run) -> str:
    """The name of the folder in `cache_dir` that holds `windows.arrow` and `paragraphs.arrow`. Builds the folder
    if it does not exist.

    A row of windows has `input_ids` ([CLS] question [SEP] window [SEP], int32), `question_tokens` (how many of
    them are of type 0), `start_position` and `end_position` (0 if the answer is not inside), `question` (its
    number), and `document_start` (the window's first token in the context). A row of paragraphs has `spans`, the
    start and end characters of each of its tokens, interleaved.

    Raises InputError: more than 10 % of the tokens are [UNK] without `allow_unknown`.
    """
    content = [
        examples.paragraphs,
        [(q.id, q.text, q.paragraph, q.answers, q.is_impossible) for q in examples.questions],
    ]
    lengths = (settings.max_seq_length, settings.doc_stride, settings.max_query_length)
    key = digest("squad windows", WINDOWS_VERSION, tokenizer.digest, lengths, content)
    is_new = cache.build(cache_dir / key, lambda folder: _build(folder, settings, examples, tokenizer, run), run)
    record = _Record(key, len(examples.questions), examples.misplaced)
    _announce(settings, examples.source, record, tokenizer, cache_dir, run, "" if is_new else "(cached)")
    return key


class _Record(NamedTuple):
    """What the cache knows about a source: the folder's name, the number of questions, the ids of those left
    out."""

    windows: str
    questions: int
    skipped: Sequence[str]


def _record_path(settings: WindowSettings, source: Source, tokenizer: Tokenizer, cache_dir: Path) -> Path | None:
    """The file that holds the record of a source; None if the source is not a file."""
    file = Path(source.path).expanduser()
    if source.split or not file.is_file():
        return None
    lengths = {name: getattr(settings, name) for name in ("max_seq_length", "doc_stride", "max_query_length")}
    reading = (source.is_training, settings.version_2_with_negative, source.limit)
    return cache_dir / f"{digest('squad file', (WINDOWS_VERSION, tokenizer.digest, lengths, *reading), file)}.json"


def _read_record(path: Path) -> _Record | None:
    """The record in a file; None if it is missing or damaged."""
    try:
        record = _Record(**read_json(path))
    except (InputError, TypeError):
        return None
    is_folder_name = isinstance(record.windows, str) and re.fullmatch("[0-9a-f]{24}", record.windows)
    skipped = record.skipped
    is_of_types = (
        isinstance(record.questions, int) and isinstance(skipped, list) and set(map(type, skipped)) <= {str}
    )
    return record if is_folder_name and is_of_types else None


def _announce(
    settings: WindowSettings,
    source: Source,
    record: _Record,
    tokenizer: Tokenizer,
    cache_dir: Path,
    run: Run,
    note: str,
) -> None:
    """Prints the numbers of questions and windows. Raises InputError: too many tokens are [UNK]."""
    if record.skipped:
        run.say(
            f"warning: {source.path}: {len(record.skipped)} answers are not at their answer_start and are left "
            f"out: {shortened(record.skipped, 5)}"
        )
    rows = Rows.open(cache_dir / record.windows / "windows.arrow")
    unknown = metadata_of(rows)["unknown_share"]
    run.say(
        f"{source.path}: {record.questions:,} questions, {len(rows):,} windows, {unknown:.2%} [UNK] {note}".strip()
    )
    check_unknown(unknown, source.path, tokenizer, settings.allow_unknown)


class Cut(NamedTuple):
    """Questions as rows: columns of the windows and of the paragraphs, as `windows` describes them, and the share
    of [UNK] among the tokens of contexts and questions."""

    windows: dict[str, pa.Array]
    paragraphs: dict[str, pa.Array]
    unknown_share: float


def cut(settings: WindowSettings, examples: Examples, tokenizer: Tokenizer, run: Run) -> Cut:
    """Tokenizes the questions and contexts and cuts the contexts into windows; writes nothing."""

    def tokenized(texts: list[str], label: str) -> list[np.ndarray]:
        slices = parts(len(texts), f"tokenizing {label}", "text", run)
        return [ids for part in slices for ids in tokenizer.encode_ids(texts[part])]

    slices = parts(len(examples.paragraphs), "tokenizing contexts", "text", run)
    encoded = [tokenizer.encode(examples.paragraphs[part]) for part in slices]
    context_ids, context_spans = ([*itertools.chain(*column)] for column in zip(*encoded, strict=True))
    questions = examples.questions
    question_ids = tokenized([question.text for question in questions], "questions")
    answer_ids = tokenized([q.answers[0][0] if q.answers else "" for q in questions], "answers")
    rows: list[tuple] = []
    for number, question in enumerate(questions):
        ids, spans = context_ids[question.paragraph], context_spans[question.paragraph]
        answer = _answer_of(question, examples.paragraphs[question.paragraph], ids, spans, answer_ids[number])
        shortened_ids = question_ids[number][: settings.max_query_length]
        rows += _windows_of(settings, tokenizer, number, shortened_ids, ids, answer)
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    arrays = {name: pa.array(columns[name], pa.int32()) for name in COLUMNS[1:]}
    flat_spans = [spans.reshape(-1) for spans in context_spans]
    return Cut(
        {"input_ids": ragged(columns["input_ids"], pa.int32())} | arrays,
        {"spans": ragged(flat_spans, pa.int32())},
        unknown_share([*context_ids, *question_ids], tokenizer.unk_id),
    )


def _build(folder: Path, settings: WindowSettings, examples: Examples, tokenizer: Tokenizer, run: Run) -> None:
    made = cut(settings, examples, tokenizer, run)
    write_rows(folder / "windows.arrow", made.windows, {"unknown_share": made.unknown_share})
    write_rows(folder / "paragraphs.arrow", made.paragraphs)


def _answer_of(
    question: Question, context: str, ids: np.ndarray, spans: np.ndarray, answer_ids: np.ndarray
) -> tuple[int, int] | None:
    """The first and last token of a question's answer in its context; None without a valid answer."""
    text, place = question.answers[0] if question.answers else ("", -1)
    # Positions are checked for training only; in a file to predict they may be missing or wrong.
    if question.is_impossible or type(place) is not int or not 0 <= place < len(context):
        return None
    if place + len(text) > len(context):
        return None
    return answer_tokens(context, text, place, ids, spans, answer_ids)


def _windows_of(
    settings: WindowSettings,
    tokenizer: Tokenizer,
    number: int,
    question_ids: np.ndarray,
    context_ids: np.ndarray,
    answer: tuple[int, int] | None,
) -> Iterator[tuple[np.ndarray, int, int, int, int, int]]:
    """The windows of question `number` over its context, each as the values of `COLUMNS`."""
    room = settings.max_seq_length - len(question_ids) - 3
    cls, sep = np.array([[tokenizer.cls_id], [tokenizer.sep_id]], np.int32)
    head = np.concatenate([cls, question_ids, sep])
    for start in window_starts(len(context_ids), room, settings.doc_stride):
        stop = min(start + room, len(context_ids))
        positions = (0, 0)
        if answer and start <= answer[0] and answer[1] < stop:
            positions = (answer[0] - start + len(head), answer[1] - start + len(head))
        yield np.concatenate([head, context_ids[start:stop], sep]), len(head), *positions, number, start


def window_starts(num_tokens: int, room: int, doc_stride: int) -> list[int]:
    """The first tokens of the windows over a context: one every `doc_stride` tokens, until a window reaches the
    end."""
    starts = [0]
    while starts[-1] + room < num_tokens:
        starts.append(starts[-1] + min(room, doc_stride))
    return starts


def answer_tokens(
    context: str, text: str, start: int, ids: np.ndarray, spans: np.ndarray, answer_ids: np.ndarray
) -> tuple[int, int]:
    """The first and last token of an answer, by the rules of run_squad.py (`_improve_answer_span`): within the
    words that the answer touches, the first place with the tokens of the answer's text; else all of these
    words."""
    word_start, word_stop = touched_words(context, start, start + len(text))
    first = int(np.searchsorted(spans[:, 0], word_start))
    last = int(np.searchsorted(spans[:, 0], word_stop)) - 1
    if last < first:  # the words have no token (control characters): take the nearest
        first = last = min(max(last, 0), len(spans) - 1)
    length = len(answer_ids)
    for place in range(first, last - length + 2):
        if length and np.array_equal(ids[place : place + length], answer_ids):
            return place, place + length - 1
    return first, last
