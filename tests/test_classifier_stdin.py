"""bert-classifier predicts what comes on standard input: the files of a run on a file, and the same as lines."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from classifier_runs import TEST, classify, table_in, write_rows
from program_runs import ROOT, command, environment, error_of
from texts import write_model

from tasks.classifier import files
from tasks.classifier.program import main

LABELS = ("tool", "animal", "colour")
TEXTS = [example.first for example in TEST[:20]]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    from bert import configuration, weights
    from bert.model import Bert
    from bert.text import tokenizer

    folder = tmp_path_factory.mktemp("model")
    write_model(folder, num_layers=1)
    config = configuration.config_from_file(folder / "bert_config.json")
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: n for n, name in enumerate(LABELS)}}
    bert = Bert(type(config).from_dict(config.to_dict() | names), "classifier", seed=3)
    weights.save(bert, folder / "model", tokenizer.load(str(folder / "vocab.txt")))
    return folder / "model"


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGBERT_CACHE", str(tmp_path / "cache"))


def give(monkeypatch, content: str | bytes) -> None:
    """The next process's standard input."""
    files._standard_input.cache_clear()
    raw = content if isinstance(content, bytes) else content.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))


def flags_of(model: Path, *flags: str) -> tuple[str, ...]:
    return (f"--model={model}", "--do_predict", *flags)


@pytest.fixture
def from_file(model, tmp_path, capsys) -> Path:
    """The output folder of a run on a file."""
    write_rows(tmp_path / "texts.tsv", ["text"], [[text] for text in TEXTS])
    classify(tmp_path / "from_file", *flags_of(model, f"--predict_file={tmp_path}/texts.tsv"))
    assert capsys.readouterr().out == ""
    return tmp_path / "from_file"


def check(printed: str, folder: Path, from_file: Path) -> None:
    """The files of the other run to the last byte, and a line for each text."""
    for name in ("test_results.tsv", "predictions.tsv"):
        assert (folder / name).read_bytes() == (from_file / name).read_bytes()
    lines = [line.split("\t") for line in printed.splitlines()]
    assert [label for label, _ in lines] == [label for _, label in table_in(folder / "predictions.tsv")[1:]]
    highest = np.loadtxt(folder / "test_results.tsv").max(1)
    np.testing.assert_allclose([float(value) for _, value in lines], highest, atol=0.5e-4 + 1e-9)


def test_texts_and_tables_on_standard_input(model, tmp_path, from_file, capsys, monkeypatch):
    rows = {
        "text": "".join(f"{text}\r\n" for text in TEXTS),
        "tsv": "id\ttext\n" + "".join(f"{number}\t{text}\n" for number, text in enumerate(TEXTS)),
        "csv": "text,id\n" + "".join(f'"{text}",1\n' for text in TEXTS),
        "jsonl": "".join(json.dumps({"text": text}) + "\n" for text in TEXTS),
    }
    for kind, content in rows.items():
        give(monkeypatch, content)
        flags = ["--predict_file=-", *([] if kind == "text" else [f"--predict_format={kind}"])]
        classify(tmp_path / kind, *flags_of(model, *flags))
        check(capsys.readouterr().out, tmp_path / kind, from_file)


def test_pairs_and_labels_on_standard_input(model, tmp_path, capsys, monkeypatch):
    write_rows(tmp_path / "pairs.tsv", ["text", "more"], [(e.first, e.second) for e in TEST])
    pairs = "--text_pair_column=more"
    classify(tmp_path / "file", *flags_of(model, f"--predict_file={tmp_path}/pairs.tsv", pairs))
    give(monkeypatch, "".join(f"{e.first}\t{e.second}\n" for e in TEST))
    assert classify(tmp_path / "pairs", *flags_of(model, "--predict_file=-", pairs)) == {}
    check(capsys.readouterr().out, tmp_path / "pairs", tmp_path / "file")
    give(
        monkeypatch, "".join(json.dumps({"text": e.first, "more": e.second, "label": e.kind}) + "\n" for e in TEST)
    )
    flags = ("--predict_file=-", "--predict_format=jsonl", pairs)
    assert "predict_accuracy" in classify(tmp_path / "labels", *flags_of(model, *flags))


