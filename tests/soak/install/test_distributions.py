"""The sdist and its wheel in new environments: what they hold, types for users, a notebook."""

import email
import json
import re
import sys
import sysconfig
import tarfile
import venv
import zipfile
from functools import partial
from pathlib import Path

from harness.jobs import install, isolated
from harness.parsing import PROJECT, ROOT
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
# What PyPI makes of a description.
RENDER = """
import sys, pathlib, readme_renderer.markdown

print(readme_renderer.markdown.render(pathlib.Path(sys.argv[1]).read_text(), variant="GFM"))
"""
run = partial(isolated, wait_s=3600)


def test_the_sdist_holds_what_its_tests_need(built, tmp_path):
    with tarfile.open(*built.glob("*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    listed = run("git", "ls-files", cwd=ROOT).stdout.splitlines()
    assert [name for name in listed if not (folder / name).is_file()] == []
    tests = ("tests/package/test_docs.py", "tests/flags")
    run(sys.executable, "-m", "pytest", "-q", *tests, path=folder, cwd=folder)


def test_the_wheel_holds_what_its_docs_name(built):
    with zipfile.ZipFile(*built.glob("*.whl")) as archive:
        names = {name.partition(".data/data/")[2] or name for name in archive.namelist()}
    assert "distributed/slurm.sh" in names  # bert-launch --print-slurm
    kinds = ("configs", "*.toml"), ("examples", "*.py"), ("examples", "*.sh"), ("scripts", "quick*")
    for folder, pattern in kinds:
        own = {f"share/ringbert/{folder}/{path.name}" for path in (ROOT / folder).glob(pattern)}
        assert own <= names


def test_a_package_index_shows_readme_with_links_to_the_repository(built, forge, tmp_path):
    """readme_renderer makes of it what the index shows."""
    with zipfile.ZipFile(*built.glob("*.whl")) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    install("readme_renderer[md]", into=tmp_path / "renderer")
    (tmp_path / "README.md").write_text(metadata.get_payload())
    render = (sys.executable, "-c", RENDER, tmp_path / "README.md")
    html = run(*render, path=tmp_path / "renderer").stdout
    # Those of headings lead to themselves.
    addresses = re.findall(r'(?:href|src)="((?!#user-content-)[^"]*)"', html)
    assert len(addresses) > 20
    assert [address for address in addresses if not address.startswith(f"{forge}/")] == []
    assert f'src="{forge}/raw/v{PROJECT["version"]}/docs/report.png"' in html
    assert len(metadata.get_all("Project-URL")) == 3


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
