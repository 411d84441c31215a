"""SQuAD's questions as rows: contexts cut into windows by Google's rules (google-research/bert `run_squad.py`)."""

import functools
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from bert.text.tokenizer import Tokenizer, check_unknown, unknown_share
from distributed.rows import ragged
from distributed.run import Run
from distributed.world import World
from ringbase.errors import shortened
from ringbase.hashing import digest, sha256
from tasks.cache import Prepared, Recipe, Tables, prepared, with_facts
from tasks.squad.reading import Examples, Question, Source, read, touched_words
from tasks.squad.settings import WindowSettings
from tasks.texts import parts

VERSION = 2  # increase when reading or cutting accepts or writes something else: old folders are not used
COLUMNS = ("input_ids", "question_tokens", "start_position", "end_position", "question", "document_start")


def open_windows(
    settings: WindowSettings, source: Source, tokenizer: Tokenizer, world: World, run: Run
) -> Prepared:
    """The tables `windows` and `paragraphs` of a source, as `tables` makes them, on every rank.

    Raises InputError: `read` does, or more than 10 % of the tokens are [UNK] without `allow_unknown`.
    """
    data = prepared(partial(recipe, settings, source, tokenizer, run), source.flag, world, run)
    facts = data.facts
    if facts["num_misplaced"]:
        run.say(
            f"warning: {source.path}: {facts['num_misplaced']} answers are not at their answer_start and are left "
            f"out: {facts['misplaced']}"
        )
    counts = f"{facts['questions']:,} questions, {len(data.tables['windows']):,} windows"
    run.say(f"{source.path}: {counts}, {facts['unknown_share']:.2%} [UNK]" + ("" if data.is_new else " (cached)"))
    check_unknown(facts["unknown_share"], source.path, tokenizer, settings.allow_unknown)
    return data


def recipe(settings: WindowSettings, source: Source, tokenizer: Tokenizer, run: Run) -> Recipe:
    """The key in the cache of a source's tables, and what makes them. A file with the same bytes is not parsed
    again."""
    load = functools.cache(lambda: read(source, settings.version_2_with_negative))
    file = Path(source.path).expanduser()
    content = content_of(load()) if source.split or not file.is_file() else sha256(file)
    reading = (source.is_training, settings.version_2_with_negative, source.limit)
    key = digest("squad", VERSION, tokenizer.digest, lengths_of(settings), reading, content)
    return key, lambda: tables(settings, load(), tokenizer, run)


def content_of(examples: Examples) -> list[object]:
    return [examples.paragraphs, examples.questions]


def lengths_of(settings: WindowSettings) -> tuple[int, int, int]:
    return settings.max_seq_length, settings.doc_stride, settings.max_query_length


def tables(settings: WindowSettings, examples: Examples, tokenizer: Tokenizer, run: Run) -> Tables:
    """Tokenizes questions and contexts and cuts the contexts into windows.

    A row of `windows` has `input_ids` ([CLS] question [SEP] window [SEP], int32), `question_tokens` (how many of
    them are of type 0), `start_position` and `end_position` (0 if the answer is not inside), `question` (its
    number), and `document_start` (the window's first token in the context). A row of `paragraphs` has `spans`, the
    start and end characters of each of its tokens, interleaved. The facts are the share of [UNK] among the tokens
    of contexts and questions, what `open_windows` prints, and the digest that checkpoints have of their data.
    """

    def encoded(texts: list[str], label: str) -> list[np.ndarray]:
        slices = parts(len(texts), f"tokenizing {label}", "text", run)
        return [ids for part in slices for ids in tokenizer.encode_ids(texts[part])]

    slices = parts(len(examples.paragraphs), "tokenizing contexts", "text", run)
    contexts = [tokenizer.encode(examples.paragraphs[part]) for part in slices]
    context_ids, context_spans = ([*itertools.chain(*column)] for column in zip(*contexts, strict=True))
    questions = examples.questions
    question_ids = encoded([question.text for question in questions], "questions")
    answer_ids = encoded([q.answers[0][0] if q.answers else "" for q in questions], "answers")
    rows: list[tuple] = []
    for number, question in enumerate(questions):
        ids, spans = context_ids[question.paragraph], context_spans[question.paragraph]
        answer = _answer_of(question, examples.paragraphs[question.paragraph], ids, spans, answer_ids[number])
        cut_ids = question_ids[number][: settings.max_query_length]
        rows += _windows_of(settings, tokenizer, number, cut_ids, ids, answer)
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    windows = {name: pa.array(columns[name], pa.int32()) for name in COLUMNS[1:]}
    windows = {"input_ids": ragged(columns["input_ids"], pa.int32())} | windows
    flat_spans = ragged([each.reshape(-1) for each in context_spans], pa.int32())
    facts = {
        # As version 0.1 made it: a run of its goes on.
        "digest": digest("squad windows", 1, tokenizer.digest, lengths_of(settings), content_of(examples)),
        "unknown_share": unknown_share([*context_ids, *question_ids], tokenizer.unk_id),
        "questions": len(questions),
        "num_misplaced": len(examples.misplaced),
        "misplaced": shortened(examples.misplaced, 5),
    }
    return with_facts({"windows": windows, "paragraphs": {"spans": flat_spans}}, facts)


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


def _answer_of(
    question: Question, context: str, ids: np.ndarray, spans: np.ndarray, answer_ids: np.ndarray
) -> tuple[int, int] | None:
    """The first and last token of a question's answer in its context; None without a valid answer.

    By the rules of run_squad.py (`_improve_answer_span`): within the words that the answer touches, the first
    place with the tokens of the answer's text; else all of these words.
    """
    text, start = question.answers[0] if question.answers else ("", -1)
    # Positions are checked for training only; in a file to predict they may be missing or wrong.
    if question.is_impossible or type(start) is not int or not 0 <= start < len(context):
        return None
    if start + len(text) > len(context):
        return None
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
