"""Files of tagged sentences: what is a line, a column, a comment, a word and a tag."""

import json
from functools import partial
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from harness.refusals import refused

from ringbase.files import read_json
from tasks.tagger.reading import Sentence, Source, read
from tasks.tagger.scoring import spans
from tasks.tagger.settings import FileSettings

SEQEVALS = read_json(Path(__file__).resolve().parents[1] / "goldens/entities.json")["seqeval"]
PARIS_IS = ["Paris", "is"]


def read_file(path, content, kind="train", characters=False, labels=()):
    path.write_bytes(content.encode())
    return read(Source(FileSettings(**{f"{kind}_file": str(path)}), kind), characters, labels)


def pairs(sentences):
    return [
        [*zip(each.words, each.tags or [None] * len(each.words), strict=True)] for each in sentences
    ]


PARIS, ROME = [("Paris", "B-LOC"), ("is", "O")], [("Rome", "B-LOC"), ("was", "O")]
BOTH = [PARIS, ROME]
CITIES = "Paris\tB-LOC\nis\tO\n\nRome\tB-LOC\nwas\tO\n"
READ = {  # by what the line of the format's description says
    "line feeds": (CITIES, BOTH),
    "Windows": (CITIES.replace("\n", "\r\n"), BOTH),
    "an old Mac": (CITIES.replace("\n", "\r"), BOTH),
    "copied twice to Windows": (CITIES.replace("\n", "\r\r\n"), BOTH),
    "runs of blanks": (CITIES.replace("\t", "  "), BOTH),
    "blanks at the ends": (" " + CITIES.replace("\t", " ").replace("O\n", "O \n"), BOTH),
    "a blank behind a tag": (CITIES.replace("LOC\n", "LOC \n"), BOTH),
    # "the comments … start with # id" (MultiCoNER's description of its format)
    "MultiCoNER": (
        (
            "# id 1\tdomain=en\nParis _ _ B-LOC\nis _ _ O\n\n# id 2\tdomain=en\nRome _ _ B-LOC\nwas"
            " _ _ O\n"
        ),
        BOTH,
    ),
    # "Comment lines starting with hash … must be in the beginning of a sentence" (CoNLL-U)
    "CoNLL-U's comments": (
        "# newdoc\n# sent_id = 1\n# text = Paris is O\nParis\tB-LOC\nis\tO\n\n",
        [PARIS],
    ),
    "KLUE": (
        "## 컬럼명 : CHAR\tNE_TAG\n## klue-ner-1\t<Paris:LOC> is\nParis\tB-LOC\nis\tO\n\n",
        [PARIS],
    ),
    "hashes that are words": (
        "#\tO\n## x\tO\n##\tO\nis\tO\n\n",
        [[("#", "O"), ("## x", "O"), ("##", "O"), ("is", "O")]],
    ),
    "hashes between blanks": (
        "Paris B-LOC\n## O\n# B-LOC\n\n# O\nis O\n",
        [[("Paris", "B-LOC"), ("##", "O"), ("#", "B-LOC")], [("#", "O"), ("is", "O")]],
    ),
    "hashes with plain tags": (
        (
            "# newdoc\n# text = # is a\n#\tSYM\nis\tVERB\n\n## note 2\t<x>\n##\tNOUN\n#\tSYM\n\n"
            "$\tSYM\ngo\tNOUN\n"
        ),
        [
            [("#", "SYM"), ("is", "VERB")],
            [("##", "NOUN"), ("#", "SYM")],
            [("$", "SYM"), ("go", "NOUN")],
        ],
    ),
    "a hashtag": ("#paris B-LOC\nis O\n", [[("#paris", "B-LOC"), ("is", "O")]]),
}


@pytest.mark.parametrize("name", READ)
def test_lines_columns_and_comments(tmp_path, name):
    content, expected = READ[name]
    assert pairs(read_file(tmp_path / "a.conll", content)) == expected


@pytest.mark.parametrize(
    "mark", ["\xa0", "\x85", "\u2028", "\u2029", "\u3000", "\u2003", "\x0b", "\x0c", "\x1c"]
)
def test_white_space_other_than_blanks_and_tabs_belongs_to_words(tmp_path, mark):
    """At any place of a word, which str.split, str.splitlines and str.strip would cut or take
    away."""
    words = [f"{mark}10{mark}000{mark}", "km"]
    for gap in " \t":
        rows = "".join(f"{word}{gap}O\n" for word in words) + f"Bonn{gap}B-LOC\n\n"
        assert pairs(read_file(tmp_path / "a.conll", rows)) == [
            [*((w, "O") for w in words), ("Bonn", "B-LOC")]
        ]
    lines = "\n".join(words) + "\n"
    assert [each.words for each in read_file(tmp_path / "b.conll", lines, "predict")] == [words]


