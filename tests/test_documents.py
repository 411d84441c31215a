"""Units and documents, against one plain reading of the whole file."""

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet
import pytest
from real_data import real

from bert.corpus import documents, inputs, sentences
from bert.corpus.settings import TextSettings
from ringbert.errors import InputError

TEXTS = [["The first.", "그는 갔다.", "x " * 30], ["One alone."], ["café – naïve", "Ünder"], ["last", "of all"]]


def written(path, separator="\n", newline="\n"):
    path.write_bytes(separator.join("".join(f"{s}{newline}" for s in text) for text in TEXTS).encode())
    return path


def read(source: TextSettings) -> list[list[str]]:
    return [text for unit in inputs.find_units(source)[0] for text in documents.documents(unit, source)]


STRIPPED = [[sentence.strip() for sentence in text] for text in TEXTS]


# -- kinds of files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", ["\n", "\n\n \n"])
def test_plain_text(tmp_path, separator, newline):
    written(tmp_path / "a.txt", separator, newline)
    assert read(TextSettings(input_file=str(tmp_path / "*.txt"))) == STRIPPED


def test_gzip_and_zstandard(tmp_path):
    plain = written(tmp_path / "plain.txt").read_bytes()
    with gzip.open(tmp_path / "a.txt.gz", "wb") as file:
        file.write(plain)
    for half in (plain, plain):  # two frames one after the other, as `cat a.zst b.zst` makes them
        with pa.CompressedOutputStream(pa.OSFile(str(tmp_path / "part"), "wb"), "zstd") as file:
            file.write(half)
        with open(tmp_path / "b.txt.zst", "ab") as file:
            file.write((tmp_path / "part").read_bytes() if half else b"")
    assert read(TextSettings(input_file=str(tmp_path / "a.txt.gz"))) == STRIPPED
    found = read(TextSettings(input_file=str(tmp_path / "b.txt.zst")))
    # The second frame goes on where the first ended: its first document continues the last.
    assert [s for text in found for s in text] == [s for text in STRIPPED * 2 for s in text]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compressed_file_that_is_cut_short(tmp_path, ending):
    content = random.Random(0).randbytes(300_000).hex().encode()
    path = tmp_path / f"a.txt{ending}"
    with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), {".gz": "gzip", ".zst": "zstd"}[ending]) as file:
        file.write(b"\n".join(content[at : at + 80] for at in range(0, len(content), 80)))
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(InputError, match=rf"a\.txt{ending}: damaged or cut short"):
        read(TextSettings(input_file=str(path)))


def rows():
    return [{"body": "\n".join(text), "id": number} for number, text in enumerate(TEXTS)]


def test_json_lines_parquet_and_a_local_data_set(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [*rows(), {"body": None}])
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8")
    table = pa.Table.from_pylist([*rows(), {"body": None, "id": 9}])
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    assert read(TextSettings(input_file=str(tmp_path / "a.jsonl"), text_column="body")) == STRIPPED
    assert read(TextSettings(input_file=str(tmp_path / "a.parquet"), text_column="body")) == STRIPPED
    folder = tmp_path / "set"
    folder.mkdir()
    pa.parquet.write_table(table, folder / "train.parquet")
    assert read(TextSettings(dataset_name=str(folder), text_column="body")) == STRIPPED
    for source in ({"input_file": str(tmp_path / "a.parquet")}, {"dataset_name": str(folder)}):
        with pytest.raises(InputError, match="no column text; its columns are body, id"):
            read(TextSettings(**source))


