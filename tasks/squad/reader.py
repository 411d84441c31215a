"""The reader of bert-squad. Without TensorFlow."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from distributed.rows import ragged
from ringbase.errors import shortened
from ringbase.settings import flat
from tasks.runs.rows.cache import Tables, with_facts
from tasks.runs.rows.reader import Reader
from tasks.runs.rows.texts import Tokenization, window_starts
from tasks.squad.reading import NO_PLACE, Examples, Question, Source, answer_characters, read
from tasks.squad.settings import WindowSettings

ANSWERS = ("start_position", "end_position")
# of a window
NUMBERS = ("question_tokens", *ANSWERS, "document_start", "paragraph", "question")


@dataclass(frozen=True)
class SpanReader(Reader[Examples]):
    """Questions and their contexts, which are cut into windows."""

    windows: WindowSettings = field(default_factory=WindowSettings)
    name = "squad"
    table = "windows"
    # increase when reading or cutting accepts or writes something else: old folders are not used
    version = 8

    @property
    def max_seq_length(self) -> int:
        return self.windows.max_seq_length

    def read(self, source: Source) -> Examples:
        return read(source, self.windows.version_2_with_negative)

    def key(self, source: Source, examples: Callable) -> object:
        return flat(self.windows), examples()

    def rows_of(self, examples: Examples) -> tuple[int, bool]:
        return len(examples.questions), False

    def tables(self, examples: Examples, tokenization: Tokenization) -> Tables:
        """Tokenizes questions and contexts and cuts the contexts into windows.

        A row of `windows` has `input_ids` ([CLS] question [SEP] window [SEP]), `question_tokens`
        (how many of them are of type 0), `start_position` and `end_position` (0 if the answer is
        not inside), `document_start` (the window's first token in the context), `paragraph` and
        `question` (their numbers); all int32. A row of `paragraphs` has `spans`, the start and end
        characters of each of its tokens, interleaved, and `context`, its text.
        """
        settings, tokenizer = self.windows, tokenization.tokenizer
        paragraphs, questions = examples.paragraphs, examples.questions
        encoded = tokenization.ids_and_spans(paragraphs, "tokenizing contexts")
        context_ids, spans = zip(*encoded, strict=True)
        texts = [question.text for question in questions]
        question_ids = tokenization.ids(texts, "tokenizing questions")
        separators = [tokenizer.sep_id] * tokenizer.separators
        most_asked = settings.max_seq_length - 3 - len(separators)
        most_asked = min(settings.max_query_length, most_asked)
        rows = []
        for number, question in enumerate(questions):
            place = question.paragraph
            asked = question_ids[number][:most_asked]
            head = np.concatenate([[tokenizer.cls_id], asked, separators]).astype(np.int32)
            answer = answer_tokens(question, paragraphs[place], spans[place])
            for window in self._windows(head, context_ids[place], answer):
                rows.append((*window, place, number))
        input_ids, *columns = zip(*rows, strict=True)
        windows = {"input_ids": ragged(input_ids, pa.int32())}
        for name, column in zip(NUMBERS, columns, strict=True):
            windows[name] = pa.array(column, pa.int32())
        interleaved = [spans_T2.reshape(-1) for spans_T2 in spans]
        notes = [f"{len(questions):,} questions, {len(rows):,} windows"]
        if examples.misplaced:
            names = shortened(examples.misplaced, 5)
            notes.append(f"left out, because the answer is not at answer_start: {names}")
        fit = tokenization.fit([*context_ids, *question_ids], [*paragraphs, *texts])
        of_paragraphs = {
            "spans": ragged(interleaved, pa.int32()),
            "context": pa.array(paragraphs, pa.large_string()),
        }
        tables = {"windows": windows, "paragraphs": of_paragraphs}
        return with_facts(tables, {"notes": notes, **fit})

    def _windows(
        self, head: np.ndarray, ids: np.ndarray, answer: tuple[int, int] | None
    ) -> Iterator[tuple]:
        """The input ids and the numbers of each window of a context, without the question's."""
        room = self.windows.max_seq_length - len(head) - 1
        for start in window_starts(len(ids), room, self.windows.doc_stride):
            window = ids[start : start + room]
            first = last = 0
            if answer and start <= answer[0] and answer[1] < start + len(window):
                shift = len(head) - start
                first = answer[0] + shift
                last = answer[1] + shift
            input_ids = np.concatenate([head, window, head[-1:]])
            yield input_ids, len(head), first, last, start


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
