"""SQuAD data: read it, check it, cut it into windows by Google's rules (google-research/bert `run_squad.py`).

Reads SQuAD v1.1 and v2.0 JSON (and KorQuAD 1.0, which has the format), plain or `.gz`, and hub data sets.
"""

import contextlib
import gzip
import itertools
import json
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from bert.text.tokenizer import Tokenizer, unknown_share
from distributed.rows import Rows, metadata_of, ragged, write_rows
from distributed.run import Run
from ringbert.errors import InputError
from ringbert.files import build_folder
from ringbert.hashing import digest

T = TypeVar("T")
WINDOWS_VERSION = 1  # bump when the code below changes what it reads, refuses or writes: then no old cache is used
WHITESPACE = " \t\r\n\u202f"  # what run_squad.py splits words at
MOST_SKIPPED_SHARE = 0.05
MOST_UNKNOWN_SHARE = 0.10
TOKENIZED_AT_ONCE = 4096


@dataclass(frozen=True)
class Question:
    """One question. `answers` holds (text, start in the context); none when it is impossible or unlabelled."""

    id: str
    text: str
    paragraph: int
    answers: tuple[tuple[str, int], ...]
    is_impossible: bool = False


@dataclass(frozen=True)
class Examples:
    """The questions of a file and the contexts that they point into."""

    source: str
    version: str
    paragraphs: list[str]
    questions: list[Question]
    skipped: tuple[str, ...] = ()

    @property
    def references(self) -> dict[str, list[str]]:
        """Question id -> the texts of its answers, for scoring."""
        return {question.id: [text for text, _ in question.answers] for question in self.questions}

    @property
    def is_labelled(self) -> bool:
        return any(question.answers or question.is_impossible for question in self.questions)


def read(path: str, flag: str, training: bool, allow_impossible: bool, most: int | None = None) -> Examples:
    """Reads and checks a SQuAD file.

    Args:
      flag: the flag that named the file, for messages.
      training: check the place of each answer too, and leave out questions whose answer is not at its place.
      allow_impossible: whether questions without an answer may occur (`--version_2_with_negative`).
      most: keep only this many questions.
    Raises InputError: file missing, damaged or not SQuAD; an empty context or question; an answer out of range;
      an impossible question that is not allowed; more than 5 % of answers not at their place.
    """
    data = _read_json(path, flag)
    paragraphs: list[str] = []
    questions: list[Question] = []
    where = f"{flag} {path}"
    try:
        for entry in data["data"]:
            for paragraph in entry["paragraphs"]:
                paragraphs.append(paragraph["context"])
                for qa in paragraph["qas"]:
                    answers = tuple((a["text"], a["answer_start"]) for a in qa.get("answers") or ())
                    impossible = bool(qa.get("is_impossible", False))
                    questions.append(
                        Question(str(qa["id"]), qa["question"], len(paragraphs) - 1, answers, impossible)
                    )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{where}: no SQuAD file: {_lacking(error)} in question {len(questions) + 1}") from error
    questions = questions[:most]
    used = questions[-1].paragraph + 1 if questions else 0
    examples = Examples(path, str(data.get("version", "")), paragraphs[:used], questions)
    return _checked(examples, where, training, allow_impossible)


def read_hub(name: str, split: str, training: bool, allow_impossible: bool, most: int | None = None) -> Examples:
    """The same from a hub data set (or a local folder that `datasets.load_dataset` reads) with SQuAD's columns."""
    import datasets

    where = f"--dataset_name {name} ({split})"
    try:
        table = datasets.load_dataset(name, split=split)
    except Exception as error:  # the hub's errors have no common class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{where}: {reason}") from error
    lacking = {"id", "question", "context", "answers"} - set(table.column_names)
    if lacking:
        raise InputError(f"{where}: column {', '.join(sorted(lacking))} is missing")
    numbers: dict[str, int] = {}
    questions = []
    for row in itertools.islice(table, most):
        paragraph = numbers.setdefault(row["context"], len(numbers))
        answers = tuple(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True))
        questions.append(
            Question(str(row["id"]), row["question"], paragraph, answers, allow_impossible and not answers)
        )
    return _checked(Examples(name, "", list(numbers), questions), where, training, allow_impossible)