def test_words_of_one_column(tmp_path):
    """A comment has more columns; with --characters a line of one blank is a character."""
    lines = "# id 1\n#\n#tag\nParis\n\n## id 2\nRome\n"
    found = read_file(tmp_path / "a.conll", lines, "predict")
    assert [each.words for each in found] == [["#", "#tag", "Paris"], ["Rome"]]
    for gap, tags in ("", None), ("\t", None), ("\tO", ["O"] * 3):
        lines = f"a{gap}\n {gap}\nb{gap}\n\nc{gap}\n"
        found = read_file(tmp_path / "b.conll", lines, "predict", characters=True)
        assert [each.words for each in found] == [["a", " ", "b"], ["c"]]
        assert found[0].tags == tags


@pytest.mark.parametrize("mark", ["", "_", "-", "?", "-1"])
def test_a_file_to_predict_may_have_marks_instead_of_tags(tmp_path, mark):
    for name, content in (
        ("a.conll", f"#\t{mark}\nParis\t{mark}\n\n"),
        ("a.jsonl", json.dumps({"tokens": ["#", "Paris"], "ner_tags": [mark, mark]})),
        ("b.jsonl", '{"tokens": ["#", "Paris"], "ner_tags": null}'),
    ):
        (found,) = read_file(tmp_path / name, content, "predict", labels=("O", "B-LOC"))
        assert (found.words, found.tags) == (["#", "Paris"], None)
    for kind, content in (("dev", f"Paris\t{mark}\n"), ("predict", f"Paris\t{mark}\nis\tO\n")):
        refused(partial(read_file, tmp_path / "c.conll", content, kind), "line 1", "'Paris'")


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.conll", "Paris\tB-LOC\n\n\tO\n", ["line 3", "empty"]),
        ("a.conll", "Paris\tB-LOC\n\tO\nis\tO\n", ["line 2", "empty"]),
        ("a.conll", "Paris NNP\nNy NNP\n", ["line 1", "'Paris'", "B-, I-, E- or S-", "'NNP'"]),
        ("a.conll", "in IN\n\nParis B-LOC\n", ["line 1", "'in'", "no tag", "a prefix", "'IN'"]),
        ("a.conll", "in IN\n\nParis _\n", ["line 3", "'Paris'", "'_'"]),
        (
            "a.jsonl",
            '{"tokens": ["in", "is"], "pos_tags": ["IN", " V"]}',
            ["line 1", "'is'", "' V'"],
        ),
        ("a.conll", "ab B-LOC\nb M-LOC\n\nc I-PER\n", ["B-LOC, I-PER, M-LOC", "one of", "BMES"]),
        ("a.conll", "ab U-LOC\nb S-LOC\n", ["S-LOC, U-LOC", "one of", "BILOU"]),
        ("a.conll", "ab L-LOC\nb E-LOC\n", ["E-LOC, L-LOC", "one of", "BIOES"]),
        ("a.conll", "1\tParis\tB-LOC\n2\tis\tO\n", ["first column", "CoNLL-U"]),
        ("a.conll", "1-2\tim\t_\n1\tin\tADP\n2\tdem\tDET\n", ["first column", "CoNLL-U"]),
        ("a.conll", "1\tin\tADP\n1.1\tis\t_\n2\tdem\tDET\n", ["first column", "CoNLL-U"]),
        ("a.conll", "acute B\nleukemia I\nis O\n", ["B, I, O", "B-ENTITY"]),
        ("a.conll", "- -\nis O\nit -\n", ["line 1", "'-'"]),
        ("a.conll", "# a comment alone\n", ["no sentence"]),
        ("a.conll", "fox B-x\naxe n B-x\n", ["line 2", "3 columns", "2 are needed"]),
        ("a.conll", "fox\naxe\n", ["line 1", "no tags"]),
        ("a.conll", "fox X-x\n", ["line 1", "'fox'", "X-x"]),
        ("a.conll", "f O\no B-x\n", ["--characters"]),
        ("a.jsonl", '{"tokens": [], "ner_tags": []}', ["line 1", "tokens"]),
        ("a.jsonl", '{"tokens": ["fox"], "ner_tags": ["O", "O"]}', ["line 1", "1 words", "2 tags"]),
        ("a.jsonl", '{"tokens": ["fox"]', ["line 1"]),
        ("a.conll", "Paris B-LOC\n# id 2\tx\nis O\n", ["line 1", "word 2", "# id 2", "'x'"]),
        (
            "a.jsonl",
            '{"tokens": ["", "is"], "ner_tags": ["B-LOC", "O"]}',
            ["line 1", "word 1", "empty"],
        ),
        (
            "a.jsonl",
            '{"tokens": ["is", "New\\nYork"], "ner_tags": ["O", "B-LOC"]}',
            ["line 1", "word 2", "New\\nYork"],
        ),
        ("a.jsonl", '{"tokens": ["a\\tb"], "ner_tags": ["B-LOC"]}', ["line 1", "word 1", "a\\tb"]),
        ("a.jsonl", '{"tokens": ["is"], "ner_tags": ["B-LOC "]}', ["line 1", "'B-LOC '"]),
        ("a.jsonl", '{"tokens": ["is"], "ner_tags": [1]}', ["line 1", "`ner_tags`", "got [1]"]),
        ("a.jsonl", '{"tokens": [null], "ner_tags": ["O"]}', ["line 1", "`tokens`"]),
        ("a.jsonl", '{"tokens": ["is"], "ner_tags": null}', ["line 1", "no tags"]),
        ("a.JSONL", '{"token": ["is"]}', ["no column 'tokens'", "did you mean 'token'"]),
        ("a.parquet", "Paris\tB-LOC\n", ["Parquet"]),
    ],
)
def test_what_is_no_word_or_no_tag_is_one_line(tmp_path, name, content, named):
    refused(lambda: read_file(tmp_path / name, content), "--train_file", name, *named)


