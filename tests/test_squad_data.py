"""SQuAD files and their windows against google-research/bert `run_squad.py`, written out below by its rules."""

import dataclasses
import functools
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from real_data import real

from bert.text import tokenizer
from distributed.rows import Rows
from ringbert.errors import InputError
from tasks.squad import windows as squad_data

ROOT = Path(__file__).resolve().parents[1]
LENGTHS = {"max_seq_length": 384, "doc_stride": 128, "max_query_length": 64}


@pytest.fixture(scope="module")
def uncased():
    return tokenizer.load(str(real("vocab/bert-base-uncased.txt")))


@pytest.fixture
def small(tmp_path):
    """A tokenizer of few words: no real data needed."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *"?.,'()"]
    words += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"] + [*"0123456789"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return tokenizer.load(str(tmp_path / "vocab.txt"))


# -- google-research/bert run_squad.py, read_squad_examples and convert_examples_to_features ----------------------


def google_s_words(text: str) -> tuple[list[str], list[int]]:
    """doc_tokens and char_to_word_offset."""
    words, word_of_char, after_space = [], [], True
    for c in text:
        if c == " " or c == "\t" or c == "\r" or c == "\n" or ord(c) == 0x202F:
            after_space = True
        else:
            if after_space:
                words.append(c)
            else:
                words[-1] += c
            after_space = False
        word_of_char.append(len(words) - 1)
    return words, word_of_char


def google_s_improvement(doc_tokens, start, end, answer_tokens):
    wanted = " ".join(answer_tokens)
    for new_start in range(start, end + 1):
        for new_end in range(end, new_start - 1, -1):
            if " ".join(doc_tokens[new_start : new_end + 1]) == wanted:
                return new_start, new_end
    return start, end


def google_s_features(tokenize, context, question, answer, *, max_seq_length, doc_stride, max_query_length):
    """[(tokens, token types, start_position, end_position)] of one question; `answer` is (text, start)."""
    words, word_of_char = google_s_words(context)
    text, offset = answer
    start_word, end_word = word_of_char[offset], word_of_char[offset + len(text) - 1]
    query_tokens = tokenize(question)[:max_query_length]
    first_token_of_word, all_doc_tokens = [], []
    for word in words:
        first_token_of_word.append(len(all_doc_tokens))
        all_doc_tokens += tokenize(word)
    tok_start = first_token_of_word[start_word]
    first_token_of_word.append(len(all_doc_tokens))
    tok_end = first_token_of_word[end_word + 1] - 1
    tok_start, tok_end = google_s_improvement(all_doc_tokens, tok_start, tok_end, tokenize(text))
    room = max_seq_length - len(query_tokens) - 3
    features, start_offset = [], 0
    while start_offset < len(all_doc_tokens):
        length = min(len(all_doc_tokens) - start_offset, room)
        tokens = ["[CLS]", *query_tokens, "[SEP]"]
        types = [0] * len(tokens)
        for i in range(length):
            tokens.append(all_doc_tokens[start_offset + i])
            types.append(1)
        tokens.append("[SEP]")
        types.append(1)
        doc_start, doc_end = start_offset, start_offset + length - 1
        if not (tok_start >= doc_start and tok_end <= doc_end):
            positions = (0, 0)
        else:
            doc_offset = len(query_tokens) + 2
            positions = (tok_start - doc_start + doc_offset, tok_end - doc_start + doc_offset)
        features.append((tokens, types, *positions))
        if start_offset + length == len(all_doc_tokens):
            break
        start_offset += min(length, doc_stride)
    return features


def compare(examples, ours, folder, **lengths) -> int:
    """Every window of these questions against Google's; the number of windows."""
    vocabulary = ours._fast.get_vocab()

    def tokenize(text):
        return ours._fast.convert_ids_to_tokens(ours.encode([text])[0][0].tolist())

    rows = Rows.open(folder / "windows.arrow").table.to_pylist()
    at = 0
    for number, question in enumerate(examples.questions):
        context = examples.paragraphs[question.paragraph]
        for tokens, types, start, end in google_s_features(
            tokenize, context, question.text, question.answers[0], **lengths
        ):
            row = rows[at]
            assert row["input_ids"] == [vocabulary[token] for token in tokens], question
            assert row["question_tokens"] == types.index(1)
            assert (row["start_position"], row["end_position"], row["question"]) == (start, end, number), question
            at += 1
    assert at == len(rows)
    return at


