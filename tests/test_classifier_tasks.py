"""The named tasks of the classifier: real files by the csv module, the layouts that are published, the hub."""

import csv
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from real_data import real
from texts import write_lines

from ringbert.errors import InputError
from tasks.classifier.tasks import TASKS, Columns, Hub, Split, Task, find_task, submission
from tasks.classifier.texts import check_labels, labels_of, read_task, read_task_hub

# -- real files ---------------------------------------------------------------------------------------------------


def rows_by_csv(path: Path, header: bool) -> list[list[str]]:
    """As run_classifier.py `_read_tsv` does: csv.reader with a tab and no quote character."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[header:]


# Examples by gluebenchmark.com's and NSMC's descriptions, and columns by run_classifier.py or the header. Of
# MRPC's train.tsv copies with 3,667 rows are about; GLUE's description says 3,668.
REAL = [
    ("CoLA", "train", {8551}, "train.tsv", False, (3, None, 1)),
    ("CoLA", "dev", {1043}, "dev.tsv", False, (3, None, 1)),
    ("CoLA", "test", {1063}, "test.tsv", True, (1, None, None)),
    pytest.param("SST-2", "train", {67349}, "train.tsv", True, (0, None, 1), marks=pytest.mark.slow),
    ("SST-2", "dev", {872}, "dev.tsv", True, (0, None, 1)),
    ("SST-2", "test", {1821}, "test.tsv", True, (1, None, None)),
    ("MRPC", "train", {3667, 3668}, "train.tsv", True, (3, 4, 0)),
    ("MRPC", "dev", {408}, "dev.tsv", True, (3, 4, 0)),
    ("MRPC", "test", {1725}, "test.tsv", True, (3, 4, None)),
    ("STS-B", "train", {5749}, "train.tsv", True, (7, 8, 9)),
    ("STS-B", "dev", {1500}, "dev.tsv", True, (7, 8, 9)),
    ("STS-B", "test", {1379}, "test.tsv", True, (7, 8, None)),
    pytest.param("nsmc", "train", {150000}, "ratings_train.txt", True, (1, None, 2), marks=pytest.mark.slow),
    ("nsmc", "test", {50000}, "ratings_test.txt", True, (1, None, 2)),
]


@pytest.mark.parametrize(("name", "split", "published", "file", "header", "columns"), REAL)
def test_real_files(name, split, published, file, header, columns):
    folder = real("nsmc" if name == "nsmc" else f"glue_data/{name}")
    task = find_task(name)
    texts = read_task(task, str(folder), split)
    rows = rows_by_csv(folder / file, header)
    first, second, label = ([row[c] for row in rows] if c is not None else None for c in columns)
    assert len(texts) in published
    assert texts.first == first
    assert texts.second == second
    if label is None:
        assert texts.labels is None
    elif task.is_regression:
        assert texts.labels == [float(score) for score in label]
        assert 0 <= min(texts.labels) <= max(texts.labels) <= 5
    else:
        assert texts.labels == label
        assert labels_of(texts) == ["0", "1"]
        check_labels(texts, task.labels)
    unlabelled_ids = [str(number) for number in range(len(rows))]
    assert texts.ids == ([row[0] for row in rows] if name == "nsmc" else unlabelled_ids)
    last = len(rows) - 1
    assert texts.place(last) == f"{folder / file}: line {len(rows) + header}"
    if name != "nsmc":  # the GLUE folder that holds the task's
        assert read_task(task, str(folder.parent), split) == texts


@pytest.mark.parametrize(("split", "number"), [pytest.param("train", 5, marks=pytest.mark.slow), ("test", 3)])
def test_empty_reviews_of_nsmc_stay(split, number):
    """Left out, accuracy would be over other examples than those of published tables."""
    texts = read_task(find_task("nsmc"), str(real("nsmc")), split)
    assert texts.first.count("") == number  # counted by grep


# -- folders as they are published --------------------------------------------------------------------------------

PARSES = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
HEADERS = {
    "QQP/train.tsv": "id qid1 qid2 question1 question2 is_duplicate",
    "QQP/dev.tsv": "id qid1 qid2 question1 question2 is_duplicate",
    "QQP/test.tsv": "id question1 question2",
    "MNLI/train.tsv": f"index promptID pairID genre {PARSES} sentence1 sentence2 label1 gold_label",
    "MNLI/dev_matched.tsv": f"index promptID pairID genre {PARSES} sentence1 sentence2 label1 label2 gold_label",
    "MNLI/dev_mismatched.tsv": f"index promptID pairID genre {PARSES} sentence1 sentence2 label1 gold_label",
    "MNLI/test_matched.tsv": f"index promptID pairID genre {PARSES} sentence1 sentence2",
    "MNLI/test_mismatched.tsv": f"index promptID pairID genre {PARSES} sentence1 sentence2",
    "QNLI/train.tsv": "index question sentence label",
    "QNLI/dev.tsv": "index question sentence label",
    "QNLI/test.tsv": "index question sentence",
    "RTE/train.tsv": "index sentence1 sentence2 label",
    "RTE/dev.tsv": "index sentence1 sentence2 label",
    "RTE/test.tsv": "index sentence1 sentence2",
    "WNLI/train.tsv": "index sentence1 sentence2 label",
    "WNLI/dev.tsv": "index sentence1 sentence2 label",
    "WNLI/test.tsv": "index sentence1 sentence2",
    "diagnostic/diagnostic.tsv": "index sentence1 sentence2",
    "KorNLI/multinli.train.ko.tsv": "sentence1 sentence2 gold_label",
    "KorNLI/snli_1.0_train.ko.tsv": "sentence1 sentence2 gold_label",
    "KorNLI/xnli.dev.ko.tsv": "sentence1 sentence2 gold_label",
    "KorNLI/xnli.test.ko.tsv": "sentence1 sentence2 gold_label",
    "KorSTS/sts-train.tsv": "genre filename year id score sentence1 sentence2",
    "KorSTS/sts-dev.tsv": "genre filename year id score sentence1 sentence2",
    "KorSTS/sts-test.tsv": "genre filename year id score sentence1 sentence2",
}
FIRSTS, SECONDS = ("question1", "question", "sentence1"), ("question2", "sentence", "sentence2")


def publish(root: Path, labels: dict[str, tuple[str, ...]]) -> None:
    """Files with these headers, three rows each; texts say which file and row they are of."""
    for file, header in HEADERS.items():
        names = header.split()
        first = next(name for name in FIRSTS if name in names)
        second = SECONDS[FIRSTS.index(first)]
        rows = []
        for number in range(3):
            label = labels[file.split("/")[0]][number]
            cells = {
                "index": f"{number + 5}",
                "id": f"{number + 5}",
                first: f'"{file} {number}',
                second: f"b\u2028{number}",
            }
            cells |= dict.fromkeys(("gold_label", "label", "is_duplicate", "score"), label)
            rows.append("\t".join(cells.get(name, "other") for name in names))
        write_lines(root / file, "\t".join(names), *rows)


def test_the_layouts_of_the_other_tasks(tmp_path):
    nli, entailment = ("neutral", "contradiction", "entailment"), ("not_entailment", "entailment", "entailment")
    labels = dict.fromkeys(("MNLI", "KorNLI", "diagnostic"), nli) | dict.fromkeys(("QNLI", "RTE"), entailment)
    labels |= dict.fromkeys(("QQP", "WNLI"), ("1", "0", "0")) | {"KorSTS": ("0.5", "4.200", "5")}
    publish(tmp_path, labels)
    read_files = set()
    for name in ("qqp", "mnli", "qnli", "rte", "wnli", "ax", "kornli", "korsts"):
        task = TASKS[name]
        for split, part in task.splits.items():
            texts = read_task(task, str(tmp_path), split)
            paths = [f"{task.folder}/{file}" for file in part.files]
            read_files.update(paths)
            assert texts.first == [f'"{path} {number}' for path in paths for number in range(3)]
            assert texts.second == ["b\u20280", "b\u20281", "b\u20282"] * len(paths)
            is_labelled = not split.startswith("test") or task.folder.startswith("Kor")
            expected = list(labels[task.folder]) * len(paths)
            if name == "korsts":
                expected = [float(score) for score in expected]
            assert texts.labels == (expected if is_labelled else None)
            if not task.is_regression:
                check_labels(texts, task.labels)
            by_number = task.folder.startswith("Kor")
            assert texts.ids == ([str(n) for n in range(3 * len(paths))] if by_number else ["5", "6", "7"])
    assert read_files == set(HEADERS)
    kornli = read_task(TASKS["kornli"], str(tmp_path), "train")
    assert kornli.place(4) == f"{tmp_path}/KorNLI/snli_1.0_train.ko.tsv: line 3"  # in the second of two files


def test_xnli(tmp_path):
    """Google's XnliProcessor: "contradictory" in the machine translation, rows filtered by language."""
    write_lines(
        tmp_path / "multinli/multinli.train.ko.tsv",
        "premise\thypo\tlabel", "가\t나\tcontradictory", "다\t라\tneutral", "마\t바\tentailment",
    )  # fmt: skip
    header = "language\tgold_label\tsentence1\tsentence2\tpairID"
    rows = [
        "ar\tneutral\tا\tب\t1",
        "ko\tcontradiction\t가\t나\t1",
        "en\tneutral\ta\tb\t1",
        "ko\tentailment\t다\t라\t2",
    ]
    write_lines(tmp_path / "xnli.dev.tsv", header, *rows)
    train = read_task(TASKS["xnli"], str(tmp_path), "train", "ko")
    assert train.labels == ["contradiction", "neutral", "entailment"]
    dev = read_task(TASKS["xnli"], str(tmp_path), "dev", "ko")
    assert (dev.first, dev.second) == (["가", "다"], ["나", "라"])
    assert dev.labels == ["contradiction", "entailment"]
    assert dev.place(1).endswith("xnli.dev.tsv: line 5")
    with pytest.raises(InputError, match=r"no row in --language de, only ar, en, ko"):
        read_task(TASKS["xnli"], str(tmp_path), "dev", "de")
    with pytest.raises(InputError, match=r"no file multinli/multinli.train.de.tsv"):
        read_task(TASKS["xnli"], str(tmp_path), "train", "de")