@pytest.mark.parametrize(
    "settings", [{"task_name": "mrpc", "text_pair_column": None}, {"task_name": None, "text_pair_column": "more"}]
)
def test_a_run_on_pairs_reads_lines_as_pairs(model, tmp_path, settings, capsys, monkeypatch):
    shutil.copytree(model, tmp_path / "run/model")
    (tmp_path / "run/run.json").write_text(json.dumps({"config": settings}))
    flags = flags_of(tmp_path / "run/model", "--predict_file=-")
    lines = "".join(f"{e.first}\t{e.second}\n" for e in TEST)
    give(monkeypatch, lines)
    classify(tmp_path / "flag", *flags, "--text_pair_column=more")
    expected = capsys.readouterr().out
    give(monkeypatch, lines)
    classify(tmp_path / "pairs", *flags)
    assert capsys.readouterr().out == expected
    for content, number in (("cat\tdog\ncow\n", "line 2 has no tab:"), ("cat\tdog\tcow\n", "line 1 has 2 tabs:")):
        give(monkeypatch, content)
        with pytest.raises(SystemExit):
            classify(tmp_path / "refused", *flags)
        message = error_of(capsys.readouterr().err, "bert-classifier")
        assert f"{number} the model was trained on pairs" in message
        assert "--text_pair_column" in message
    write_rows(tmp_path / "texts.tsv", ["text"], [[text] for text in TEXTS])
    classify(tmp_path / "file", *flags_of(tmp_path / "run/model", f"--predict_file={tmp_path}/texts.tsv"))
    assert "warning: the model was trained on pairs of texts" in capsys.readouterr().err


def test_a_run_on_single_texts_reads_whole_lines(model, tmp_path, capsys, monkeypatch):
    shutil.copytree(model, tmp_path / "run/model")
    (tmp_path / "run/run.json").write_text(json.dumps({"config": {"task_name": "sst-2"}}))
    printed = []
    for place in (tmp_path / "run/model", model):
        give(monkeypatch, "cat\tdog\ncow\n")
        classify(tmp_path / f"out{len(printed)}", *flags_of(place, "--predict_file=-"))
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_command_reads_standard_input(model, tmp_path, from_file, ranks):
    """Also under bert-launch, more than mpirun delivers whole; only the predictions are on standard output."""
    flags = flags_of(model, "--predict_file=-", f"--output_dir={tmp_path}/out")
    content = "".join(f"{text}\n" for text in TEXTS)
    if ranks > 1:
        write_rows(tmp_path / "many.tsv", ["text"], [[text] for text in TEXTS * 300])
        classify(tmp_path / "many", *flags_of(model, f"--predict_file={tmp_path}/many.tsv"))
        content, from_file = content * 300, tmp_path / "many"
        assert len(content) > 100_000
    done = subprocess.run(
        command("tasks.classifier", *flags, ranks=ranks),
        env=environment(), input=content, capture_output=True, text=True, timeout=200, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(done.stdout, tmp_path / "out", from_file)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PRTE_LAUNCHED": "1"}, "mpirun of Open MPI 5 does not deliver it whole: give it to bert-launch"),
        (
            {"RINGBERT_STANDARD_INPUT": "elsewhere /proc/1/fd/0"},
            "bert-launch runs on elsewhere, the first rank on",
        ),
    ],
)
def test_an_input_that_would_not_arrive(model, tmp_path, variables, message, capsys, monkeypatch):
    give(monkeypatch, "cat\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        classify(tmp_path / "out", *flags_of(model, "--predict_file=-"))
    assert message in error_of(capsys.readouterr().err, "bert-classifier")


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("", (), "standard input (--predict_file -): the file is empty"),
        (b"cat\nd\xf6g\n", (), "standard input (--predict_file -): line 2 is not UTF-8"),
        ("cat\tdog\ncow\n", ("--text_pair_column=more",), "line 2 has no tab between text and more"),
        ("label\ncat\n", ("--predict_format=tsv",), "no column 'text', only label"),
        ("text\tid\ncat\n", ("--predict_format=tsv",), "line 2 has 1 columns, but the header has 2"),
        ("cat\n", ("--predict_format=jsonl",), "line 1: "),
    ],
)
def test_what_is_refused(model, tmp_path, content, flags, message, capsys, monkeypatch):
    give(monkeypatch, content)
    with pytest.raises(SystemExit) as stop:
        classify(tmp_path / "out", *flags_of(model, "--predict_file=-", *flags))
    assert stop.value.code == 1
    assert message in error_of(capsys.readouterr().err, "bert-classifier")


def test_a_format_needs_standard_input(capsys):
    with pytest.raises(SystemExit):
        main(["--do_predict", "--predict_file=x.csv", "--predict_format=csv", "--output_dir=o"])
    assert "--predict_format is for --predict_file -" in error_of(capsys.readouterr().err, "bert-classifier")
