"""Wheel and sdist in clean environments, and whose packages are imported: Dask has a `distributed`, too."""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("ringbert", "bert", "distributed", "tasks")
SOURCES = (
    *PACKAGES, "tests", "benchmarks", "configs", "docs", "examples", "scripts", "requirements", ".ci",
    "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", ".gitignore",
    ".pre-commit-config.yaml",
)  # fmt: skip
UNREACHABLE = re.compile(r"(NewConnection|ConnectTimeout|NameResolution|Proxy)Error.*|.*Network is unreachable.*")
ALONE = "install ringbert in an environment of its own"


def run(*command: object, path: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess:
    """Runs a command with nothing but `path` in PYTHONPATH; the tests themselves may see the checkout by it."""
    environment = {**os.environ, "PYTHONPATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    arguments = [str(word) for word in command]
    return subprocess.run(arguments, env=environment, cwd=cwd, capture_output=True, text=True, timeout=280)


def pip(environment: Path, *arguments: object) -> None:
    """Runs pip; skips the test only where no package index can be reached."""
    done = run(environment / "bin/python", "-m", "pip", *arguments)
    if done.returncode and (reason := UNREACHABLE.search(done.stdout + done.stderr)):
        pytest.skip(f"the package index cannot be reached: {reason[0][:200]}")
    assert done.returncode == 0, done.stderr


def modules(folder: Path) -> set[str]:
    """The modules of the four packages below a folder."""
    paths = (path for name in PACKAGES for path in (folder / name).rglob("*.py"))
    return {path.relative_to(folder).as_posix() for path in paths}


# Whose packages are imported: a folder that looks like what pip leaves, which is all that is looked at.


@pytest.fixture
def site(tmp_path) -> Path:
    """The four packages with their list of installed files, as below site-packages."""
    folder = tmp_path / "site"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    record(folder, "ringbert", modules(folder))
    return folder


def record(site: Path, distribution: str, files: set[str]) -> None:
    info = site / f"{distribution}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    digests = {name: hashlib.sha256((site / name).read_bytes()).digest() for name in files}
    encoded = {name: base64.urlsafe_b64encode(digest).decode().rstrip("=") for name, digest in digests.items()}
    (info / "RECORD").write_text("".join(f"{name},sha256={text},1\n" for name, text in encoded.items()))


def import_tasks(*path: Path, cwd: Path) -> subprocess.CompletedProcess:
    return run(sys.executable, "-c", "import tasks", path=os.pathsep.join(map(str, path)), cwd=cwd)


def test_what_pip_installed_is_imported(site, tmp_path):
    done = import_tasks(site, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("__init__.py", "has overwritten {path} of ringbert"),
        ("actor.py", "has put {path} among the files of ringbert"),
    ],
)
def test_a_mixed_package_stops_with_one_line(site, tmp_path, file, words):
    path = site / "distributed" / file
    path.write_text("raise AssertionError('nothing of it is imported')\n")
    record(site, "dask-like", {f"distributed/{file}"})
    done = import_tasks(site, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"error: the package dask-like {words.format(path=path)}: {ALONE}\n"


def test_a_missing_file_stops_with_one_line_and_an_edited_one_does_not(site, tmp_path):
    path = site / "distributed" / "plan.py"
    path.write_text(path.read_text() + "# somebody's own change\n")
    assert import_tasks(site, cwd=tmp_path).returncode == 0
    path.unlink()
    done = import_tasks(site, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {path} of ringbert is missing, ")
    assert done.stderr.count("\n") == 1


def test_another_distributed_before_ours_stops_with_one_line(tmp_path):
    (tmp_path / "distributed").mkdir()
    (tmp_path / "distributed/__init__.py").write_text("")
    done = import_tasks(tmp_path, ROOT, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"error: `import distributed` finds {tmp_path}/distributed instead of ringbert's package: "
    )
    assert ALONE in done.stderr
    assert done.stderr.count("\n") == 1
    # `python -m` puts the working folder first, where ours is.
    done = run(sys.executable, "-m", "tasks.squad", "--help", path=f"{tmp_path}:{ROOT}", cwd=ROOT)
    assert done.returncode == 0, done.stderr


# The real thing: built, installed, and beside Dask.


@dataclass(frozen=True)
class Built:
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    """The sdist of the checkout, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "source").mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / "source" / name)
    venv.create(folder / "builder", with_pip=True)
    pip(folder / "builder", "install", "--quiet", "build")
    done = run(folder / "builder/bin/python", "-m", "build", "--outdir", folder / "dist", folder / "source")
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return Built(sdist, wheel)


def new_environment(folder: Path) -> Path:
    """A virtual environment that also sees the libraries of the running one, without its editable installs."""
    venv.create(folder, with_pip=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder)})
    (Path(site) / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_four_packages_and_nothing_else(built):
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith("ringbert-")}
    assert names == modules(ROOT) | {f"{name}/py.typed" for name in PACKAGES}
    folders = {os.path.dirname(name) for name in names}
    assert {"bert/corpus", "bert/text", "distributed/collectives", "tasks/squad", "tasks/bench"} < folders


@pytest.mark.slow
def test_an_installed_wheel_runs(built, tmp_path):
    environment = new_environment(tmp_path / "environment")
    pip(environment, "install", "--quiet", "--no-deps", built.wheel)
    assert {path.name for path in (environment / "bin").glob("bert-*")} == set(PROJECT["scripts"])
    for program in PROJECT["scripts"]:
        done = run(environment / "bin" / program, "--help", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"usage: {program}")
    python = environment / "bin/python"
    heavy = "[name for name in ('tensorflow', 'keras', 'mpi4py') if name in sys.modules]"
    done = run(python, "-c", f"import sys, ringbert; print(ringbert.__version__, {heavy})", cwd=tmp_path)
    assert done.stdout == f"{PROJECT['version']} []\n", done.stderr
    names = sorted(name[: -len(".py")].replace("/", ".") for name in modules(ROOT) if "__" not in name)
    code = f"import importlib\nfor name in {names}: print(importlib.import_module(name).__file__)"
    done = run(python, "-c", code, cwd=tmp_path)
    files = done.stdout.splitlines()
    assert len(files) == len(names), done.stderr
    assert all(Path(file).is_relative_to(environment) for file in files)


USERS_SCRIPT = """
import pathlib

import ringbert

answers = ringbert.QuestionAnswering("folder", doc_stride=64)
one: ringbert.Answer = answers("question", "context")
best: list[ringbert.Answer] = answers("question", "context", top_k=3)
each: list[ringbert.Answer] = answers([("question", "context")])
pair: ringbert.Answer = answers(("question", "context"))
texts: list[ringbert.Answer] = answers("question", ["context", "other"])
for_all: list[list[ringbert.Answer]] = answers(["question"], "context", top_k=3)
labels: list[str] = [found.label for found in ringbert.Classifier("folder")(["text", ("text", "pair")])]
share: float = ringbert.Classifier("folder", precision="bf16")("text").probabilities["label"]
tokens: tuple[str, ...] = ringbert.Features("folder")("text").tokens
job = ringbert.Squad(model=pathlib.Path("folder"), train_file=pathlib.Path("file"), output_dir=pathlib.Path("o"))
task = ringbert.Classification(task_name="mrpc", data_dir=pathlib.Path("folder"), output_dir="folder")
score: float = ringbert.launch(job, ranks=2).scores["f1"]
"""
USERS_MISTAKES = """
ringbert.Squad(model=3, output_dir="folder")
ringbert.Squad(train_file="file")
ringbert.launch(ringbert.Squad(train_file="file", output_dir="folder"), rank=2)
ringbert.Classifier("folder", batchsize=3)
answers(3, "context")
answers.nothing
wrong: int = one.text
ringbert.QuestionAnswering("folder", docstride=64)
"""


@pytest.mark.slow
def test_types_for_a_users_script(built, tmp_path):
    """mypy takes the types of the installed packages, and so finds a user's mistakes."""
    environment = new_environment(tmp_path / "environment")
    pip(environment, "install", "--quiet", "--no-deps", built.wheel)
    script = tmp_path / "script.py"
    command = (sys.executable, "-m", "mypy", "--strict", "--python-executable", environment / "bin/python", script)
    script.write_text(USERS_SCRIPT)
    done = run(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    script.write_text(USERS_SCRIPT + USERS_MISTAKES)
    lines = [line for line in run(*command, cwd=tmp_path).stdout.splitlines() if "error:" in line]
    assert len({line.split(":")[1] for line in lines}) == USERS_MISTAKES.count("\n") - 1, lines


@pytest.mark.slow
def test_the_sdist_holds_what_its_tests_need(built, tmp_path):
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    files = {path.relative_to(ROOT) for name in SOURCES for path in ((ROOT / name), *(ROOT / name).rglob("*"))}
    files = {file for file in files if (ROOT / file).is_file() and "__pycache__" not in file.parts}
    assert not [file for file in files if not (folder / file).is_file()]
    collect = (sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-m", "")
    ours, theirs = (run(*collect, path=str(place), cwd=place) for place in (ROOT, folder))
    assert theirs.returncode == 0, theirs.stdout[-2000:]
    assert theirs.stdout.splitlines()[:-1] == ours.stdout.splitlines()[:-1]
    done = run(sys.executable, "-m", "pytest", "-q", "tests/test_docs.py", "tests/test_plan.py", cwd=folder)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("first", ["ringbert", "dask"])
def test_dask_in_the_same_environment_stops_with_one_line(built, tmp_path, first):
    environment = new_environment(tmp_path / "environment")
    installs = {"ringbert": ("--no-deps", built.wheel), "dask": ("dask[distributed]",)}
    for name in (first, *(installs.keys() - {first})):
        pip(environment, "install", "--quiet", *installs[name])
    done = run(environment / "bin/bert-squad", "--output_dir=x", "--do_predict", "--predict_file=y", cwd=tmp_path)
    assert done.returncode == 1
    words = {
        "ringbert": r"has overwritten \S+/distributed/__init__.py of ringbert",
        "dask": r"has put \S+/distributed/",
    }
    assert re.fullmatch(rf"bert-squad: error: the package distributed {words[first]}.*: {ALONE}\n", done.stderr)