def windows(
    examples: Examples,
    tokenizer: Tokenizer,
    cache_dir: Path,
    *,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    allow_unknown: bool,
    run: Run,
) -> str:
    """The folder's name below `cache_dir` that holds `windows.arrow` and `paragraphs.arrow`; built unless there.

    A row of windows: `input_ids` ([CLS] question [SEP] window [SEP], int32), `question_tokens` (how many of
    them are of type 0), `start_position` and `end_position` (0 where the answer is not inside), `question`
    (its number), `document_start` (the window's first token in the context). A row of paragraphs: `spans`, the
    start and end characters of each of its tokens, interleaved.

    Raises InputError: more than 10 % of the tokens are [UNK] and not `allow_unknown`.
    """
    content = [
        examples.paragraphs,
        [(q.id, q.text, q.paragraph, q.answers, q.is_impossible) for q in examples.questions],
    ]
    lengths = (max_seq_length, doc_stride, max_query_length)
    key = digest("squad windows", WINDOWS_VERSION, tokenizer.digest, lengths, content)
    folder = cache_dir / key
    fresh = build_folder(folder, lambda folder: _build(folder, examples, tokenizer, *lengths, run))
    _tell(examples.source, len(examples.questions), examples.skipped, folder, tokenizer, allow_unknown, fresh, run)
    return key


def windows_of_file(
    path: str,
    flag: str,
    training: bool,
    allow_impossible: bool,
    most: int | None,
    tokenizer: Tokenizer,
    cache_dir: Path,
    *,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    allow_unknown: bool,
    run: Run,
) -> str:
    """`windows` of what `read` reads. A file that was prepared before, byte for byte, is not parsed again."""
    lengths = {"max_seq_length": max_seq_length, "doc_stride": doc_stride, "max_query_length": max_query_length}
    file, known = Path(path).expanduser(), None
    if file.is_file():
        settings = (WINDOWS_VERSION, tokenizer.digest, lengths, training, allow_impossible, most)
        known = cache_dir / f"{digest('squad file', settings, file)}.json"
        facts = _read_facts(known)
        if facts and (cache_dir / facts["windows"]).is_dir():
            folder = cache_dir / facts["windows"]
            _tell(path, facts["questions"], facts["skipped"], folder, tokenizer, allow_unknown, False, run)
            return facts["windows"]
    examples = read(path, flag, training, allow_impossible, most)
    key = windows(examples, tokenizer, cache_dir, **lengths, allow_unknown=allow_unknown, run=run)
    if known:
        facts = {"windows": key, "questions": len(examples.questions), "skipped": examples.skipped}
        temporary = known.with_name(f".{known.name}.{os.getpid()}.tmp")
        with contextlib.suppress(OSError):  # a cache that is read only: the next start parses the file again
            temporary.write_text(json.dumps(facts))
            temporary.replace(known)
    return key


def _read_facts(path: Path) -> dict | None:
    """What `windows_of_file` wrote of a file; None when it is not there, or damaged."""
    try:
        facts = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and {"windows", "questions", "skipped"} <= facts.keys() else None


def _tell(
    source: str, questions: int, skipped: Sequence[str], folder: Path, tokenizer: Tokenizer, allow_unknown: bool,
    fresh: bool, run: Run,
) -> None:  # fmt: skip
    """Says what the windows hold. Raises InputError: too many [UNK]."""
    if skipped:
        run.say(
            f"warning: {len(skipped)} answers of {source} are not at their answer_start and are left out: "
            + ", ".join(skipped[:5])
        )
    rows = Rows.open(folder / "windows.arrow")
    unknown = metadata_of(rows)["unknown_share"]
    run.say(
        f"{source}: {questions:,} questions, {len(rows):,} windows, {unknown:.2%} [UNK]"
        + ("" if fresh else " (cached)")
    )
    if unknown > MOST_UNKNOWN_SHARE and not allow_unknown:
        raise InputError(
            f"{source}: {unknown:.1%} of the tokens are [UNK] with {tokenizer.source}, lower case "
            f"{tokenizer.lower_case}: check --vocab_file and --do_lower_case, or give --allow_unknown"
        )


