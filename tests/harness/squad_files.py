"""Small SQuAD files and their windows, for the tests of SQuAD's data."""

import functools
import json
import random

from harness.google import google_s_features
from harness.texts import ALL_WORDS, FILLING, WORDS

from distributed.world import World
from tasks.runs.rows.cache import in_memory
from tasks.runs.rows.texts import Tokenization
from tasks.squad.reading import Source, read
from tasks.squad.settings import QuestionSettings, WindowSettings
from tasks.squad.task import SpanTask

# (context, question, answer, answer_start)
GOOD = [("the cat sat", "who?", "cat", 4), ("a dog ran", "who?", "dog", 2)]
SMALL = WindowSettings(max_seq_length=32, doc_stride=9, max_query_length=9)


def make_entries(number, seed):
    """Contexts of 12 to 40 words of which one is of the kind that the question asks for: its
    answer."""
    chance = random.Random(seed)
    entries = []
    for _ in range(number):
        kind = chance.choice(list(WORDS))
        others = [word for word in ALL_WORDS if word not in WORDS[kind]] + FILLING
        words = chance.choices(others, k=chance.randint(11, 39))
        before = chance.randint(0, len(words))
        answer = chance.choice(WORDS[kind])
        start = sum(len(word) + 1 for word in words[:before])
        context = " ".join([*words[:before], answer, *words[before:]])
        entries.append((context, f"the {kind}", answer, start))
    return entries


def squad_json(entries, **others):
    """SQuAD data with one paragraph and one question per entry; `others` is added to each
    question."""
    paragraphs = []
    for number, (context, question, text, start) in enumerate(entries):
        answers = [{"text": text, "answer_start": start}]
        asked = {"id": f"q{number}", "question": question, "answers": answers} | others
        paragraphs.append({"context": context, "qas": [asked]})
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}


def write_squad(path, entries, **others):
    """A file of `squad_json`."""
    path.write_text(json.dumps(squad_json(entries, **others)))
    return path


def source_of(path, is_training=True, limit=None):
    kind = "train" if is_training else "predict"
    values = {f"{kind}_file": str(path), f"max_{kind}_examples": limit}
    return Source(QuestionSettings(**values), kind)


def read_file(path, is_training=True, allow_impossible=False, limit=None):
    return read(source_of(path, is_training, limit), allow_impossible)


def open_windows(settings, examples, tokenizer, run):
    tokenization = Tokenization(World(), run, tokenizer)
    return in_memory(SpanTask(settings).tables(examples, tokenization)).tables


def compare_windows(settings, examples, tokenizer, run, step=1):
    """Compares the windows of every `step`-th question with Google's, all but the places of
    answers.

    Returns the number of all windows; and for each question whose answer Google labels elsewhere
    the answer, Google's text and ours ("": none in this window).
    """
    tables = open_windows(settings, examples, tokenizer, run)
    rows = [row for row in tables["windows"].table.to_pylist() if row["question"] % step == 0]
    token_spans = tables["paragraphs"].table["spans"].to_pylist()

    @functools.cache
    def tokenize(text):
        return tokenizer.pieces(tokenizer.encode_ids([text])[0])

    left, differences = iter(rows), dict[int, tuple[str, str, str]]()
    for number, question in [*enumerate(examples.questions)][::step]:
        context, spans = examples.paragraphs[question.paragraph], token_spans[question.paragraph]
        answer = question.answers[0]
        for tokens, types, *google_s in google_s_features(
            tokenize, context, question.text, answer, settings
        ):
            row = next(left)
            assert (row["question"], tokenizer.pieces(row["input_ids"])) == (number, tokens)
            assert row["question_tokens"] == types.index(1)
            own = [row["start_position"], row["end_position"]]
            shift = row["document_start"] - row["question_tokens"]
            texts = [
                "" if not b else context[spans[2 * (a + shift)] : spans[2 * (b + shift) + 1]]
                for a, b in (google_s, own)
            ]
            if own != google_s:
                differences.setdefault(number, (answer[0], *texts))
    assert next(left, None) is None
    return tables["windows"].table.num_rows, [*differences.values()]