def test_a_mark_may_be_its_own_tag(tmp_path):
    """As in Mac-Morpho; a model that has this tag predicts and evaluates files of such a mark
    alone."""
    content = "Quem\tPRO\nviu\tV\n-\t-\nme\tPRO\n?\t?\n\n?\t?\n"
    expected = [["PRO", "V", "-", "PRO", "?"], ["?"]]
    for kind, labels in (("train", ()), ("dev", ("O", "PRO", "V", "-", "?"))):
        found = read_file(tmp_path / "a.conll", content, kind, labels=labels)
        assert [each.tags for each in found] == expected
    found = read_file(tmp_path / "a.conll", content, "predict", labels=("O", "PRO", "V", "-", "?"))
    assert [each.tags for each in found] == expected


@pytest.mark.parametrize("kind", ["train", "predict"])
def test_a_conllu_file_with_ranges_is_no_file_of_words(tmp_path, kind):
    lines = ["1-2\tim\t_\t_", "1\tin\tADP\t_", "2\tdem\tDET\t_", "2.1\t_\t_\t_", "3\tHaus\tNOUN\t_"]
    call = partial(read_file, tmp_path / "a.conllu", "\n".join(lines) + "\n", kind)
    refused(call, "first column", "CoNLL-U")


def test_lines_of_json_end_as_those_of_columns_do(tmp_path):
    cities = ["Paris", "Rome"]
    lines = [json.dumps({"tokens": [city, "is"], "ner_tags": ["B-LOC", "O"]}) for city in cities]
    for end in ("\n", "\r\n", "\r"):
        found = read_file(tmp_path / "a.jsonl", end.join(lines))
        assert [each.words[0] for each in found] == cities


def test_parquet_holds_the_same_as_json_lines(tmp_path):
    rows = [
        {"id": 7, "tokens": ["Paris", "is"], "ner_tags": ["B-LOC", "O"]},
        {"id": 8, "tokens": ["Rome"], "ner_tags": None},
    ]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, unit in ("a.jsonl", "line"), ("a.parquet", "row"):
        files = FileSettings(predict_file=str(tmp_path / name), train_file=str(tmp_path / name))
        assert read(Source(files, "predict"), False) == [
            Sentence(["Paris", "is"], ["B-LOC", "O"], 0, f"{unit} 1"),
            Sentence(["Rome"], None, 0, f"{unit} 2"),
        ]
        refused(lambda files=files: read(Source(files, "train"), False), name, f"{unit} 2", "tags")