def _build(
    folder: Path,
    examples: Examples,
    tokenizer: Tokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    run: Run,
) -> None:
    questions = [question.text for question in examples.questions]
    answers = [question.answers[0][0] if question.answers else "" for question in examples.questions]
    encoded = _in_parts(tokenizer.encode, examples.paragraphs, "tokenizing contexts", run)
    context_ids, context_spans = ([*itertools.chain(*parts)] for parts in zip(*encoded, strict=True))
    question_ids = [*itertools.chain(*_in_parts(tokenizer.encode_ids, questions, "tokenizing questions", run))]
    answer_ids = [*itertools.chain(*_in_parts(tokenizer.encode_ids, answers, "tokenizing answers", run))]
    columns: dict[str, list] = {
        name: [] for name in ("ids", "question_tokens", "start", "end", "question", "document")
    }
    for number, question in enumerate(examples.questions):
        ids, spans = context_ids[question.paragraph], context_spans[question.paragraph]
        asked = question_ids[number][:max_query_length]
        room = max_seq_length - len(asked) - 3
        if room < 1:
            raise InputError(
                f"--max_seq_length {max_seq_length} leaves no room beside a question of {len(asked)} tokens"
            )
        first, last = -1, -1
        context = examples.paragraphs[question.paragraph]
        text, place = question.answers[0] if question.answers else ("", -1)
        # Places were checked for training only; a file to predict may have none, or wrong ones.
        if isinstance(place, int) and 0 <= place < len(context) and not question.is_impossible:
            first, last = answer_tokens(context, text, place, ids, spans, answer_ids[number])
        head = np.concatenate([[tokenizer.cls_id], asked, [tokenizer.sep_id]]).astype(np.int32)
        for start in window_starts(len(ids), room, doc_stride):
            stop = min(start + room, len(ids))
            inside = start <= first and last < stop and first >= 0
            columns["ids"].append(np.concatenate([head, ids[start:stop], [tokenizer.sep_id]]).astype(np.int32))
            columns["question_tokens"].append(len(head))
            columns["start"].append(first - start + len(head) if inside else 0)
            columns["end"].append(last - start + len(head) if inside else 0)
            columns["question"].append(number)
            columns["document"].append(start)
    share = unknown_share([*context_ids, *question_ids], tokenizer.unk_id)
    numbers = {
        "question_tokens": "question_tokens", "start_position": "start", "end_position": "end",
        "question": "question", "document_start": "document",
    }  # fmt: skip
    write_rows(
        folder / "windows.arrow",
        {"input_ids": ragged(columns["ids"], pa.int32())}
        | {name: pa.array(columns[column], pa.int32()) for name, column in numbers.items()},
        {"unknown_share": share},
    )
    flat_spans = [spans.reshape(-1) for spans in context_spans]
    write_rows(folder / "paragraphs.arrow", {"spans": ragged(flat_spans, pa.int32())})


def window_starts(num_tokens: int, room: int, doc_stride: int) -> list[int]:
    """First tokens of the windows over a context: one each `doc_stride` tokens, until one reaches the end."""
    starts = [0]
    while starts[-1] + room < num_tokens:
        starts.append(starts[-1] + min(room, doc_stride))
    return starts


def answer_tokens(
    context: str, text: str, start: int, ids: np.ndarray, spans: np.ndarray, answer_ids: np.ndarray
) -> tuple[int, int]:
    """First and last token of an answer, by run_squad.py: the words that it touches, then, within them, the first
    place where the tokens are those of the answer's text alone (`_improve_answer_span`)."""
    word_start, word_stop = _touched_words(context, start, start + len(text))
    first = int(np.searchsorted(spans[:, 0], word_start))
    last = int(np.searchsorted(spans[:, 0], word_stop)) - 1
    if last < first:  # the words have no token (control characters): the nearest one
        first = last = min(max(last, 0), len(spans) - 1)
    length = len(answer_ids)
    for begin in range(first, last - length + 2):
        if length and np.array_equal(ids[begin : begin + length], answer_ids):
            return begin, begin + length - 1
    return first, last


def _touched_words(context: str, start: int, stop: int) -> tuple[int, int]:
    """Start and end of the words that these characters belong to; white space belongs to the word before it."""
    while start > 0 and context[start] in WHITESPACE:
        start -= 1
    while stop > start + 1 and context[stop - 1] in WHITESPACE:
        stop -= 1
    while start > 0 and context[start - 1] not in WHITESPACE:
        start -= 1
    while stop < len(context) and context[stop] not in WHITESPACE:
        stop += 1
    return start, stop


