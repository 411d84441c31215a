"""SQuAD's questions as rows: contexts cut into windows by Google's rules (google-research/bert
`run_squad.py`)."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from distributed.rows import ragged
from ringbase.errors import shortened
from ringbase.files import digest, sha256
from ringbase.settings import flat
from tasks.runs.cache import Tables, with_facts
from tasks.runs.texts import Preparation, window_starts
from tasks.squad.reading import NO_PLACE, Examples, Question, Source, answer_characters
from tasks.squad.settings import WindowSettings

NUMBERS = ("question_tokens", "start_position", "end_position", "document_start", "question")
# increase when reading or cutting accepts or writes something else: old folders are not used
VERSION = 7


def key(settings: WindowSettings, source: Source, examples: Callable[[], Examples]) -> object:
    """All that the rows of a source depend on, besides the tokenizer."""
    file = Path(source.path).expanduser()
    if not source.split and file.is_file():
        content: object = sha256(file)  # a file with the same bytes is not parsed again
    else:
        content = [examples().paragraphs, examples().questions]
    return flat(settings), source.is_training, source.limit, content


def tables(settings: WindowSettings, examples: Examples, preparation: Preparation) -> Tables:
    """Tokenizes questions and contexts and cuts the contexts into windows.

    A row of `windows` has `input_ids` ([CLS] question [SEP] window [SEP]), `question_tokens` (how
    many of them are of type 0), `start_position` and `end_position` (0 if the answer is not
    inside), `question` (its number), and `document_start` (the window's first token in the
    context); all int32. A row of `paragraphs` has `spans`, the start and end characters of each of
    its tokens, interleaved.
    """
    tokenizer = preparation.tokenizer
    paragraphs, questions = examples.paragraphs, examples.questions
    contexts = preparation.ids_and_spans(paragraphs, "tokenizing contexts")
    texts = [question.text for question in questions]
    question_ids = preparation.ids(texts, "tokenizing questions")
    separators = [tokenizer.sep_id] * tokenizer.separators
    most_asked = settings.max_seq_length - 3 - len(separators)
    most_asked = min(settings.max_query_length, most_asked)
    rows = []
    for number, question in enumerate(questions):
        ids, spans = contexts[question.paragraph]
        asked = question_ids[number][:most_asked]
        head = np.concatenate([[tokenizer.cls_id], asked, separators]).astype(np.int32)
        answer = answer_tokens(question, paragraphs[question.paragraph], spans)
        room = settings.max_seq_length - len(head) - 1
        for start in window_starts(len(ids), room, settings.doc_stride):
            window = ids[start : start + room]
            positions = (0, 0)
            if answer and start <= answer[0] and answer[1] < start + len(window):
                shift = len(head) - start
                positions = answer[0] + shift, answer[1] + shift
            tokens = np.concatenate([head, window, head[-1:]])
            rows.append((tokens, len(head), *positions, start, number))
    input_ids, *columns = zip(*rows, strict=True)
    windows = {"input_ids": ragged(input_ids, pa.int32())}
    for name, column in zip(NUMBERS, columns, strict=True):
        windows[name] = pa.array(column, pa.int32())
    token_spans = ragged([spans.reshape(-1) for _, spans in contexts], pa.int32())
    notes = [f"{len(questions):,} questions, {len(rows):,} windows"]
    if examples.misplaced:
        names = shortened(examples.misplaced, 5)
        notes.append(f"left out, because the answer is not at answer_start: {names}")
    lengths = settings.max_seq_length, settings.doc_stride, settings.max_query_length
    content = digest("squad windows", VERSION, tokenizer.digest, lengths, [paragraphs, questions])
    context_ids = [ids for ids, _ in contexts]
    fit = preparation.fit([*context_ids, *question_ids], [*paragraphs, *texts])
    facts = {"digest": content, "notes": notes, **fit}
    return with_facts({"windows": windows, "paragraphs": {"spans": token_spans}}, facts)


def answer_tokens(question: Question, context: str, spans: np.ndarray) -> tuple[int, int] | None:
    """The first and last token of a question's answer in its context; None without an answer to
    train on.

    They are the tokens that overlap the answer's characters. run_squad.py (`_improve_answer_span`)
    searches the words around `answer_start` for the answer's tokens instead, which needs blanks
    between words.
    """
    text, place = question.answers[0] if question.answers else ("", NO_PLACE)
    if question.is_impossible or place == NO_PLACE:
        return None
    characters = answer_characters(text, place, context)
    assert characters is not None  # `read` has left out such questions
    start, stop = characters
    tokens = np.flatnonzero((spans[:, 0] < stop) & (spans[:, 1] > start))
    if len(tokens):
        return int(tokens[0]), int(tokens[-1])
    # The tokenizer drops these characters (control characters): the nearest token before them.
    before = np.flatnonzero(spans[:, 1] <= start)
    nearest = int(before[-1]) if len(before) else 0
    return nearest, nearest