def test_mrpc_as_microsoft_publishes_it(tmp_path):
    lines = ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r", '1\t7\t8\t"a b\tc "d"\r', "0\t9\t10\te\tf\r"]
    for name in ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"):
        write_lines(tmp_path / name, *lines)
    for split in ("train", "test"):
        texts = read_task(TASKS["mrpc"], str(tmp_path), split)
        assert (texts.first, texts.second, texts.labels) == (['"a b', "e"], ['c "d"', "f"], ["1", "0"])
    write_lines(tmp_path / "dev.tsv", *lines)
    with pytest.raises(InputError, match=r"holds the examples of dev.tsv too; train.tsv is needed"):
        read_task(TASKS["mrpc"], str(tmp_path), "train")


def test_rows_of_qqp_that_a_line_break_cut_are_left_out_and_counted(tmp_path):
    rows = [f"{n}\t1\t2\tis it a\tor b\t{n % 2}" for n in range(3000)]
    rows[10:11] = ["10\t1\t2\tis it", "a\tor b\t0"]
    write_lines(tmp_path / "train.tsv", HEADERS["QQP/train.tsv"].replace(" ", "\t"), *rows)
    texts = read_task(TASKS["qqp"], str(tmp_path), "train")
    assert len(texts) == 2999
    assert texts.num_short_rows == 2
    assert texts.place(10).endswith("line 14")
    write_lines(tmp_path / "train.tsv", HEADERS["QQP/train.tsv"].replace(" ", "\t"), *rows[:600])
    with pytest.raises(InputError, match="2 of 600 rows have fewer than 6 columns"):
        read_task(TASKS["qqp"], str(tmp_path), "train")