def _in_parts(encode: Callable[[list[str]], T], texts: list[str], label: str, run: Run) -> list[T]:
    """What `encode` makes of each part of the texts, with a progress bar."""
    found = []
    progress = run.progress(len(texts), label, "text")
    for start in range(0, len(texts), TOKENIZED_AT_ONCE):
        found.append(encode(texts[start : start + TOKENIZED_AT_ONCE]))
        progress.update(min(start + TOKENIZED_AT_ONCE, len(texts)))
    progress.close()
    return found


def _read_json(path: str, flag: str) -> dict:
    file = Path(path).expanduser()
    try:
        raw = file.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
        data = json.loads(text)
    except FileNotFoundError:
        raise InputError(f"{flag} {path}: no such file") from None
    except OSError as error:
        raise InputError(f"{flag} {path}: {error.strerror or error}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{flag} {path}: truncated or damaged gzip file ({error})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{flag} {path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{flag} {path}: truncated or not JSON ({error.msg} at character {error.pos})") from error
    if not isinstance(data, dict) or not isinstance(data.get("data"), list):
        raise InputError(f'{flag} {path}: no SQuAD file: it has no list "data" at its top level')
    return data


def _lacking(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else f"an entry of another type ({error})"


def _checked(examples: Examples, where: str, training: bool, allow_impossible: bool) -> Examples:
    kept, skipped, seen = [], [], set()
    if not examples.questions:
        raise InputError(f"{where}: holds no question")
    for question in examples.questions:
        context = examples.paragraphs[question.paragraph]
        this = f"{where}: question {question.id}"
        if not isinstance(context, str) or not isinstance(question.text, str):
            raise InputError(f"{this}: context or question is no text")
        if not (is_unicode(context) and is_unicode(question.text)):
            raise InputError(f"{this}: context or question holds half a surrogate pair, which is no Unicode text")
        if not context.strip(WHITESPACE):
            raise InputError(f"{this} has an empty context")
        if not question.text.strip(WHITESPACE):
            raise InputError(f"{this} is empty")
        if not all(isinstance(text, str) for text, _ in question.answers):
            raise InputError(f"{this}: an answer has no text")
        if question.id in seen:
            raise InputError(f"{this} occurs twice: ids must be unique, predictions are written under them")
        seen.add(question.id)
        if question.is_impossible and not allow_impossible:
            raise InputError(f"{this} is_impossible: SQuAD v2.0 data needs --version_2_with_negative")
        if training and not question.is_impossible:
            if not question.answers:
                raise InputError(
                    f"{this} has no answer to train on"
                    + ("" if allow_impossible else "; SQuAD v2.0 data needs --version_2_with_negative")
                )
            if not _answer_is_there(context, *question.answers[0], this):
                skipped.append(question.id)
                continue
        kept.append(question)
    unanswered = [question.id for question in kept if not question.answers]
    if not training and not allow_impossible and 0 < len(unanswered) < len(kept):
        raise InputError(
            f"{where}: question {unanswered[0]} has no answer and others have: SQuAD v2.0 data needs "
            "--version_2_with_negative"
        )
    if len(skipped) > MOST_SKIPPED_SHARE * len(examples.questions):
        raise InputError(
            f"{where}: {len(skipped)} of {len(examples.questions)} answers are not at their answer_start "
            f"(first: {', '.join(skipped[:5])}); were the contexts changed after the answers were marked?"
        )
    return Examples(examples.source, examples.version, examples.paragraphs, kept, tuple(skipped))


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: JSON may hold lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _answer_is_there(context: str, text: str, start: object, this: str) -> bool:
    """Whether the words at `start` contain the answer's words. Raises InputError for a place out of range."""
    if not isinstance(start, int) or not text.strip(WHITESPACE):
        raise InputError(f"{this}: its answer has an empty text or no integer answer_start")
    if start < 0 or start + len(text) > len(context):
        raise InputError(
            f"{this}: answer_start {start} with {len(text)} characters reaches past the end of its "
            f"{len(context)}-character context"
        )
    begin, stop = _touched_words(context, start, start + len(text))
    return " ".join(text.split()) in " ".join(context[begin:stop].split())
