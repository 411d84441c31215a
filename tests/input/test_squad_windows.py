"""SQuAD files and hub data sets: what is read, what is refused, and the windows that are made of
it."""

import gzip
import json
from functools import partial

import pyarrow as pa
import pyarrow.parquet
import pytest
from harness.real_data import real
from harness.real_tokenizers import albert, byte_level, kobert, multilingual, uncased
from harness.refusals import refused
from harness.squad_files import (
    GOOD,
    SMALL,
    compare_windows,
    open_windows,
    read_file,
    squad_json,
    write_squad,
)
from harness.texts import letters_tokenizer
from transformers import PreTrainedTokenizerFast

from tasks.squad.reading import Question, Source, read
from tasks.squad.settings import QuestionSettings, WindowSettings
from tasks.squad.task import has_answers


def test_what_is_read(tmp_path):
    data, path = squad_json(GOOD), tmp_path / "a.json.gz"
    data["data"][0]["paragraphs"][0]["qas"][0]["answers"].append(
        {"text": "the cat", "answer_start": 0}
    )
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    examples = read_file(path)
    assert examples.paragraphs == ["the cat sat", "a dog ran"]
    assert examples.questions[1] == Question("q1", "who?", 1, (("dog", 2),))
    assert examples.references == {"q0": ["cat", "the cat"], "q1": ["dog"]}
    assert [question.id for question in read_file(path, limit=1).questions] == ["q0"]


def test_impossible_questions_need_version_2_and_have_no_place(tmp_path, run):
    data, path = squad_json(GOOD), tmp_path / "a.json"
    # v2 keeps plausible answers elsewhere
    data["data"][0]["paragraphs"][1]["qas"][0] |= {"is_impossible": True}
    path.write_text(json.dumps(data))
    for is_training in (True, False):
        refused(partial(read_file, path, is_training), path, "q1", "--version_2_with_neg")
    examples = read_file(path, allow_impossible=True)
    assert [question.is_impossible for question in examples.questions] == [False, True]
    rows = open_windows(SMALL, examples, letters_tokenizer(tmp_path), run)["windows"]
    assert rows.column("start_position")[0] > 0
    assert (rows.column("start_position")[1], rows.column("end_position")[1]) == (0, 0)


def test_a_file_to_predict_need_not_have_answers_or_say_where_they_are(tmp_path):
    """But none may be missing beside others, and those to train on need one."""
    path = tmp_path / "a.json"
    write_squad(path, [("the cat", "who?", "cat", None)])
    assert read_file(path, False).references == {"q0": ["cat"]}
    refused(lambda: read_file(path), "--train_file", path, "q0", "None")
    data = squad_json(GOOD)
    questions = [paragraph["qas"][0] for paragraph in data["data"][0]["paragraphs"]]
    questions[0]["answers"] = []
    path.write_text(json.dumps(data))
    for is_training, flag in ((True, "--train_file"), (False, "--predict_file")):
        refused(partial(read_file, path, is_training), flag, path, "q0", "--version_2_with")
    del questions[1]["answers"]
    path.write_text(json.dumps(data))
    assert read_file(path, is_training=False).references == {"q0": [], "q1": []}


def whole(*entries):
    return json.dumps(squad_json(entries)).encode()


def changed(**others):
    """The good questions with another entry each."""
    return json.dumps(squad_json(GOOD, **others)).encode()