def test_bad_task_folders(tmp_path):
    def refused(task, split, message):
        with pytest.raises(InputError, match=re.escape(message)) as caught:
            read_task(TASKS[task], str(tmp_path), split)
        assert "\n" not in str(caught.value)
        assert "--data_dir" in str(caught.value)

    refused(
        "mrpc", "train", f"{tmp_path}: no file train.tsv or msr_paraphrase_train.txt, which --task_name mrpc needs"
    )
    write_lines(tmp_path / "train.tsv", "Quality\t#1 String\t#2 Text", "1\ta\tb")
    refused("mrpc", "train", "train.tsv: no column '#2 String', only Quality, #1 String, #2 Text")
    write_lines(tmp_path / "train.tsv", "gj04\t1\t\ta", "gj04\t1\ta")
    refused("cola", "train", "train.tsv: line 2 has 3 columns, but the published file has 4")
    write_lines(tmp_path / "dev.tsv", "index\tsentence1\tsentence2", "0\ta\tb")
    refused("sts-b", "dev", "dev.tsv: no column 'score', only index, sentence1, sentence2")
    with pytest.raises(InputError, match="the folder does not exist"):
        read_task(TASKS["rte"], str(tmp_path / "nowhere"), "train")


@pytest.mark.parametrize("header", [True, False])
def test_a_task_whose_files_are_quoted(tmp_path, header):
    columns = Columns("text", label="label", is_quoted=True)
    if not header:
        columns = Columns(1, label=0, num_columns=2, is_quoted=True)
    task = Task("own", "own", ("0", "1"), ("accuracy",), "accuracy", {"train": Split(("a.tsv",), columns)})
    content = '1\t"a tab\there, ""quotes""\nand a line"\n0\tplain\n'
    (tmp_path / "a.tsv").write_text(("label\ttext\n" if header else "") + content)
    texts = read_task(task, str(tmp_path), "train")
    assert list(texts.first) == ['a tab\there, "quotes"\nand a line', "plain"]
    assert list(texts.labels) == ["1", "0"]
    (tmp_path / "a.tsv").write_text(("label\ttext\n" if header else "") + '1\t"open\n')
    with pytest.raises(InputError, match=r"a\.tsv: line \d: broken quotes"):
        read_task(task, str(tmp_path), "train")