# -- units --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit_bytes", [1, 7, 50, 200, 5000])
@pytest.mark.parametrize("kind", ["text", "json"])
def test_units_of_any_size_hold_each_document_once(tmp_path, monkeypatch, unit_bytes, kind):
    draw = random.Random(unit_bytes)
    texts = [
        ["".join(draw.choices("abé한 ", k=draw.randint(1, 40))).strip() or "x" for _ in range(draw.randint(1, 6))]
        for _ in range(60)
    ]
    if kind == "text":
        path, content = tmp_path / "a.txt", "\n".join("".join(f"{s}\n" for s in text) for text in texts)
    else:
        path = tmp_path / "a.jsonl"
        content = "".join(json.dumps({"text": "\n".join(text)}, ensure_ascii=False) + "\n" for text in texts)
    path.write_text(content, encoding="utf-8")
    monkeypatch.setattr(inputs, "LARGEST_UNIT_BYTES", unit_bytes)
    units, _ = inputs.find_units(TextSettings(input_file=str(path)))
    assert len(units) == -(-path.stat().st_size // unit_bytes)
    assert read(TextSettings(input_file=str(path))) == texts


def test_small_files_share_a_unit(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02d}.txt").write_text(f"text {number}\n")
    units, _ = inputs.find_units(TextSettings(input_file=str(tmp_path / "*.txt")))
    assert len(units) == 1
    assert read(TextSettings(input_file=str(tmp_path / "*.txt"))) == [[f"text {number}"] for number in range(30)]


@pytest.mark.parametrize("separator", ["blank", "file"])
def test_a_long_document_is_cut_and_nothing_is_lost(tmp_path, monkeypatch, separator):
    monkeypatch.setattr(inputs, "LARGEST_UNIT_BYTES", 4000)
    monkeypatch.setattr(documents, "MOST_DOCUMENT_BYTES", 700)
    monkeypatch.setattr(sentences, "MOST_DOCUMENT_BYTES", 700)
    lines = [f"sentence {number}" for number in range(2000)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    source = TextSettings(input_file=str(tmp_path / "a.txt"), document_separator=separator)
    found = read(source)
    assert [line for text in found for line in text] == lines
    assert max(sum(map(len, text)) for text in found) < 700 + 20
    assert len(inputs.find_units(source)[0]) > 5


def test_an_endless_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MOST_LINE_BYTES", 5000)
    monkeypatch.setattr(documents, "READ_BYTES", 1000)
    (tmp_path / "a.txt").write_text("short\n" + "x" * 100_000)
    with pytest.raises(InputError, match=r"a\.txt: the line at byte 6 is longer"):
        read(TextSettings(input_file=str(tmp_path / "a.txt")))


# -- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit_bytes", [100, 1 << 20])
def test_invalid_utf8_is_named_with_its_byte(tmp_path, monkeypatch, unit_bytes):
    monkeypatch.setattr(inputs, "LARGEST_UNIT_BYTES", unit_bytes)
    good = "한국어 문장이다.\n".encode() * 40
    (tmp_path / "a.txt").write_bytes(good + b"ab\xff\n" + good)
    with pytest.raises(InputError, match=rf"a\.txt: byte {len(good) + 2:,} \(0xff\) is not UTF-8"):
        read(TextSettings(input_file=str(tmp_path / "a.txt")))


def test_faults_of_the_input_are_one_clear_line(tmp_path):
    with pytest.raises(InputError, match=r"--input_file .*nothing\*: no file matches"):
        read(TextSettings(input_file=f"{written(tmp_path / 'a.txt')},{tmp_path}/nothing*"))
    with pytest.raises(InputError, match="this is a folder"):
        read(TextSettings(input_file=str(tmp_path)))
    (tmp_path / "empty.txt").touch()
    assert inputs.find_units(TextSettings(input_file=str(tmp_path / "*.txt")))[1] == [str(tmp_path / "empty.txt")]
    with pytest.raises(InputError, match="every matching file is empty"):
        read(TextSettings(input_file=str(tmp_path / "empty.txt")))
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n{"text": 3}\n')
    with pytest.raises(InputError, match=r"a\.jsonl: the line at byte 17: text is not text: 3"):
        read(TextSettings(input_file=str(tmp_path / "a.jsonl")))
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n{"text": "cut\n')
    with pytest.raises(InputError, match=r"the line at byte 17: not valid JSON"):
        read(TextSettings(input_file=str(tmp_path / "a.jsonl")))
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n{"text": "a \\ud800 b"}\n')
    with pytest.raises(InputError, match=r"the line at byte 17: text holds half a surrogate pair \(\\ud800\)"):
        read(TextSettings(input_file=str(tmp_path / "a.jsonl")))
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(InputError, match=r"a\.parquet: not a Parquet file"):
        read(TextSettings(input_file=str(tmp_path / "a.parquet")))


# -- running text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expected",
    [
        ["Mr. Bennet was odd.", "His wife was not!"],
        ['"You must know," said she, "that he is here." "Is he?"', "He is."],
        ["It cost $3.50, i.e. little.", "See J. R. Smith et al. for more…", "Then 4 came."],
        ["그는 집에 갔다.", "왜 갔을까?", "모른다!"],
        ["我来了。", "你呢？", "「好。」", "再见"],
        ["Is it so? asked he.", "No."],
        ["It was I.", "He saw it."],
    ],
)
def test_sentences_of_running_text(expected):
    joiner = "" if "。" in expected[0] else " "
    text = joiner.join(expected)
    if '" "' in text:  # a closing quote and an opening one are the end of a sentence
        expected = ['"You must know," said she, "that he is here."', '"Is he?"', "He is."]
    assert sentences.split_sentences(text) == expected


def test_wrapped_lines_are_joined_and_paragraphs_are_not(tmp_path):
    (tmp_path / "a.txt").write_text(
        "CHAPTER I\n"
        "It was the best of times for everyone there, and\nit was the worst of times. "
        "It was the age of\nwisdom.\n\n"
        "The next paragraph has no full stop at its end and\n\nis over.\n\n\n"
        "CHAPTER II\nThe end.\n"
    )
    first = [
        "CHAPTER I",
        "It was the best of times for everyone there, and it was the worst of times.",
        "It was the age of wisdom.",
        "The next paragraph has no full stop at its end and",
        "is over.",
    ]
    second = ["CHAPTER II", "The end."]
    source = {"input_file": str(tmp_path / "a.txt"), "split_sentences": True}
    assert read(TextSettings(**source, document_separator="blanks")) == [first, second]
    assert read(TextSettings(**source, document_separator="file")) == [first + second]
    assert read(TextSettings(**source)) == [first[:3], first[3:4], first[4:], second]


def test_splitting_novels_loses_no_word():
    folder = real("text/british_fiction")
    whole = " ".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))).split()
    found = read(TextSettings(input_file=str(folder / "*.txt"), split_sentences=True))
    assert [word for text in found for sentence in text for word in sentence.split()] == whole
    lengths = [len(sentence.split()) for text in found for sentence in text]
    assert 10 < sum(lengths) / len(lengths) < 30  # English prose has about 20 words to a sentence
