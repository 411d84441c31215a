"""SQuAD files and hub data sets: what is read, and what is refused with which words."""

import dataclasses
import gzip
import json

import pyarrow as pa
import pyarrow.parquet
import pytest
from squad_files import GOOD, SMALL, answer, open_windows, read_file, squad_json, write_squad
from texts import letters_tokenizer

from ringbert.errors import InputError
from tasks.squad.reading import Question, Source, read

# -- files --------------------------------------------------------------------------------------------------------


def test_what_is_read(tmp_path):
    path = write_squad(tmp_path / "a.json", GOOD)
    examples = read_file(path)
    assert examples.paragraphs == ["the cat sat", "a dog ran"]
    assert examples.questions[1] == Question("q1", "who?", 1, (("dog", 2),))
    assert examples.references == {"q0": ["cat"], "q1": ["dog"]}
    assert (examples.version, examples.is_labelled, examples.misplaced) == ("1.1", True, ())
    first = read_file(path, limit=1)
    assert [question.id for question in first.questions] == ["q0"]
    assert first.paragraphs == ["the cat sat"]
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert dataclasses.replace(read_file(packed), source=examples.source) == examples


def test_several_answers(tmp_path):
    data = squad_json(GOOD[:1])
    data["data"][0]["paragraphs"][0]["qas"][0]["answers"].append(answer("the cat", 0))
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert read_file(tmp_path / "a.json").references == {"q0": ["cat", "the cat"]}


def test_impossible_questions(tmp_path):
    data, path = squad_json(GOOD), tmp_path / "a.json"
    data["data"][0]["paragraphs"][0]["qas"][0] |= {"answers": [], "is_impossible": True}
    path.write_text(json.dumps(data))
    for is_training in (True, False):
        with pytest.raises(
            InputError, match=r"question q0 is_impossible: SQuAD v2.0 data needs --version_2_with_neg"
        ):
            read_file(path, is_training)
    examples = read_file(path, allow_impossible=True)
    assert [question.is_impossible for question in examples.questions] == [True, False]


def test_questions_without_answers(tmp_path):
    """They can be predicted but not trained on; and not scored where others have answers."""
    data, path = squad_json(GOOD), tmp_path / "a.json"
    questions = [paragraph["qas"][0] for paragraph in data["data"][0]["paragraphs"]]
    del questions[0]["answers"]
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"question q0 has no answer to train on; SQuAD v2.0 data needs"):
        read_file(path)
    with pytest.raises(
        InputError, match=r"question q0 has no answer although others have.*--version_2_with_negative"
    ):
        read_file(path, is_training=False)
    del questions[1]["answers"]
    path.write_text(json.dumps(data))
    unlabelled = read_file(path, is_training=False)
    assert unlabelled.references["q0"] == []
    assert not unlabelled.is_labelled