# -- the table ----------------------------------------------------------------------------------------------------


def test_names():
    spellings = {
        "STS-B": "sts-b",
        "stsb": "sts-b",
        "SST2": "sst-2",
        "sst_2": "sst-2",
        "CoLA": "cola",
        "MNLI": "mnli",
    }
    assert {spelling: find_task(spelling).name for spelling in spellings} == spellings
    with pytest.raises(InputError, match=r"--task_name must be one of cola, .*, got qnil; did you mean qnli\?"):
        find_task("qnil")


def test_google_s_label_order():
    """`get_labels()` of the processors in run_classifier.py."""
    assert TASKS["mnli"].labels == TASKS["xnli"].labels == ("contradiction", "entailment", "neutral")
    assert TASKS["mrpc"].labels == TASKS["cola"].labels == ("0", "1")
    assert TASKS["qnli"].labels == TASKS["rte"].labels == ("entailment", "not_entailment")
    assert TASKS["sts-b"].labels is None


def test_splits():
    assert TASKS["mnli"].splits_of("dev") == ("dev_matched", "dev_mismatched")
    assert TASKS["mnli"].split("dev") is TASKS["mnli"].splits["dev_matched"]
    assert TASKS["ax"].splits_of("train") == ()
    assert TASKS[TASKS["ax"].trained_by].labels == TASKS["ax"].labels
    with pytest.raises(InputError, match="ax has no train set, only test; train with --task_name mnli"):
        TASKS["ax"].split("train")
    asked = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX"  # gluebenchmark.com/faq
    files = [part.submission for task in TASKS.values() for part in task.splits.values() if part.submission]
    assert files == [f"{name}.tsv" for name in asked.split()]