WHOLE = whole(*GOOD)
PACKED = gzip.compress(WHOLE)
FILES = {  # bytes, what the line names beside the flag and the file
    "empty question": (whole(("the cat", " ", "cat", 4)), ["q0"]),
    "past the end": (whole(("the cat", "who?", "cat", 5)), ["q0", "answer_start 5"]),
    "empty answer": (whole(("the cat", "who?", "", 4)), ["q0"]),
    "number for text": (whole(("the cat", "who?", 3, 4)), ["question 1"]),
    "half a surrogate": (whole(("the cat", "b\ud800?", "cat", 4)), ["\\ud800"]),
    "no question": (whole(), []),
    "list": (b"[]", []),
    "cut gzip": (PACKED[: len(PACKED) // 2], []),
    "flipped gzip": (PACKED[:30] + bytes([PACKED[30] ^ 255]) + PACKED[31:], []),
    "latin": ('{"data":\n "é"}'.encode("latin-1"), ["line 2", "UTF-8"]),
    "no start": (WHOLE.replace(b'"answer_start"', b'"start"', 1), ["answer_start", "question 1"]),
    "list with questions": (b"[" + WHOLE + b"]", ["'data'", "[{"]),
    "paragraph for its list": (
        b'{"data": [{"paragraphs": {"context": "the cat"}}]}',
        ["paragraphs", "a list"],
    ),
    "start as text": (
        whole(("the cat", "who?", "cat", "4")),
        ["question 1 (q0)", "answer_start", "an integer", "'4'"],
    ),
    "start true": (
        whole(("the cat", "who?", "cat", True)),
        ["q0", "answer_start", "an integer", "True"],
    ),
    "answers of the hub": (
        changed(answers={"text": ["cat"], "answer_start": [4]}),
        ["q0", "answers", "a list", "{"],
    ),
    "answers as texts": (changed(answers=["cat"]), ["q0", "'answer_start'", "'cat'"]),
    "no answers at all": (changed(answers=[]), ["none of its 2 questions"]),
    "text for true": (
        changed(is_impossible="no"),
        ["q0", "is_impossible", "true or false", "'no'"],
    ),
    "no id": (changed(id=None), ["question 1", "'id'"]),
    "null": (changed(question=None), ["question 1 (q0)", "'question'"]),
    "same id": (WHOLE.replace(b'"q1"', b'"q0"'), ["q0"]),
}


@pytest.mark.parametrize(("content", "named"), FILES.values(), ids=FILES)
def test_broken_files_are_refused(tmp_path, content, named):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    line = refused(lambda: read_file(path), "--train_file", path, *named)
    assert "indices" not in line  # what Python says of its own types


def test_misplaced_answers_are_left_out_as_google_does_until_they_are_too_many(tmp_path):
    """More than 5 % of them mean that the contexts are another file's."""
    entries, misplaced = [*GOOD * 20], ("a dog ran", "who?", "cow", 2)
    entries[3] = misplaced
    path = write_squad(tmp_path / "a.json", entries)
    examples = read_file(path)
    assert examples.misplaced == ["q3"]
    assert len(examples.questions) == 39
    assert "q3" not in examples.references
    # for prediction its place does not matter
    assert len(read_file(path, is_training=False).questions) == 40
    entries[5] = entries[7] = misplaced
    refused(lambda: read_file(write_squad(path, entries)), path, "q3", "q5", "q7")


def test_a_folder_that_datasets_reads(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    entries = [*GOOD, ("a dog ran", "did what?", "ran", 6), ("nothing here", "who?", "", 0)]
    rows = [
        {
            "id": f"q{n}",
            "context": context,
            "question": question,
            "title": "t",
            "answers": {"text": [text] * bool(text), "answer_start": [start] * bool(text)},
        }
        for n, (context, question, text, start) in enumerate(entries)
    ]
    table = pa.Table.from_pylist(rows)
    none = [row | {"answers": {"text": [], "answer_start": []}} for row in rows]
    for name, part in (
        ("own/train", table[:3]),
        ("own/validation", table),
        ("bare/train", table.drop(["id"])),
        ("none/train", pa.Table.from_pylist(none, table.schema)),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(part, tmp_path / f"{name}.parquet")
    own, bare, unanswered = (str(tmp_path / name) for name in ("own", "bare", "none"))

    def source(name, kind="train", limit=None):
        return Source(QuestionSettings(dataset_name=name, max_train_examples=limit), kind)

    examples = read(source(own))
    assert examples.paragraphs == ["the cat sat", "a dog ran"]
    assert [question.paragraph for question in examples.questions] == [0, 1, 1]
    assert examples.references == {"q0": ["cat"], "q1": ["dog"], "q2": ["ran"]}
    assert len(read(source(own, limit=2)).questions) == 2
    dev = source(own, "predict")
    negative = read(dev, allow_impossible=True)
    assert [question.is_impossible for question in negative.questions] == [False] * 3 + [True]
    refused(lambda: read(dev), "--dataset_name", own, "validation", "q3")
    refused(lambda: read(source(bare)), "--dataset_name", bare, "id")
    for version_2 in (False, True):
        call = partial(read, source(unanswered), version_2)
        refused(call, "none of its 4 questions has an answer")
    refused(lambda: read(source("nobody/nothing")), "--dataset_name nobody/nothing")


UNLABELLED = [{}, {"answers": None}, {"answers": {"text": [], "answer_start": []}}, {"answers": []}]


@pytest.mark.parametrize("answers", UNLABELLED)
def test_a_table_without_answers_is_no_set_of_impossible_questions(tmp_path, answers):
    """As a JSON file without them: there is nothing to score. With some answers, those without
    are impossible, as in the official script."""
    rows = [
        {"id": f"q{number}", "context": context, "question": question, **answers}
        for number, (context, question, *_) in enumerate(GOOD)
    ]
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    write_squad(tmp_path / "a.json", [(*entry[:2], "", 0) for entry in GOOD])
    content = json.loads((tmp_path / "a.json").read_text())
    for paragraph in content["data"][0]["paragraphs"]:
        del paragraph["qas"][0]["answers"]
    (tmp_path / "a.json").write_text(json.dumps(content))
    for name in ("a.parquet", "a.json"):
        source = Source(QuestionSettings(predict_file=str(tmp_path / name)), "predict")
        examples = read(source, allow_impossible=True)
        assert [question.is_impossible for question in examples.questions] == [False, False]
        assert not has_answers(examples)


# -- windows, against google-research/bert `run_squad.py` ------------------------------------------


SMALLER = WindowSettings(max_seq_length=128, doc_stride=50, max_query_length=12)


@pytest.mark.parametrize("settings", [WindowSettings(), SMALLER])
def test_windows_are_google_s(run, settings):
    """Of 2,114 real questions; 64 of their answers begin inside a word, which Google's rules are
    about. One answer ends in the middle of its last word, of which Google takes all."""
    number, differences = compare_windows(
        settings, read_file(real("squad/dev-v1.1.json")), uncased(), run, step=5
    )
    assert settings == SMALLER or number == 10_833  # as many as Google makes
    ports = "through the port's trade with Constantinople, and ports on the Black Sea"
    assert differences == [(f"y {ports}", f"probably {ports}.", f"probably {ports}")]


ODD_CONTEXTS = [
    # (context, question, answer text, answer_start): what the search for the answer's tokens is
    # about
    ("the year is (1895-1943).", "when?", "1895", 13),
    ("abab ab ab", "what?", "ab", 2),
    ("abab ab ab", "what?", "ab", 5),
    ("one  two\u202fthree\tfour", "which?", "two\u202fthree", 5),
    ("one two\u202fthree", "which?", "wo", 5),
    ("one two  three", "which?", "two ", 4),
    ("one two, three", "which?", "two, ", 4),
    ("one (two) three", "which?", " (two", 3),
    ("a\x07b c", "which?", "a\x07b", 0),
    ("x\u00a0y z", "which?", "y", 2),
    ("caf\u00e9s are caf\u00e9s", "what?", "caf\u00e9", 0),
    ("x1943 bb", "when?", "1943 ", 1),
    ("bb  x1943", "when?", " x194", 3),
    ("bb  x\u20acy", "which?", " x", 3),
    ("only", "what?", "only", 0),
]


# Answer, Google's text, ours.
OTHER_LABELS = [("wo", "two", "wo"), (" x", "bb  x\u20acy", "x\u20acy")]
OTHER_PLACES = {  # of the second "ab", and of answers whose first word is in another window
    (64, 3): [("ab", "ab", "ab"), *OTHER_LABELS[:1], ("1943 ", "x1943", "1943"), *OTHER_LABELS[1:]],
    (11, 3): [("ab", "ab", ""), *OTHER_LABELS],
    (11, 50): [("ab", "ab", ""), *OTHER_LABELS],
}


@pytest.mark.parametrize(("max_seq_length", "doc_stride"), OTHER_PLACES)
def test_windows_are_google_s_in_odd_places(tmp_path, run, max_seq_length, doc_stride):
    """But for answers inside a word: Google takes the whole word, or the first place of the same
    tokens in it."""
    examples = read_file(write_squad(tmp_path / "odd.json", ODD_CONTEXTS))
    assert not examples.misplaced
    settings = WindowSettings(
        max_seq_length=max_seq_length, doc_stride=doc_stride, max_query_length=5
    )
    _, differences = compare_windows(settings, examples, letters_tokenizer(tmp_path), run)
    assert differences == OTHER_PLACES[max_seq_length, doc_stride]


# -- answers in texts without blanks ---------------------------------------------------------------

WITHOUT_BLANKS = [  # context, answer, which of its occurrences
    ("北京是中國的首都。上海在北京的南邊，我們去過北京兩次。", "北京", 2),
    ("他1990年出生，1995年畢業，1990年代的歌。", "1990", 1),
    ("東京は日本の首都です。東京タワーは1958年に完成した。", "東京", 1),
    ("เมืองใหญ่คือกรุงเทพและเมืองเล็กคือเชียงใหม่ซึ่งสวยมาก", "เชียงใหม่", 0),
    ("수도는 서울이다. 강은 서울의 한강이다.", "서울", 1),
    ("राजधानी दिल्ली में है। दिल्ली बड़ी है।", "दिल्ली", 1),
    ("العاصمة هي القاهرةُ وتقع على النيل.", "القاهرةُ", 0),
    ("the cat sat on the catalogue", "cat", 1),
]


@pytest.mark.parametrize("load", [uncased, multilingual, kobert, albert, byte_level])
def test_labels_are_the_tokens_that_overlap_the_answer(tmp_path, run, load):
    """By the offsets that transformers gives for the same model; a single ▁ or Ġ before is the
    word's."""
    entries = []
    for context, answer, occurrence in WITHOUT_BLANKS:
        places = [place for place in range(len(context)) if context.startswith(answer, place)]
        entries.append((context, "?", answer, places[occurrence]))
    tokenizer, path = load(), write_squad(tmp_path / "a.json", entries)
    settings = WindowSettings()
    rows = open_windows(settings, read_file(path), tokenizer, run)["windows"].table.to_pylist()
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend)
    for (context, _, answer, start), row in zip(entries, rows, strict=True):
        offsets = theirs(context, add_special_tokens=False, return_offsets_mapping=True)[
            "offset_mapping"
        ]
        places = range(start, start + len(answer))
        touched = [number for number, pair in enumerate(offsets) if set(range(*pair)) & set(places)]
        own = [row[place] - row["question_tokens"] for place in ("start_position", "end_position")]
        first = row["input_ids"][row["start_position"]]
        is_mark = tokenizer.pieces([first]) == [tokenizer.word_mark]
        assert own == [touched[0] - is_mark, touched[-1]], context


def test_an_answer_is_misplaced_in_every_script(tmp_path):
    entries = [
        (context, "?", answer, context.index(answer) + 1) for context, answer, _ in WITHOUT_BLANKS
    ]
    path = write_squad(tmp_path / "a.json", entries)
    refused(lambda: read_file(path), "8 of 8 answers", "answer_start")
    blanks = [("one  two\u00a0three", "?", "one two three", 0), ("a\u3000b c", "?", "b\tc", 1)]
    assert len(read_file(write_squad(tmp_path / "b.json", blanks)).questions) == 2
