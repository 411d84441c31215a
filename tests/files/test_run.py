"""The folder of a run, and what a run shows of its progress."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
import tqdm
from harness.mpi import ROOT
from harness.refusals import refused
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util

from distributed import launcher
from distributed.log import Display, Step
from distributed.optimizer import StepResult
from distributed.plan import State
from distributed.predict import predict
from distributed.ranks import Ranks
from distributed.rows import Rows
from distributed.run import Run
from distributed.versions import environment
from distributed.world import World
from ringbase.errors import InputError


def test_only_rank_0_writes(tmp_path, capsys):
    run = Run(tmp_path / "run", World(Ranks(rank=1)))
    run.say("text")
    run.write("file", "text")
    run.replace_folder("model", lambda folder: (folder / "file").touch())
    run.metrics(1, {"loss": 1.0})
    run.progress(1, "training").update(1)
    run.close()
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr().err == ""


def test_what_cannot_be_written_is_named(run):
    (run.folder / "file").write_text("old")
    refused(lambda: run.write("file/below", "text"), run.folder / "file/below")


@pytest.mark.parametrize("file", ["metrics.jsonl", "tensorboard"])
def test_curves_that_cannot_be_written_do_not_end_the_run(file, run, capsys):
    (run.folder / file).symlink_to("/dev/full" if file == "metrics.jsonl" else "/dev/null")
    for step in range(2, 30):
        run.metrics(step, {"loss": 1.0})
    (line,) = capsys.readouterr().err.splitlines()
    assert str(run.folder) in line


def test_events_are_what_tensorboard_reads(run):
    run.begin({"learning_rate": 3e-5, "do_train": True, "model": "m", "seed": None})
    for step in (1, 2):
        run.metrics(step, {"loss": 0.5 * step})
    events = [*EventFileLoader(str(next((run.folder / "tensorboard").iterdir()))).Load()]
    (_, hparams), *scalars = [
        (event.step, value) for event in events for value in event.summary.value
    ]
    values = [(step, tensor_util.make_ndarray(value.tensor)) for step, value in scalars]
    assert values == [(1, 0.5), (2, 1.0)]
    data = plugin_data_pb2.HParamsPluginData.FromString(hparams.metadata.plugin_data.content)
    found = data.session_start_info.hparams
    assert (found["learning_rate"].number_value, found["do_train"].bool_value) == (3e-5, True)
    assert set(found) == {"learning_rate", "do_train", "model"}


def test_two_jobs_do_not_write_one_folder(run):
    code = (
        "import sys; from pathlib import Path;"
        "from distributed.run import Run; from distributed.world import World;"
        "run = Run(Path(sys.argv[1]), World()); run.lock(); print('locked', flush=True);"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(run.folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, cwd=ROOT) as other:
        assert other.stdout.readline() == "locked\n"
        refused(run.lock, run.folder, f"process {other.pid}")
        run.close()
        assert (run.folder / ".lock").exists()
        other.kill()
    run.lock()  # a killed job leaves no lock
    run.close()
    assert not run.folder.exists()  # as nothing was written
    run = Run(run.folder, World())
    run.lock()
    run.write("file", "text")
    run.close()
    assert {path.name for path in run.folder.iterdir()} == {".lock", "file"}


def test_a_restart_waits_for_a_lock_that_a_lost_host_still_has(run, monkeypatch, capsys):
    """A file server keeps it until the host's lease ends."""
    held = Run(run.folder, World())
    held.lock()
    refused(run.lock, run.folder)
    monkeypatch.setenv("RINGBERT_RESTART", "1")
    lease = threading.Timer(1.5, held.close)
    lease.start()
    run.lock()
    run.close()
    lease.join()
    assert f"{run.folder} is still locked by the start before" in capsys.readouterr().err


def test_git_is_not_run_in_the_folder_where_the_user_works(tmp_path, monkeypatch):
    """A downloaded folder's configuration can name a program that git runs."""
    monkeypatch.chdir(tmp_path)
    command = f"git init -q; git config core.fsmonitor 'touch {tmp_path}/sprung; false'; git status"
    subprocess.run(command, shell=True, check=True, capture_output=True)
    (tmp_path / "sprung").unlink()  # else git no longer runs it, and this test shows nothing
    environment()
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(("total", "done"), [(100, 0), (1000, 900), (2, 0)])
def test_without_a_terminal_a_line_comes_every_30_seconds(run, monkeypatch, capsys, total, done):
    """The time left is that of the steps since the start; what takes 2 seconds is not worth a
    line."""
    seconds = 1000.0
    monkeypatch.setattr(tqdm.std, "time", lambda: seconds)
    bar = run.progress(total, "training", initial=done)
    for _ in range(total - done):
        seconds += 1
        bar.set_postfix(loss="0.25", refresh=False)
        bar.update()
    bar.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (4 if total > 2 else 0)
    for line, step in zip(lines, (30, 60, 90, 100), strict=False):
        for part in (f"{done + step}/{total}", f"{100 - step} s left", "loss=0.25"):
            assert part in line


def test_the_time_left_of_a_training_leaves_out_the_compilation(run, monkeypatch, capsys):
    """The first step takes 600 seconds, each other one a second."""
    seconds = 1000.0
    monkeypatch.setattr(tqdm.std, "time", lambda: seconds)
    display = Display(State(0, 0, 100, 1, {}), run, 1)
    result = StepResult(tf.zeros([4]), weights={})
    for number in range(1, 101):
        seconds += 600 if number == 1 else 1
        state = State(number, number, 100, 1, {})
        step = Step(state, result, {"examples_per_s": 1.0}, is_logged=False)
        display.show(step, {"loss": 1.0, "learning_rate": 1e-5})
    display.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "31/100" in lines[0]
    assert "69 s left" in lines[0]


def test_a_folder_that_another_job_has_just_removed_is_made_again(run):
    run.folder.rmdir()
    run.lock()
    assert (run.folder / ".lock").is_file()
    run.close()
    assert not run.folder.exists()  # nothing was written


def test_a_bar_is_closed_whatever_ends_its_loop(run, monkeypatch, capsys):
    """An open bar would be drawn again below each line that is printed later."""
    monkeypatch.setenv("RINGBERT_TERMINAL", "60")
    rows = Rows(pa.table({"number": [1, 2]}))

    def broken(batch):
        raise InputError("it cannot be computed")

    with pytest.raises(InputError) as kept:  # with its traceback, which knows the bar
        predict(World(), run, rows, [np.array([0]), np.array([1])], dict, broken)
    run.say("later")
    assert "prediction" in (shown := capsys.readouterr().err)
    assert shown.endswith("later\n"), kept


@pytest.mark.parametrize(("told", "columns"), [("60", 60), ("1", 110), ("200", 110)])
def test_a_bar_is_as_wide_as_the_terminal(run, monkeypatch, capsys, told, columns):
    """bert-launch tells how many columns there are, or 1 if it does not know."""
    monkeypatch.setenv("RINGBERT_TERMINAL", told)
    with run.progress(9, "training") as bar:
        bar.set_postfix(loss="0.25", rate="1.00e-04", examples_s="25.1", more="x" * 90)
    shown = max(map(len, capsys.readouterr().err.replace("\r", "\n").splitlines()))
    assert columns - 2 <= shown <= columns


def test_launchers_tell_the_columns_of_their_terminal():
    leader, follower = pty.openpty()
    for size, expected in ((77, 77), (0, 1)):
        fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, size, 0, 0))
        assert launcher.columns(follower) == expected
    os.close(leader)
    os.close(follower)
    with open(os.devnull) as file:
        assert launcher.columns(file.fileno()) == 0