def test_a_data_set_has_names_of_tags_or_none(tmp_path, monkeypatch):
    """-1 is how data sets mark what is not known; it is not the last name. Tags may be texts."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    text, number = datasets.Value("string"), datasets.Value("int64")
    texts = datasets.List(text)
    classes = datasets.List(datasets.ClassLabel(names=["O", "B-LOC"]))

    def read_hub(name, tags, tags_type=classes, split="train", words=PARIS_IS, words_type=texts):
        columns = datasets.Features({"tokens": words_type, "ner_tags": tags_type})
        rows = datasets.Dataset.from_dict({"tokens": [words], "ner_tags": [tags]}, columns)
        rows.to_parquet(tmp_path / name / f"{split}.parquet")
        kind = "train" if split == "train" else "predict"
        return read(Source(FileSettings(dataset_name=f"{tmp_path}/{name}"), kind), False)

    expected = [Sentence(PARIS_IS, ["B-LOC", "O"], 0, "row 1")]
    assert read_hub("a", [1, 0]) == read_hub("b", ["B-LOC", "O"], texts) == expected
    assert read_hub("c", [-1, -1], split="test")[0].tags is None
    for name, tags in ("d", [-1, -1]), ("e", [1, -1]):
        refused(lambda given=(name, tags): read_hub(*given), "--dataset_name", "row 1", "'-1'")
    numbers = datasets.List(number)
    refused(lambda: read_hub("f", [1, 0], numbers), "row 1", "`ner_tags`", "[1, 0]")
    refused(lambda: read_hub("g", 1, number), "row 1", "ner_tags")
    letters = ["O", "O", "O"]
    refused(lambda: read_hub("h", letters, texts, "train", "fox", text), "row 1", "tokens")


# What the prefixes of BIOES are called in other schemes. BMES has no other sign for an I.
NAMES = {"BILOU": {"E": "L", "S": "U"}, "BMES": {"I": "M"}, "BIOES": {}}


@pytest.mark.parametrize("characters", [False, True])
@pytest.mark.parametrize("scheme", NAMES)
def test_the_entities_of_all_schemes_are_seqevals(tmp_path, scheme, characters):
    """Also of sequences that break the rules of their scheme: seqeval read them in BIOES."""
    names = NAMES[scheme]
    blocks = []
    for tags, _ in SEQEVALS:
        written = [names.get(tag[0], tag[0]) + tag[1:] for tag in tags.split()]
        blocks.append("".join(f"a {tag}\n" for tag in written))
    found = read_file(tmp_path / "a.conll", "\n".join(blocks), "dev", characters)
    prefixes = {tag[0] for each in found for tag in each.tags}
    assert prefixes == (set("BIO") if characters else set("BIOES"))
    for each, (_, entities) in zip(found, SEQEVALS, strict=True):
        assert [*spans(each.tags)] == [tuple(entity) for entity in entities]


def test_files_of_two_schemes_belong_together_where_each_has_one(tmp_path):
    labels = ["O", "B-LOC", "E-LOC", "S-LOC"]
    for end, single in ("L", "U"), ("E", "S"):
        content = f"New B-LOC\nYork {end}-LOC\nor O\nRome {single}-LOC\n"
        (one,) = read_file(tmp_path / "a.conll", content, "dev", labels=labels)
        assert one.tags == ["B-LOC", "E-LOC", "O", "S-LOC"]
    for content in ("x U-PER\n", "x NOUN\n"):
        call = partial(read_file, tmp_path / "b.conll", content, "dev", labels=labels)
        refused(call, "line 1", "'x'", "one of O, B-LOC, E-LOC, S-LOC")


def test_plain_tags_are_those_of_any_file_without_prefixes(tmp_path):
    """Columns, lists, and the names of a data set; the model's tags decide once they are known."""
    expected = [[("an", "DET"), ("E-mail", "NOUN"), ("-", "-LRB-"), ("B-52", "O")]]
    columns = "an DET\nE-mail NOUN\n- -LRB-\nB-52 O\n"
    assert pairs(read_file(tmp_path / "a.conll", columns)) == expected
    words, tags = zip(*expected[0], strict=True)
    for name in ("tags", "pos_tags", "upos"):
        row = json.dumps({"tokens": words, name: tags})
        assert pairs(read_file(tmp_path / "a.jsonl", row)) == expected
    labels = ["DET", "NOUN"]
    known = read_file(tmp_path / "b.conll", "an DET\n", "dev", labels=labels)
    assert pairs(known) == [[("an", "DET")]]
    for tag in ("VERB", "B-NOUN", "O", "_"):
        call = partial(read_file, tmp_path / "c.conll", f"an {tag}\n", "dev", labels=labels)
        refused(call, "line 1", "'an'", "one of DET, NOUN", f"'{tag}'")
