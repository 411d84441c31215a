"""Files of data: JSON, SQuAD, tables of a classifier, and texts."""

import contextlib
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from distributed.run import Run
from fuzz.reader import rows, to_json
from ringbert.errors import InputError

# -- JSON ---------------------------------------------------------------------------------------------------------


def read_any_json(folder: Path, name: str) -> None:
    from ringbert.json_files import read_json

    value = read_json(folder / name)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    assert type(value) in (dict, list, str, int, float, bool, type(None))


ANY_JSON = to_json(
    {"a": [1, -2.5, 1e-7, None, True, "text \u2603 \U0001f600"], "b": {"c": {"d": [[], {}, ""]}}, "": 0}
)


# -- SQuAD --------------------------------------------------------------------------------------------------------


def squad(is_v2: bool) -> bytes:
    contexts = ["the cat sat on the mat . a dog ran", "émile saw 3 foxes , and \u202f two hares in the snow"]
    paragraphs = []
    for number, context in enumerate(contexts):
        first = {
            "id": f"q{number}",
            "question": "who sat ?",
            "answers": [{"text": context[4:7], "answer_start": 4}],
        }
        other = {"id": f"r{number}", "question": "what ?", "answers": [{"text": context[:3], "answer_start": 0}]}
        if is_v2:
            first["is_impossible"] = False
            other |= {
                "is_impossible": True,
                "answers": [],
                "plausible_answers": [{"text": "x", "answer_start": 0}],
            }
        paragraphs.append({"context": context, "qas": [first, other]})
    return to_json({"version": "2.0" if is_v2 else "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})


def read_squad(folder: Path, name: str) -> None:
    from bert.text import tokenizer
    from distributed.rows import Rows
    from tasks.squad.reading import Source, read
    from tasks.squad.settings import WindowSettings
    from tasks.squad.windows import windows

    is_training, is_v2 = "train" in name, "v2" in name
    flag = "--train_file" if is_training else "--predict_file"
    examples = read(Source(str(folder / name), flag, is_training), is_v2)
    assert examples.questions
    assert len({question.id for question in examples.questions}) == len(examples.questions)
    for question in examples.questions:
        question.id.encode()
        assert examples.paragraphs[question.paragraph].strip()
        if is_training and question.answers and not question.is_impossible:
            text, start = question.answers[0]
            assert 0 <= start <= start + len(text) <= len(examples.paragraphs[question.paragraph])
    if hash_of(folder / name) % 8:
        return  # building windows takes ten times as long as reading
    words = tokenizer.load(str(folder / "vocab.txt"))
    settings = WindowSettings(
        max_seq_length=24, doc_stride=6, max_query_length=8, allow_unknown=True, version_2_with_negative=is_v2
    )
    cache = folder / "cache"
    key = windows(settings, examples, words, cache, Run(folder, is_writer=False))
    table = Rows.open(cache / key / "windows.arrow")
    ids, offsets = table.column("input_ids")
    lengths = np.diff(offsets)
    assert len(table)
    assert ((ids >= 0) & (ids < words.vocab_size)).all()
    assert (lengths <= 24).all()
    for end in ("start_position", "end_position"):
        assert (table.column(end) < lengths).all()
    assert (table.column("start_position") <= table.column("end_position")).all()


def hash_of(path: Path) -> int:
    return zlib.crc32(path.read_bytes())


# -- classifiers --------------------------------------------------------------------------------------------------

CSV = b'text,more,label\nthe cat sat,a dog,yes\n"he said ""no"", twice\nthen",x,no\nfoxes,,yes\n'
TSV = 'text\tmore\tlabel\nthe cat sat\ta dog\tyes\nhe said "no"\tx\tno\nÉmile\t\tyes\n'.encode()
JSONL = rows(
    {"text": "the cat", "more": "a dog", "label": "yes", "id": 1},
    {"text": "he \u2603", "more": "", "label": "no", "score": 1.5},
    {"text": "foxes \U0001f600", "more": "x", "label": 3},
)
NUMBER_LINES = rows({"text": "a", "more": "b", "label": 1.5}, {"text": "c", "more": "d", "label": -2})
NUMBERS = b"text,more,label\na cat,a dog,1.5\na fox,b,-2\nb,c,3e-1\n"


def read_classifier(folder: Path, name: str) -> None:
    from tasks.classifier.tasks import Columns
    from tasks.classifier.texts import check_labels, labels_of, read_file

    is_regression = "numbers" in name
    columns = Columns("text", "more", "label", id="")
    texts = read_file(str(folder / name), "--train_file", columns, numeric_labels=is_regression, needs_labels=True)
    check_texts(texts)
    assert texts.labels is not None
    if is_regression:
        assert all(math.isfinite(label) for label in texts.labels)
    else:
        labels = labels_of(texts)
        assert len(set(labels)) == len(labels)
        assert all(labels)
        check_labels(texts, labels, "--train_file")


def check_texts(texts: Any) -> None:
    assert 0 < len(texts) == len(texts.first) == len(texts.ids)
    assert texts.second is None or len(texts.second) == len(texts)
    assert texts.labels is None or len(texts.labels) == len(texts)
    "".join([*texts.first, *(texts.second or ())]).encode()
    texts.place(len(texts) - 1)


GLUE = {
    "CoLA/train.tsv": (b"gj04\t1\t\tThe cat sat.\ngj04\t0\t*\tSat cat the.\nks08\t1\t\tFoxes ran.\n", "cola"),
    "STS-B/dev.tsv": (
        b"index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        b"0\tmain\tMSR\t2012\t1\tnone\tnone\tA cat sits.\tA cat sat.\t4.25\n"
        b'1\tmain\tMSR\t2012\t2\tnone\tnone\tA "dog" ran.\tTwo dogs.\t0.5\n',
        "sts-b",
    ),
    "MRPC/train.tsv": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n".encode()
        + b"1\t7\t8\tA cat.\tOne cat.\n0\t9\t10\tA dog.\tFoxes.\n",
        "mrpc",
    ),
    "SST-2/test.tsv": (b"index\tsentence\n0\tuneasy mishmash\n1\ta dog of a film\n", "sst-2"),
}


def read_glue(folder: Path, name: str) -> None:
    from tasks.classifier.tasks import find_task
    from tasks.classifier.texts import check_labels, read_task

    task = find_task(GLUE[name][1])
    texts = read_task(task, str(folder), Path(name).stem)
    check_texts(texts)
    if task.labels and texts.labels is not None:
        with contextlib.suppress(InputError):
            check_labels(texts, task.labels, "--data_dir")
    elif texts.labels is not None:
        assert all(math.isfinite(label) for label in texts.labels)


# -- corpora and texts --------------------------------------------------------------------------------------------

TEXT = b"The cat sat on the mat.\nA dog ran.\n\nFoxes saw it.\n\n\nThe end came.\n" * 3
DOCUMENTS = rows({"text": "The cat sat.\nA dog ran.", "id": 7}, {"text": "Foxes.", "id": None}, {"text": None})


def read_documents(folder: Path, name: str) -> None:
    from bert.corpus.documents import documents
    from bert.corpus.inputs import find_units
    from bert.corpus.settings import TextSettings

    units, _ = find_units(TextSettings(input_file=str(folder / name), split_sentences="split" in name))
    for unit in units:
        for document in documents(
            unit, TextSettings(input_file=str(folder / name), split_sentences="split" in name)
        ):
            assert document
            assert all(document)
            "".join(document).encode()


def read_feature_lines(folder: Path, name: str) -> None:
    from bert.text import tokenizer
    from tasks import features

    words = tokenizer.load(str(folder / "vocab.txt"))
    config = features.Config(
        input_file=str(folder / name), output_file="x", model="m", max_seq_length=16, allow_unknown=True
    )
    table = features.tokenize(config, words)
    ids = table.column("input_ids").combine_chunks().flatten().to_numpy()
    assert len(table)
    assert ((ids >= 0) & (ids < words.vocab_size)).all()


FEATURES = "the cat sat\na dog ||| foxes ran\n\nÉmile ||| \n".encode()