def test_a_file_to_predict_need_not_say_where_its_answers_are(tmp_path, run):
    """Their texts are for scoring; no place is trained on."""
    places = (99, None, -7)
    entries = [*(("the cat", "who?", "cat", place) for place in places), GOOD[0]]
    examples = read_file(write_squad(tmp_path / "a.json", entries), is_training=False)
    assert examples.references["q1"] == ["cat"]
    rows, _ = open_windows(SMALL, examples, letters_tokenizer(tmp_path), tmp_path, run)
    assert rows.column("start_position")[:3].tolist() == [0, 0, 0]
    assert rows.column("start_position")[3] > 0
    with pytest.raises(InputError, match="question q0: an answer has no text"):
        read_file(write_squad(tmp_path / "a.json", [("the cat", "who?", None, 4)]), is_training=False)


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
    "a context that is no text": ([(7, "who?", "cat", 4)], "its context or its text is not a string"),
    "a question that is no text": ([("the cat", None, "cat", 4)], "its context or its text is not a string"),
    "half a surrogate pair": ([("the cat", "b\ud800?", "cat", 4)], "holds half a surrogate pair (\\ud800)"),
    "no question at all": ([], "holds no question"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_entries_are_named(tmp_path, case):
    entries, message = BROKEN[case]
    path = write_squad(tmp_path / "broken.json", entries)
    with pytest.raises(InputError) as caught:
        read_file(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"--train_file {path}: ")
    assert "\n" not in str(caught.value)


def test_broken_files_are_named(tmp_path):
    whole = json.dumps(squad_json(GOOD))

    def refused(name: str, content: bytes | None, message: str) -> None:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_file(tmp_path / name)
        assert message in str(caught.value)
        assert str(caught.value).startswith(f"--train_file {tmp_path / name}: ")
        assert "\n" not in str(caught.value)

    refused("nowhere.json", None, "no such file")
    refused("cut.json", whole[:100].encode(), "not valid JSON (Expecting value: line 1 column 101")
    refused("empty.json", b"", "not valid JSON")
    packed = gzip.compress(whole.encode())
    refused("cut.json.gz", packed[: len(packed) // 2], "truncated or damaged gzip file")
    refused("flipped.json.gz", packed[:30] + bytes([packed[30] ^ 255]) + packed[31:], "damaged gzip file")
    latin = '{"data":\n "é"}'.encode("latin-1")
    refused("latin.json", latin, "line 2 is not UTF-8 (invalid continuation byte at byte 11)")
    refused("list.json", b"[1]", 'not a SQuAD file: it has no list "data" at its top level')
    refused("other.json", b'{"data": {"a": 1}}', 'no list "data"')
    refused(
        "context.json",
        b'{"data": [{"paragraphs": [{"qas": []}]}]}',
        "not a SQuAD file: no 'context' in question 1",
    )
    refused("flat.json", b'{"data": [{"context": "a"}]}', "not a SQuAD file: no 'paragraphs' in question 1")
    refused("words.json", b'{"data": ["a"]}', "not a SQuAD file: an entry of another type")
    refused("none.json", b'{"data": []}', "holds no question")
    no_start = whole.replace('"answer_start"', '"start"', 1).encode()
    refused("answer.json", no_start, "no 'answer_start' in question 1")
    refused("id.json", whole.replace('"q1"', '"q0"').encode(), "question q0 occurs twice: ids must be unique")


def test_misplaced_answers(tmp_path):
    """A few are left out and counted, as Google's code does; more than 5 % are another file's contexts."""
    entries = [*GOOD * 20]
    entries[3] = ("a dog ran", "who?", "cow", 2)
    path = write_squad(tmp_path / "a.json", entries)
    examples = read_file(path)
    assert examples.misplaced == ("q3",)
    assert len(examples.questions) == 39
    assert "q3" not in examples.references
    assert len(read_file(path, is_training=False).questions) == 40  # for prediction its place does not matter
    for number in (5, 7):
        entries[number] = entries[3]
    with pytest.raises(InputError, match=r"3 of 40 answers are not at their answer_start \(q3, q5, q7\)"):
        read_file(write_squad(tmp_path / "a.json", entries))


def test_an_answer_inside_its_words_is_kept(tmp_path):
    """run_squad.py compares with the whole words at the place, white space folded."""
    entries = [("the  cat's\u202fhat sat", "what?", "cat's\u202fhat", 5), ("(1990)", "when?", "1990", 1)]
    assert read_file(write_squad(tmp_path / "a.json", entries)).misplaced == ()


# -- hub data sets ------------------------------------------------------------------------------------------------


def hub_table(entries) -> pa.Table:
    kind = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))])
    columns = {
        "id": [f"q{number}" for number in range(len(entries))],
        "context": [context for context, *_ in entries],
        "question": [question for _, question, *_ in entries],
    }
    answers = [
        {"text": [text], "answer_start": [start]} if text else {"text": [], "answer_start": []}
        for *_, text, start in entries
    ]
    return pa.table(columns | {"answers": pa.array(answers, kind)})


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)


def read_hub(name, split: str, is_training: bool, allow_impossible: bool = False, limit: int | None = None):
    return read(Source(str(name), "--dataset_name", is_training, limit, split), allow_impossible)


@pytest.mark.usefixtures("offline")
def test_a_folder_that_datasets_reads(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    entries = [*GOOD, ("the cat sat", "did what?", "sat", 8)]
    pyarrow.parquet.write_table(hub_table(entries), folder / "train.parquet")
    pyarrow.parquet.write_table(hub_table([*GOOD, ("nothing here", "who?", "", 0)]), folder / "validation.parquet")
    examples = read_hub(folder, "train", is_training=True)
    assert examples.paragraphs == ["the cat sat", "a dog ran"]
    assert [question.paragraph for question in examples.questions] == [0, 1, 0]
    assert examples.references == {"q0": ["cat"], "q1": ["dog"], "q2": ["sat"]}
    assert len(read_hub(folder, "train", is_training=True, limit=2).questions) == 2
    with pytest.raises(InputError, match=r"question q2 has no answer although others have"):
        read_hub(folder, "validation", is_training=False)
    negative = read_hub(folder, "validation", is_training=False, allow_impossible=True)
    assert [question.is_impossible for question in negative.questions] == [False, False, True]
    with pytest.raises(
        InputError, match=r"--dataset_name .*own \(validation\): question q2 has no answer to train on"
    ):
        read_hub(folder, "validation", is_training=True)


@pytest.mark.usefixtures("offline")
def test_hub_errors(tmp_path):
    with pytest.raises(InputError, match=r"--dataset_name nobody/nothing \(train\): ") as caught:
        read_hub("nobody/nothing", "train", is_training=True)
    assert "\n" not in str(caught.value)
    folder = tmp_path / "own"
    folder.mkdir()
    pyarrow.parquet.write_table(hub_table(GOOD).drop_columns(["answers", "id"]), folder / "train.parquet")
    with pytest.raises(InputError, match="column answers, id is missing"):
        read_hub(folder, "train", is_training=True)
    with pytest.raises(InputError, match=r"own \(validation\): .*validation"):
        read_hub(folder, "validation", is_training=True)