@functools.cache
def training_examples() -> squad_data.Examples:
    file = str(real("squad/train-v1.1.json"))
    return squad_data.read(file, "--train_file", training=True, allow_impossible=False)


@pytest.mark.parametrize(
    "lengths", [LENGTHS, LENGTHS | {"max_seq_length": 128, "doc_stride": 50, "max_query_length": 12}]
)
def test_windows_are_google_s(uncased, tmp_path, run, lengths):
    examples = training_examples()
    chosen = [*range(0, len(examples.questions), len(examples.questions) // 290)]
    # and those whose answers are cut in the middle of words or repeat in them, which the rules are about
    odd = [
        number
        for number, q in enumerate(examples.questions[:20_000])
        if not examples.paragraphs[q.paragraph][q.answers[0][1] - 1 : q.answers[0][1]].isspace()
        or q.answers[0][0] != q.answers[0][0].strip()
    ]
    questions = [examples.questions[number] for number in sorted({*chosen, *odd[:60]})]
    used = sorted({q.paragraph for q in questions})
    some = dataclasses.replace(
        examples,
        paragraphs=[examples.paragraphs[number] for number in used],
        questions=[dataclasses.replace(q, paragraph=used.index(q.paragraph)) for q in questions],
    )
    assert len(some.questions) > 300
    key = squad_data.windows(some, uncased, tmp_path, allow_unknown=False, run=run, **lengths)
    assert compare(some, uncased, tmp_path / key, **lengths) > len(some.questions)


ODD_CONTEXTS = [
    # (context, question, answer text, answer_start): what the search for the answer's tokens is about
    ("the year is (1895-1943).", "when?", "1895", 13),
    ("abab ab ab", "what?", "ab", 2),
    ("abab ab ab", "what?", "ab", 5),
    ("one  two\u202fthree\tfour", "which?", "two\u202fthree", 5),
    ("one two  three", "which?", "two ", 4),
    ("one two, three", "which?", "two, ", 4),
    ("one two, three", "which?", "two", 4),
    ("one (two) three", "which?", " (two", 3),
    ("a\x07b c", "which?", "a\x07b", 0),
    ("x\u00a0y z", "which?", "y", 2),
    ("caf\u00e9s are caf\u00e9s", "what?", "caf\u00e9", 0),
    ("x1943 bb", "when?", "1943 ", 1),
    ("bb  x1943", "when?", " x194", 3),
    ("bb  x\u20acy", "which?", " x", 3),
    ("last word", "what?", "word", 5),
    ("only", "what?", "only", 0),
]


def write_squad(path: Path, entries, **others) -> str:
    """A SQuAD file with one question per entry (context, question, answer, start)."""
    paragraphs = [
        {
            "context": c,
            "qas": [{"id": f"q{n}", "question": q, "answers": [{"text": a, "answer_start": s}]} | others],
        }
        for n, (c, q, a, s) in enumerate(entries)
    ]
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return str(path)


def read(path, **options) -> squad_data.Examples:
    return squad_data.read(str(path), "--train_file", **{"training": True, "allow_impossible": False} | options)


@pytest.mark.parametrize("max_seq_length", [64, 11])
def test_windows_are_google_s_in_odd_places(small, tmp_path, run, max_seq_length):
    examples = read(write_squad(tmp_path / "odd.json", ODD_CONTEXTS))
    assert not examples.skipped
    lengths = {"max_seq_length": max_seq_length, "doc_stride": 3, "max_query_length": 5}
    key = squad_data.windows(examples, small, tmp_path, allow_unknown=True, run=run, **lengths)
    compare(examples, small, tmp_path / key, **lengths)


def test_where_the_answers_are(small, tmp_path, run):
    """By hand: the positions of `abab ab ab`, whose first word holds the answer twice."""
    examples = read(write_squad(tmp_path / "odd.json", ODD_CONTEXTS[:3]))
    key = squad_data.windows(
        examples, small, tmp_path, allow_unknown=True, run=run, max_seq_length=64, doc_stride=3, max_query_length=9
    )
    rows = Rows.open(tmp_path / key / "windows.arrow").table.to_pylist()
    # [CLS] w ##h ##a ##t ? [SEP] is 7 tokens; a ##b ##a ##b | a ##b: "ab" is not a ##b ##a ##b's middle, ##a ##b
    assert [(row["start_position"], row["end_position"]) for row in rows[1:]] == [(7, 8), (11, 12)]
    spans = Rows.open(tmp_path / key / "paragraphs.arrow").table.to_pylist()[1]["spans"]
    assert spans == [0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10]


@pytest.mark.parametrize(
    ("max_seq_length", "expected"), [pytest.param(384, 88_641, marks=pytest.mark.slow), (256, 97_077)]
)
def test_the_number_of_training_windows(uncased, max_seq_length, expected):
    """run_squad.py makes as many of SQuAD v1.1 (facts of the published recipe)."""
    examples = training_examples()
    contexts, questions = training_token_counts(uncased)
    windows = 0
    for question, length in zip(examples.questions, questions, strict=True):
        room = max_seq_length - min(length, 64) - 3
        windows += len(squad_data.window_starts(contexts[question.paragraph], room, 128))
    assert windows == expected
    assert len(examples.questions) == 87_599


@functools.cache
def training_token_counts(ours) -> list[list[int]]:
    """Tokens of each context and of each question; counted once for all tests."""
    examples = training_examples()
    texts = (examples.paragraphs, [question.text for question in examples.questions])
    return [[len(ids) for ids in ours.encode(part)[0]] for part in texts]


def test_the_dev_windows(uncased, tmp_path, run):
    examples = squad_data.read(
        str(real("squad/dev-v1.1.json")), "--predict_file", training=False, allow_impossible=False
    )
    key = squad_data.windows(examples, uncased, tmp_path, allow_unknown=False, run=run, **LENGTHS)
    rows = Rows.open(tmp_path / key / "windows.arrow")
    assert len(examples.questions) == 10_570
    assert len(rows) == 10_833
    assert int(np.diff(rows.column("input_ids")[1]).max()) == 384
    assert len(np.unique(rows.column("question"))) == 10_570


@pytest.mark.parametrize(
    ("num_tokens", "room", "stride", "starts"),
    [
        (10, 10, 4, [0]),
        (11, 10, 4, [0, 4]),
        (14, 10, 4, [0, 4]),
        (15, 10, 4, [0, 4, 8]),
        (25, 10, 50, [0, 10, 20]),  # Google's min(length, doc_stride): no token is skipped
        (1, 1, 1, [0]),
        (3, 1, 1, [0, 1, 2]),
    ],
)
def test_window_starts(num_tokens, room, stride, starts):
    assert squad_data.window_starts(num_tokens, room, stride) == starts


def test_no_room_beside_the_question(small, tmp_path, run):
    examples = read(write_squad(tmp_path / "a.json", [("a b c", "what is it?", "a", 0)]))
    with pytest.raises(InputError, match="--max_seq_length 8 leaves no room beside a question of 5 tokens"):
        squad_data.windows(
            examples,
            small,
            tmp_path,
            allow_unknown=True,
            run=run,
            max_seq_length=8,
            doc_stride=3,
            max_query_length=5,
        )


# -- files --------------------------------------------------------------------------------------------------------

GOOD = [("the cat sat", "who?", "cat", 4), ("a dog ran", "who?", "dog", 2)]


def test_what_is_read(tmp_path):
    examples = read(write_squad(tmp_path / "a.json", GOOD))
    assert examples.paragraphs == ["the cat sat", "a dog ran"]
    assert examples.questions[1] == squad_data.Question("q1", "who?", 1, (("dog", 2),))
    assert examples.references == {"q0": ["cat"], "q1": ["dog"]}
    assert (examples.version, examples.is_labelled, examples.skipped) == ("1.1", True, ())
    first = read(tmp_path / "a.json", most=1)
    assert [q.id for q in first.questions] == ["q0"]
    assert first.paragraphs == ["the cat sat"]
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.json").read_bytes()))
    assert dataclasses.replace(read(packed), source="") == dataclasses.replace(examples, source="")


def test_several_answers(tmp_path):
    data = json.loads(Path(write_squad(tmp_path / "a.json", GOOD[:1])).read_text())
    data["data"][0]["paragraphs"][0]["qas"][0]["answers"].append({"text": "the cat", "answer_start": 0})
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert read(tmp_path / "a.json").references == {"q0": ["cat", "the cat"]}


def test_questions_without_answers(tmp_path):
    data = json.loads(Path(write_squad(tmp_path / "a.json", GOOD)).read_text())
    qas = data["data"][0]["paragraphs"][0]["qas"]
    qas[0] |= {"answers": [], "is_impossible": True}
    (tmp_path / "a.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"question q0 is_impossible: SQuAD v2.0 data needs --version_2_with_neg"):
        read(tmp_path / "a.json")
    with pytest.raises(InputError, match="question q0 is_impossible"):
        read(tmp_path / "a.json", training=False)
    examples = read(tmp_path / "a.json", allow_impossible=True)
    assert [q.is_impossible for q in examples.questions] == [True, False]

    del qas[0]["is_impossible"], qas[0]["answers"]  # unlabelled: to predict, not to train on
    (tmp_path / "a.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"question q0 has no answer to train on; SQuAD v2.0 data needs"):
        read(tmp_path / "a.json")
    with pytest.raises(InputError, match=r"question q0 has no answer and others have"):  # it cannot be scored
        read(tmp_path / "a.json", training=False)
    for entry in data["data"]:
        for qa in (qa for paragraph in entry["paragraphs"] for qa in paragraph["qas"]):
            qa.pop("answers", None)
    (tmp_path / "a.json").write_text(json.dumps(data))
    unlabelled = read(tmp_path / "a.json", training=False)
    assert unlabelled.references["q0"] == []
    assert not unlabelled.is_labelled


def test_a_file_to_predict_need_not_say_where_its_answers_are(small, tmp_path, run):
    """Their texts are for scoring; no place is trained on."""
    entries = [
        ("the cat", "who?", "cat", 99),
        ("the cat", "who?", "cat", None),
        ("the cat", "who?", "cat", -7),
        GOOD[0],
    ]
    examples = read(write_squad(tmp_path / "a.json", entries), training=False)
    assert examples.references["q1"] == ["cat"]
    key = squad_data.windows(
        examples, small, tmp_path, allow_unknown=True, run=run, max_seq_length=32, doc_stride=9, max_query_length=9
    )
    rows = Rows.open(tmp_path / key / "windows.arrow")
    assert rows.column("start_position")[:3].tolist() == [0, 0, 0]
    assert rows.column("start_position")[3] > 0
    with pytest.raises(InputError, match="question q0: an answer has no text"):
        read(write_squad(tmp_path / "a.json", [("the cat", "who?", None, 4)]), training=False)


def test_an_impossible_question_has_no_place(small, tmp_path, run):
    data = json.loads(Path(write_squad(tmp_path / "a.json", GOOD)).read_text())
    data["data"][0]["paragraphs"][1]["qas"][0] |= {"is_impossible": True}  # v2 keeps plausible answers elsewhere
    (tmp_path / "a.json").write_text(json.dumps(data))
    examples = read(tmp_path / "a.json", allow_impossible=True)
    key = squad_data.windows(
        examples, small, tmp_path, allow_unknown=True, run=run, max_seq_length=32, doc_stride=9, max_query_length=9
    )
    rows = Rows.open(tmp_path / key / "windows.arrow").table.to_pylist()
    assert rows[0]["start_position"] > 0
    assert (rows[1]["start_position"], rows[1]["end_position"]) == (0, 0)


BROKEN = {
    "an empty context": ([(" \u202f\n", "who?", "", 0)], "question q0 has an empty context"),
    "an empty question": ([("the cat", " ", "cat", 4)], "question q0 is empty"),
    "a place past the end": (
        [("the cat", "who?", "cat", 5)],
        "question q0: answer_start 5 with 3 characters reaches past the end of its 7-character context",
    ),
    "a place before the start": ([("the cat", "who?", "cat", -1)], "answer_start -1"),
    "an empty answer": ([("the cat", "who?", "", 4)], "its answer has an empty text or no integer answer_start"),
    "a place that is no number": ([("the cat", "who?", "cat", "4")], "no integer answer_start"),
    "a context that is no text": ([(7, "who?", "cat", 4)], "context or question is no text"),
    "a question that is no text": ([("the cat", None, "cat", 4)], "context or question is no text"),
    "no question at all": ([], "holds no question"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_entries_are_named(tmp_path, case):
    entries, message = BROKEN[case]
    path = write_squad(tmp_path / "broken.json", entries)
    with pytest.raises(InputError) as caught:
        read(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"--train_file {path}: ")
    assert "\n" not in str(caught.value)


def test_broken_files_are_named(tmp_path):
    whole = Path(write_squad(tmp_path / "a.json", GOOD)).read_text()

    def refused(name: str, content: bytes, message: str) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            read(tmp_path / name)
        assert message in str(caught.value)
        assert str(caught.value).startswith(f"--train_file {tmp_path / name}: ")
        assert "\n" not in str(caught.value)

    with pytest.raises(InputError, match=r"--train_file .*nowhere\.json: no such file"):
        read(tmp_path / "nowhere.json")
    refused("cut.json", whole[:100].encode(), "truncated or not JSON (Expecting value at character 100)")
    refused("empty.json", b"", "truncated or not JSON")
    packed = gzip.compress(whole.encode())
    refused("cut.json.gz", packed[: len(packed) // 2], "truncated or damaged gzip file")
    refused("flipped.json.gz", packed[:30] + bytes([packed[30] ^ 255]) + packed[31:], "damaged gzip file")
    refused(
        "latin.json", '{"data": "é"}'.encode("latin-1"), "not UTF-8 text (invalid continuation byte at byte 10)"
    )
    refused("list.json", b"[1]", 'no SQuAD file: it has no list "data" at its top level')
    refused("other.json", b'{"data": {"a": 1}}', 'no list "data"')
    refused(
        "jsonl.json", b'{"data": [{"paragraphs": [{"qas": []}]}]}', "no SQuAD file: no 'context' in question 1"
    )
    refused("flat.json", b'{"data": [{"context": "a"}]}', "no SQuAD file: no 'paragraphs' in question 1")
    refused("words.json", b'{"data": ["a"]}', "no SQuAD file: an entry of another type")
    refused("none.json", b'{"data": []}', "holds no question")
    refused(
        "answer.json", whole.replace('"answer_start"', '"start"', 1).encode(), "no 'answer_start' in question 1"
    )
    refused("id.json", whole.replace('"q1"', '"q0"').encode(), "question q0 occurs twice: ids must be unique")


def test_answers_that_are_not_at_their_place(tmp_path):
    """A few are left out and counted, as Google's code does; more than 5 % is another file's contexts."""
    entries = [*GOOD * 20]
    entries[3] = ("a dog ran", "who?", "cow", 2)
    examples = read(write_squad(tmp_path / "a.json", entries))
    assert examples.skipped == ("q3",)
    assert len(examples.questions) == 39
    assert "q3" not in examples.references
    kept = read(tmp_path / "a.json", training=False)
    assert len(kept.questions) == 40  # for prediction its place does not matter
    for number in (5, 7):
        entries[number] = entries[3]
    with pytest.raises(InputError, match=r"3 of 40 answers are not at their answer_start \(first: q3, q5, q7\)"):
        read(write_squad(tmp_path / "a.json", entries))


def test_an_answer_inside_its_words_is_kept(tmp_path):
    """run_squad.py compares with the whole words at the place, whitespace folded."""
    entries = [("the  cat's\u202fhat sat", "what?", "cat's\u202fhat", 5), ("(1990)", "when?", "1990", 1)]
    assert read(write_squad(tmp_path / "a.json", entries)).skipped == ()


# -- hub data sets ------------------------------------------------------------------------------------------------


def hub_table(entries) -> pa.Table:
    kind = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))])
    columns = {
        "id": [f"q{number}" for number in range(len(entries))],
        "context": [context for context, *_ in entries],
        "question": [question for _, question, *_ in entries],
    }
    answers = [
        {"text": [a], "answer_start": [s]} if a else {"text": [], "answer_start": []} for *_, a, s in entries
    ]
    return pa.table(columns | {"answers": pa.array(answers, kind)})


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)


@pytest.mark.usefixtures("offline")
def test_a_folder_that_datasets_reads(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    entries = [*GOOD, ("the cat sat", "did what?", "sat", 8)]
    pyarrow.parquet.write_table(hub_table(entries), folder / "train.parquet")
    pyarrow.parquet.write_table(hub_table([*GOOD, ("nothing here", "who?", "", 0)]), folder / "validation.parquet")
    examples = squad_data.read_hub(str(folder), "train", training=True, allow_impossible=False)
    assert examples.paragraphs == ["the cat sat", "a dog ran"]
    assert [q.paragraph for q in examples.questions] == [0, 1, 0]
    assert examples.references == {"q0": ["cat"], "q1": ["dog"], "q2": ["sat"]}
    assert (
        len(squad_data.read_hub(str(folder), "train", training=True, allow_impossible=False, most=2).questions)
        == 2
    )
    with pytest.raises(InputError, match=r"question q2 has no answer and others have"):
        squad_data.read_hub(str(folder), "validation", training=False, allow_impossible=False)
    negative = squad_data.read_hub(str(folder), "validation", training=False, allow_impossible=True)
    assert [q.is_impossible for q in negative.questions] == [False, False, True]
    with pytest.raises(
        InputError, match=r"--dataset_name .*own \(validation\): question q2 has no answer to train on"
    ):
        squad_data.read_hub(str(folder), "validation", training=True, allow_impossible=False)


@pytest.mark.usefixtures("offline")
def test_hub_errors(tmp_path):
    with pytest.raises(InputError, match=r"--dataset_name nobody/nothing \(train\): ") as caught:
        squad_data.read_hub("nobody/nothing", "train", training=True, allow_impossible=False)
    assert "\n" not in str(caught.value)
    folder = tmp_path / "own"
    folder.mkdir()
    pyarrow.parquet.write_table(hub_table(GOOD).drop_columns(["answers", "id"]), folder / "train.parquet")
    with pytest.raises(InputError, match="column answers, id is missing"):
        squad_data.read_hub(str(folder), "train", training=True, allow_impossible=False)
    with pytest.raises(InputError, match=r"own \(validation\): .*validation"):
        squad_data.read_hub(str(folder), "validation", training=True, allow_impossible=False)


# -- cache --------------------------------------------------------------------------------------------------------

SMALL = {"max_seq_length": 32, "doc_stride": 9, "max_query_length": 9, "allow_unknown": True}


def test_the_cache_is_used_and_its_key_tells_everything(small, tmp_path, run, monkeypatch):
    path = write_squad(tmp_path / "a.json", GOOD)
    cache = tmp_path / "cache"
    key = squad_data.windows(read(path), small, cache, run=run, **SMALL)
    keys = {key}
    for change in ({"max_seq_length": 33}, {"doc_stride": 8}, {"max_query_length": 8}):
        keys.add(squad_data.windows(read(path), small, cache, run=run, **SMALL | change))
    cased = tokenizer.load(small.source, do_lower_case=False)
    keys.add(squad_data.windows(read(path), cased, cache, run=run, **SMALL))
    for entries in ([GOOD[0], (*GOOD[1][:2], "ran", 6)], [GOOD[0], ("a dog ran!", *GOOD[1][1:])], GOOD[::-1]):
        changed = read(write_squad(tmp_path / "b.json", entries))
        keys.add(squad_data.windows(changed, small, cache, run=run, **SMALL))
    monkeypatch.setattr(squad_data, "WINDOWS_VERSION", squad_data.WINDOWS_VERSION + 1)
    keys.add(squad_data.windows(read(path), small, cache, run=run, **SMALL))
    monkeypatch.undo()
    assert len(keys) == 1 + 3 + 1 + 3 + 1
    assert {folder.name for folder in cache.iterdir()} == keys

    def never(*_):
        raise AssertionError("built again")

    monkeypatch.setattr(squad_data, "_build", never)
    assert squad_data.windows(read(path), small, cache, run=run, **SMALL) == key
    Path(path).rename(tmp_path / "moved.json")  # the content counts, not the name
    assert squad_data.windows(read(tmp_path / "moved.json"), small, cache, run=run, **SMALL) == key


def test_a_file_that_was_prepared_is_not_parsed_again(small, tmp_path, run, monkeypatch, capsys):
    wrong = [*GOOD * 15, ("a cat sat", "what?", "dog", 2)]  # one answer that is not at its place
    path, cache = write_squad(tmp_path / "a.json", wrong), tmp_path / "cache"

    def prepared(file=path, most=None, flag="--train_file", training=True, impossible=False, **more) -> str:
        return squad_data.windows_of_file(
            str(file), flag, training, impossible, most, small, cache, run=run, **SMALL | more
        )

    key = prepared()
    told = capsys.readouterr().err
    assert key == squad_data.windows(read(path), small, cache, run=run, **SMALL)
    others = [prepared(most=3), prepared(training=False, flag="--predict_file"), prepared(max_seq_length=33)]
    assert key not in others
    write_squad(tmp_path / "b.json", [("a dog ran!", *GOOD[1][1:])])
    assert prepared(tmp_path / "b.json") not in (key, *others)
    unknown = write_squad(tmp_path / "c.json", [("漢 漢 漢", "漢?", "漢", 0)])
    prepared(unknown)
    capsys.readouterr()

    def never(*_):
        raise AssertionError("parsed again")

    monkeypatch.setattr(squad_data, "_read_json", never)
    assert prepared() == key
    again = capsys.readouterr().err
    assert "warning: 1 answers of" in told
    assert again.splitlines() == [told.splitlines()[0], f"{told.splitlines()[1]} (cached)"]
    with pytest.raises(InputError, match=r"% of the tokens are \[UNK\]"):
        prepared(unknown, allow_unknown=False)
    monkeypatch.undo()
    for pointer in cache.glob("*.json"):
        pointer.write_text("{")  # a damaged one is made anew
    assert prepared() == key
    shutil.rmtree(cache / key)
    assert prepared() == key
    assert (cache / key / "windows.arrow").is_file()
    with pytest.raises(InputError, match=r"--train_file none\.json: no such file"):
        prepared("none.json")


def test_is_impossible_is_part_of_the_key(small, tmp_path, run):
    """The same contexts, questions and answers with the mark moved have other windows."""
    path = write_squad(tmp_path / "a.json", GOOD)
    marked = write_squad(tmp_path / "b.json", GOOD, is_impossible=True)
    keys = [
        squad_data.windows(read(file, allow_impossible=True), small, tmp_path, run=run, **SMALL)
        for file in (path, marked)
    ]
    assert keys[0] != keys[1]


KILLED = """
import os, signal, sys
from pathlib import Path
from bert.text import tokenizer
from distributed.run import Run
from tasks.squad import windows as squad_data
path, vocab, cache = sys.argv[1:]
written = squad_data.write_rows
def write_and_die(*args):
    written(*args)
    os.kill(os.getpid(), signal.SIGKILL)
squad_data.write_rows = write_and_die
examples = squad_data.read(path, "--train_file", training=True, allow_impossible=False)
lengths = {"max_seq_length": 32, "doc_stride": 9, "max_query_length": 9}
run = Run(Path(cache) / "run", False)
squad_data.windows(examples, tokenizer.load(vocab), Path(cache), allow_unknown=True, run=run, **lengths)
"""


def test_a_killed_build_is_not_taken_for_a_whole_one(small, tmp_path, run):
    path, cache = write_squad(tmp_path / "a.json", GOOD), tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, path, small.source, str(cache)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = list(cache.iterdir())
    assert left  # it died between the two files
    assert all(folder.name.startswith(".") for folder in left)
    key = squad_data.windows(read(path), small, cache, run=run, **SMALL)
    assert len(Rows.open(cache / key / "windows.arrow")) == 2
    assert len(Rows.open(cache / key / "paragraphs.arrow")) == 2
    assert [folder.name for folder in cache.iterdir()] == [key]  # what the killed one left is gone


def test_a_failed_build_leaves_nothing(small, tmp_path, run):
    examples, cache = read(write_squad(tmp_path / "a.json", GOOD)), tmp_path / "cache"
    with pytest.raises(InputError, match="leaves no room"):
        squad_data.windows(examples, small, cache, run=run, **SMALL | {"max_seq_length": 5})
    assert list(cache.iterdir()) == []


def test_questions_without_answer_and_lone_surrogates_in_a_file_to_predict(tmp_path):
    def file(*qas):
        path = tmp_path / "dev.json"
        path.write_text(
            json.dumps({"version": "v2.0", "data": [{"paragraphs": [{"context": "a b c", "qas": qas}]}]})
        )
        return str(path)

    answered = {"id": "1", "question": "b?", "answers": [{"text": "b", "answer_start": 2}]}
    without = {"id": "2", "question": "d?", "answers": []}
    with pytest.raises(InputError, match=r"question 2 has no answer and others have.*--version_2_with_negative"):
        squad_data.read(file(answered, without), "--predict_file", training=False, allow_impossible=False)
    assert (
        len(squad_data.read(file(without), "--predict_file", training=False, allow_impossible=False).questions)
        == 1
    )
    broken = {"id": "3", "question": "b\ud800?", "answers": []}
    with pytest.raises(InputError, match=r"question 3: .*half a surrogate pair"):
        squad_data.read(file(broken), "--predict_file", training=False, allow_impossible=False)
