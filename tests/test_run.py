"""The folder of a run, and what a run shows of its progress."""

import contextlib
import json
import os
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from distributed.run import Run, environment
from ringbert.errors import InputError

# -- the folder ---------------------------------------------------------------------------------------------------


def test_only_rank_0_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path / "run", is_writer=False)
    run.say("text")
    run.write("sub/file", "text")
    run.write_json("file.json", 1)
    run.replace_folder("model", lambda folder: (folder / "file").touch())
    run.metrics(1, {"loss": 1.0})
    run.rewind_metrics(0)
    run.remove("file")
    run.progress(1, "training").update(1)
    run.close()
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr().err == ""


def test_what_cannot_be_written_is_named(run: Run) -> None:
    (run.folder / "file").write_text("old")
    for path, write in {
        "file/below": lambda: run.write("file/below", "text"),
        "file/model": lambda: run.replace_folder("file/model", lambda folder: None),
    }.items():
        with pytest.raises(InputError, match=f"^{run.folder}/{path} cannot be written: "):
            write()
    assert (run.folder / "file").read_text() == "old"


def test_curves_that_cannot_be_written_do_not_end_the_run(run: Run, capsys) -> None:
    (run.folder / "metrics.jsonl").symlink_to("/dev/full")
    (run.folder / "tensorboard").touch()
    for step in (1, 2):
        run.metrics(step, {"loss": 1.0})
    run.close()
    printed = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[:2] for line in printed] == [
        ["warning", f"{run.folder}/{name} cannot be written"] for name in ("metrics.jsonl", "tensorboard")
    ]
    assert "No space left on device; the run goes on without it" in printed[0]


def test_two_jobs_do_not_write_one_folder(run: Run, tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from distributed.run import Run;"
    code += "run = Run(Path(sys.argv[1]), True); run.lock(); print('locked', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run.folder)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "locked\n"
        words = rf"belongs to a run that has not ended \(process {other.pid} on .*, since 20.*\): wait for it"
        with pytest.raises(InputError, match=words):
            run.lock()
        other.kill()
    run.lock()  # a killed job leaves no lock
    run.close()
    run.lock()
    run.close()
    Run(tmp_path / "none", is_writer=False).lock()
    assert not (tmp_path / "none").exists()


def test_another_rank_takes_the_folder_over(tmp_path: Path) -> None:
    """It holds the lock, drops what the dead rank logged too early, and adds the line that it could not log."""
    dead, survivor = (Run(tmp_path, is_writer=is_writer) for is_writer in (True, False))
    dead.lock()
    for step in (1, 2, 3):
        survivor.metrics(step, {"rows": 10 * step, "loss": 1.0})
    for step in (1, 2, 4):
        dead.metrics(step, {"rows": 10 * step, "loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "ro')
    assert dead._lock is not None
    dead._lock.close()  # as the operating system does
    survivor.take_over(rows=30)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    with pytest.raises(InputError, match=f"process {os.getpid()}"):
        Run(tmp_path, is_writer=True).lock()
    survivor.close()


def test_git_is_not_run_in_the_folder_where_the_user_works(tmp_path: Path, monkeypatch) -> None:
    """A downloaded folder's configuration can name a program that git runs."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    subprocess.run(["git", "config", "core.fsmonitor", str(trap)], check=True)
    subprocess.run(["git", "status"], check=True, capture_output=True)
    assert (tmp_path / "sprung").exists(), "git no longer runs it: this test shows nothing"
    (tmp_path / "sprung").unlink()
    commit = environment()["git_commit"]
    assert not (tmp_path / "sprung").exists()
    assert commit is None or len(str(commit)) >= 7


def test_a_resumed_run_logs_again_what_came_after_its_checkpoint(run: Run) -> None:
    for step in range(1, 6):
        run.metrics(step, {"rows": 10 * step, "loss": 1.0})
    run.close()
    path = run.folder / "metrics.jsonl"
    path.write_text(path.read_text() + '5\n{"step": 6, "ro')  # of a killed run
    run.rewind_metrics(30)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


# -- progress -----------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """Seconds that the progress sees, set by the test."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr("distributed.progress.time", SimpleNamespace(monotonic=lambda: now.s))
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)
    return now


def test_without_a_terminal_a_line_comes_every_30_seconds(run, clock, capsys):
    bar = run.progress(100, "training")
    for step in range(1, 101):
        clock.s += 1
        bar.update(step, loss=f"{1 / step:.2f}")
    bar.close()
    assert capsys.readouterr().err.splitlines() == [
        "training: 30/100 step, 70 s left, loss 0.03",
        "training: 60/100 step, 40 s left, loss 0.02",
        "training: 90/100 step, 10 s left, loss 0.01",
        "training: 100/100 step, 0 s left, loss 0.01",
    ]


def test_after_a_restart_the_time_left_is_that_of_the_steps_since(run, clock, capsys):
    bar = run.progress(1000, "training", initial=900)
    for step in range(901, 932):
        clock.s += 1
        bar.update(step)
    assert capsys.readouterr().err == "training: 930/1000 step, 70 s left\n"


def test_what_takes_two_seconds_is_not_worth_a_line(run, clock, capsys):
    bar = run.progress(2, "prediction")
    for step in (1, 2):
        clock.s += 1
        bar.update(step)
    bar.close()
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_a_bar(run, monkeypatch):
    ours, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 120))
    os.set_blocking(ours, False)  # nothing shown is a failure, not a wait
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        bar = run.progress(2, "training")
        bar.update(2)
        bar.close()
        shown, until = b"", time.monotonic() + 10
        while b"100%" not in shown and time.monotonic() < until:  # a terminal hands on what it got in its own time
            with contextlib.suppress(BlockingIOError):
                shown += os.read(ours, 4096)
    os.close(ours)
    assert b"\rtraining: 100%" in shown