def test_submission():
    assert submission(TASKS["rte"], ["0", "2"], ["entailment", "not_entailment"]) == (
        "index\tprediction\n0\tentailment\n2\tnot_entailment\n"
    )
    scores = np.array([-0.2, 5.01, 3.14159], np.float32)
    assert (
        submission(TASKS["sts-b"], ["0", "1", "2"], scores) == "index\tprediction\n0\t0.000\n1\t5.000\n2\t3.142\n"
    )
    with pytest.raises(ValueError, match="shorter"):
        submission(TASKS["rte"], ["0", "2"], ["entailment"])


# -- the hub ------------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)


def save(folder: Path, split: str, columns: dict, names: list[str] | None = None) -> None:
    import datasets

    data = datasets.Dataset.from_dict(columns)
    if names:
        data = data.cast_column("label", datasets.ClassLabel(names=names))
    folder.mkdir(exist_ok=True)
    data.to_parquet(folder / f"{split}.parquet")


def test_hub_labels_become_google_s(tmp_path):
    """The hub numbers MNLI's labels in another order: the texts count, never the numbers."""
    task = dataclasses.replace(TASKS["rte"], labels=TASKS["mnli"].labels)
    task = dataclasses.replace(task, hub=Hub(str(tmp_path / "nli"), None, "premise", "hypothesis"))
    columns = {"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": [0, 1, 2], "idx": [4, 5, 6]}
    save(tmp_path / "nli", "train", columns, ["entailment", "neutral", "contradiction"])
    save(tmp_path / "nli", "test", columns | {"label": [-1, -1, -1]}, ["entailment", "neutral", "contradiction"])
    texts = read_task_hub(task, "train")
    assert (texts.first, texts.second, texts.ids) == (["a", "b", "c"], ["d", "e", "f"], ["4", "5", "6"])
    assert texts.labels == ["entailment", "neutral", "contradiction"]
    assert read_task_hub(task, "test").labels is None
    assert texts.place(1).endswith("nli (train): row 2")


@pytest.mark.usefixtures("offline")
def test_hub_numbers_and_scores_and_errors(tmp_path):
    cola = dataclasses.replace(TASKS["cola"], hub=Hub(str(tmp_path / "cola"), None, "sentence"))
    columns = {"sentence": ["a", "b"], "label": [1, 0], "idx": [0, 1]}
    save(tmp_path / "cola", "train", columns, ["unacceptable", "acceptable"])
    assert read_task_hub(cola, "train").labels == ["1", "0"]
    stsb = dataclasses.replace(TASKS["sts-b"], hub=Hub(str(tmp_path / "sts"), None, "sentence1", "sentence2"))
    save(tmp_path / "sts", "train", {"sentence1": ["a"], "sentence2": ["b"], "label": [2.5]})
    assert read_task_hub(stsb, "train").labels == [2.5]
    for task, split, message in (
        (cola, "dev", r"cola \(validation\): .*validation.*; or give --data_dir"),
        (
            dataclasses.replace(cola, hub=Hub("nobody/nothing", None, "text")),
            "train",
            r"nobody/nothing \(train\): ",
        ),
        (
            dataclasses.replace(cola, hub=Hub(str(tmp_path / "cola"), None, "text")),
            "train",
            "no column 'text', only sen",
        ),
        (TASKS["kornli"], "train", "has no known data set on the hub; give --data_dir"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            read_task_hub(task, split)
        assert "\n" not in str(caught.value)
