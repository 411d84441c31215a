"""The sdist and its wheel in new environments: what they hold, types for users, a notebook."""

import json
import shutil
import sys
import sysconfig
import tarfile
import venv
import zipfile
from functools import partial
from pathlib import Path

import pytest
from harness.jobs import install, isolated
from harness.parsing import ROOT
from harness.squad_files import make_entries, write_squad
from harness.texts import write_model

USERS_SCRIPT = """
import pathlib
import ringbert
answers = ringbert.QuestionAnswering("folder", doc_stride=64)
one: ringbert.Answer = answers("question", "context")
best: list[ringbert.Answer] = answers("question", "context", top_k=3)
for_all: list[list[ringbert.Answer]] = answers(["question"], "context", top_k=3)
predictions = ringbert.Classifier("folder")(["text", ("text", "pair")])
labels: list[str] = [found.label for found in predictions]
tokens: tuple[str, ...] = ringbert.Features("folder")("text").tokens
folder, file = pathlib.Path("folder"), pathlib.Path("file")
job = ringbert.Squad(model=folder, train_file=file, output_dir="folder")
score: float = ringbert.launch(job, ranks=2).scores["f1"]
"""
USERS_MISTAKES = """
ringbert.launch(job, rank=2)
ringbert.Classifier("folder", batchsize=3)
answers(3, "context")
wrong: int = one.text
"""
# Executes the cells of argv in a kernel, and prints their outputs as JSON.
EXECUTE = """
import json, sys
import nbclient, nbformat

cells = [nbformat.v4.new_code_cell(text) for text in sys.argv[1:]]
notebook = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", allow_errors=True).execute()
print(json.dumps([cell.outputs for cell in notebook.cells]))
"""
TRAIN = """
import tensorflow
import ringbert

model = {"vocab_file": "vocab.txt", "bert_config_file": "bert_config.json"}
files = {"train_file": "train.json", "predict_file": "dev.json", "output_dir": "out"}
sizes = {"max_seq_length": 40, "doc_stride": 9, "max_query_length": 9, "global_batch_size": 16}
job = ringbert.Squad(num_train_epochs=1.0, device="cpu", **model, **files, **sizes)
ringbert.launch(job, ranks=2)
"""
REFUSED = (
    'ringbert.launch(ringbert.Squad(train_file="nowhere.json", output_dir="no", **files, **sizes))'
)
run = partial(isolated, wait_s=3600)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the sdist of the checkout's tracked files and the wheel that is built from
    it."""
    folder = tmp_path_factory.mktemp("built")
    listed = run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT
    ).stdout.splitlines()
    for name in (name for name in listed if (ROOT / name).is_file()):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    venv.create(folder / "builder", with_pip=True)
    python = folder / "builder/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "build", "twine", cwd=folder)
    run(python, "-m", "build", "--outdir", folder, folder / "source", cwd=folder)
    run(python, "-m", "twine", "check", "--strict", *folder.glob("ringbert-*.*"), cwd=folder)
    return folder


def test_the_sdist_holds_what_its_tests_need(built, tmp_path):
    with tarfile.open(*built.glob("*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    source = built / "source"
    files = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert not [
        file for file in files if not (folder / file).is_file() and "egg-info" not in str(file)
    ]
    run(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "tests/package/test_docs.py",
        "tests/flags",
        path=folder,
        cwd=folder,
    )


def test_the_wheel_holds_what_its_docs_name(built):
    with zipfile.ZipFile(*built.glob("*.whl")) as archive:
        names = {name.partition(".data/data/")[2] or name for name in archive.namelist()}
    assert "distributed/slurm.sh" in names  # bert-launch --print-slurm
    for folder, pattern in ("configs", "*.toml"), ("examples", "*.py"):
        own = {f"share/ringbert/{folder}/{path.name}" for path in (ROOT / folder).glob(pattern)}
        assert own <= names


def test_an_installed_wheel_has_types_for_a_users_script(built, tmp_path):
    """mypy takes the types of the installed packages, and so finds a user's mistakes."""
    venv.create(tmp_path / "environment", with_pip=True)
    python = tmp_path / "environment/bin/python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "environment")}))
    # without editable installs
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", *built.glob("*.whl"), cwd=tmp_path)
    script = tmp_path / "script.py"
    command = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python, script)
    script.write_text(USERS_SCRIPT)
    run(*command, cwd=tmp_path)
    script.write_text(USERS_SCRIPT + USERS_MISTAKES)
    errors = [
        line
        for line in run(*command, cwd=tmp_path, status=1).stdout.splitlines()
        if "error:" in line
    ]
    assert len({line.split(":")[1] for line in errors}) == USERS_MISTAKES.count("\n") - 1, errors


def test_a_notebook_shows_progress_and_scores(tmp_path):
    jupyter = tmp_path / "jupyter"
    install("ipykernel", "nbclient", into=jupyter)
    write_model(tmp_path, num_layers=1)
    for name, count in (("train", 200), ("dev", 20)):
        write_squad(tmp_path / f"{name}.json", make_entries(count, count))
    python = (sys.executable, "-W", "ignore", "-c", EXECUTE)
    done = run(*python, TRAIN, REFUSED, cwd=tmp_path, path=f"{jupyter}:{ROOT}")
    trained, refused = json.loads(done.stdout.splitlines()[-1])
    shown = "".join(output["text"] for output in trained if output.get("name") == "stdout")
    assert "\rtraining: " in shown  # a bar that moves
    assert "done: out, exact_match" in shown
    scores = json.loads((tmp_path / "out/result.json").read_text())["scores"]
    (value,) = (output for output in trained if output["output_type"] == "execute_result")
    assert value["data"]["text/plain"].startswith(f"exact_match = {scores['exact_match']:.4f}\n")
    (error,) = (output for output in refused if output["output_type"] == "error")
    assert (error["ename"], "nowhere.json" in error["evalue"]) == ("InputError", True)
