"""`ringbert.launch` runs the ranks as processes: what it shows of them, how they end, and what it raises."""

import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from program_runs import ROOT

import ringbert
from ringbert.errors import InputError
from ringbert.files import is_running
from tasks.launching import display
from tasks.launching.display import Display, last_text
from tasks.launching.start import python_path

JOB = ringbert.Squad(train_file="a.json", output_dir="out", device="cpu")
BAR = "\r  0%|  | 0/3\r 33%|# | 1/3\r        \rcheckpoint saved\n\r 66%|##| 2/3\r100%|###| 3/3\n"


# -- what is shown ------------------------------------------------------------------------------------------------


@pytest.fixture
def notebook(monkeypatch) -> None:
    """Makes this process look like the kernel of a notebook."""
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(display, "UPDATE_S", 0.0)


def feed(shown: Display, text: str, size: int) -> None:
    data = text.encode()
    for start in range(0, len(data), size):
        shown.feed(data[start : start + size])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_terminal_gets_every_byte_and_the_lines_are_kept(capsys, size):
    shown = Display()
    feed(shown, f"질문 1\n{BAR}no end", size)
    shown.close()
    assert capsys.readouterr().err == f"질문 1\n{BAR}no end\n"
    assert shown.lines == ["질문 1", "checkpoint saved", "100%|###| 3/3", "no end"]


@pytest.mark.usefixtures("notebook")
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_notebook_shows_lines_and_the_newest_bar(capsys, size):
    shown = Display()
    feed(shown, f"plan\n{BAR}", size)
    printed = capsys.readouterr()
    lines = printed.out.split("\n")
    assert [last_text(line) for line in lines] == ["plan", "checkpoint saved", "100%|###| 3/3", ""]
    assert lines[0] == "plan"  # a line that is no bar is shown once
    assert printed.err == ""


@pytest.mark.usefixtures("notebook")
def test_a_notebook_is_not_sent_every_update(capsys, monkeypatch):
    monkeypatch.setattr(display, "UPDATE_S", 3600.0)
    shown = Display()
    for step in range(1000):
        shown.feed(f"\rstep {step}".encode())
    shown.close()
    printed = capsys.readouterr().out
    assert printed.count("step") <= 2
    assert last_text(printed) == "step 999"


def test_nothing_is_shown_without_progress(capsys):
    shown = Display(is_shown=False)
    shown.feed(b"one\ntwo\n")
    assert capsys.readouterr() == ("", "")
    assert shown.lines == ["one", "two"]


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be an integer of at least 1, got 0"),
        ({"ranks": 2.0}, r"ranks must be an integer of at least 1, got 2\.0"),
        ({"restarts": -1}, "restarts must be an integer of at least 0, got -1"),
        ({"mpi_args": "--tag-output"}, "mpi_args must be a list of arguments, got the text '--tag-output'"),
        ({"ranks": 5, "hosts": {"a": 2, "b": 2}}, "ranks must be at most the 4 slots of hosts, got 5"),
        ({"ranks": 2, "hosts": "a b"}, "hosts a b: 'a b' is not host:slots"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(InputError, match=f"^{message}"):
        ringbert.launch(JOB, **arguments)


def test_a_script_under_mpirun_is_refused(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(InputError, match=r"^OMPI_COMM_WORLD_SIZE=4: launch starts the ranks itself"):
        ringbert.launch(JOB)


def without_tensorflow(folder: Path) -> dict[str, str]:
    """An environment whose ranks find no TensorFlow."""
    (folder / "tensorflow.py").write_text("raise ModuleNotFoundError(\"No module named 'tensorflow'\")\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def test_the_programs_line_is_raised_and_shown_once(tmp_path, monkeypatch, capsys):
    """On one rank, without mpirun, in a folder with packages of the same names."""
    monkeypatch.chdir(tmp_path)
    for name in ("tasks", "bert", "distributed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('imported from the working folder')")
    (tmp_path / "site").mkdir()
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InputError, match=r"^TensorFlow is not installed"):
        ringbert.launch(JOB, environment=without_tensorflow(tmp_path / "site"))
    shown = capsys.readouterr()
    assert shown.err.startswith("bert-squad: error: TensorFlow is not installed")
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_a_crash_is_raised_with_the_last_lines(tmp_path, capsys):
    (tmp_path / "absl.py").write_text("import os\nprint('the last line')\nos.kill(os.getpid(), 9)\n")
    with pytest.raises(
        RuntimeError, match=r"bert-squad failed with exit status 137; .*\nthe last line\n.*\(SIGKILL"
    ):
        ringbert.launch(JOB, environment={"PYTHONPATH": f"{tmp_path}:{ROOT}"})


def test_the_ranks_import_what_this_process_imports():
    assert python_path("") == str(ROOT)
    assert python_path(f"/a:{ROOT}") == f"/a:{ROOT}"
    assert python_path("/a") == f"{ROOT}:/a"


# -- ends ---------------------------------------------------------------------------------------------------------

PARENT = """
import os, sys
from tasks.launching.display import Display
from tasks.launching.process import run

child = "import os, time; print('child', os.getpid(), flush=True); time.sleep(60)"
command = [sys.executable, "-m", "distributed.launch", "-np=1", "--", sys.executable, "-c", child]
ended = run(command, {**os.environ, "RINGBERT_PARENT": str(os.getpid())}, Display())
print("ended", ended.status, ended.is_interrupted, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_ranks_end_with_their_parent(number):
    """Ctrl-C reaches the parent alone, and a killed parent can tell nobody."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stderr is not None
        line = parent.stderr.readline()
        assert line.startswith("child "), line + parent.stderr.read()
        child = int(line.split()[1])
        parent.send_signal(number)
        printed = parent.communicate(timeout=30)[0]
    deadline = time.monotonic() + 20
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)
    if number == signal.SIGINT:
        assert printed.startswith("ended ")
        assert printed.endswith(" True\n")
