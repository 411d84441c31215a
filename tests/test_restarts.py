"""bert-launch --restarts: real jobs that end in every way, and what is started after them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mpi import ENVIRONMENT, PROGRAMS, ROOT, Done

from ringbert.errors import Preempted
from ringbert.files import is_running

KILLED = f"bert-launch: rank 1 on host {os.uname().nodename} was killed (SIGKILL: out of memory?)"


@contextlib.contextmanager
def launched(*flags: str, program: str = "counting.py", arguments: tuple[object, ...] = ()):
    """The process of bert-launch with these flags and a program of tests/programs on two ranks."""
    own = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
    process = subprocess.Popen(
        [sys.executable, "-m", "distributed.launch", "-np", "2", *flags, "--", *own],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()  # mpirun ends with it
        process.communicate()


def launch(*flags: str, timeout: float = 60, **program: object) -> Done:
    with launched(*flags, **program) as process:
        stdout, stderr = process.communicate(timeout=timeout)
        return Done(process.returncode, stdout, stderr)


def waited_for(condition: Callable[[], bool], timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lines(done: Done) -> list[str]:
    """What standard error has after the command."""
    return done.stderr.splitlines()[1:]


def test_a_job_that_was_killed_goes_on_where_it_was(tmp_path):
    done = launch("--restarts", "3", arguments=("killed once", tmp_path))
    assert done.status == 0, done
    assert done.stdout.splitlines() == ["from 0, 2 ranks", "from 7, 2 ranks"]
    assert lines(done) == [KILLED, "bert-launch: restart 1 of 3 in 1 s"]
    assert (tmp_path / "count").read_text() == "20"


def test_without_restarts_the_last_line_says_who_was_killed(tmp_path):
    before = set(Path(tempfile.gettempdir()).glob("ringbert-stacks-*"))
    done = launch(arguments=("killed once", tmp_path))
    assert done.status == 128 + signal.SIGKILL, done
    assert lines(done) == [KILLED]
    assert set(Path(tempfile.gettempdir()).glob("ringbert-stacks-*")) <= before


def test_restarts_end_when_two_starts_saved_nothing(tmp_path):
    done = launch("--restarts", "9", arguments=("killed at once", tmp_path))
    assert done.status == 128 + signal.SIGKILL, done
    reason = "bert-launch: not started again: two starts in a row saved no further step"
    assert lines(done) == [KILLED, "bert-launch: restart 1 of 9 in 1 s", KILLED, reason]


@pytest.mark.slow
def test_restarts_end_when_there_are_no_more(tmp_path):
    done = launch("--restarts", "2", arguments=("killed after 5", tmp_path))
    assert done.status == 128 + signal.SIGKILL, done
    assert done.stdout.splitlines() == ["from 0, 2 ranks", "from 5, 2 ranks", "from 10, 2 ranks"]
    assert lines(done)[-1] == KILLED


def test_an_error_of_the_users_is_not_started_again(tmp_path):
    done = launch("--restarts", "3", arguments=("refused", tmp_path))
    assert done.status == 1, done
    assert lines(done) == ["prog: error: --train_file x.json: broken"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_job_that_was_asked_to_stop_is_not_started_again(tmp_path, number):
    with launched("--restarts", "3", arguments=("waits", tmp_path)) as process:
        waited_for(lambda: (tmp_path / "waiting").exists())
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == Preempted.STATUS, stderr
    assert "restart" not in stderr
    assert stdout.splitlines() == ["from 0, 2 ranks"]


def test_a_request_to_save_waits_until_all_have_joined(tmp_path):
    """The ranks that have not would be ended by it."""
    mark = tmp_path / "mark"
    with launched("--restarts", "3", program="dies_early.py", arguments=(mark, "late")) as process:
        waited_for(mark.exists)
        time.sleep(3)  # so that the other rank waits in MPI_Init
        process.send_signal(signal.SIGUSR1)
        time.sleep(1)
        (tmp_path / "go").touch()
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == Preempted.STATUS, stderr
    assert stdout.splitlines() == ["size 2"]


def test_a_signal_while_it_waits_ends_it(tmp_path):
    with launched("--restarts", "9", arguments=("killed at once", tmp_path)) as process:
        assert process.stderr is not None
        while "restart 1 of 9" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM
    assert stdout.splitlines() == ["from 0, 2 ranks"]


@pytest.mark.slow
def test_an_elastic_job_succeeds_although_a_rank_was_killed(tmp_path):
    """mpirun says nothing then: success is what rank 0 tells. The ranks' own line names the dead."""
    done = launch("--elastic", program="elastic.py", arguments=(tmp_path, "1@sum@3"), timeout=100)
    assert done.status == 0, done
    assert len([line for line in lines(done) if "rank 1 on" in line]) == 1, done  # the ranks say it
    assert "bert-launch:" not in done.stderr, done


@pytest.mark.slow
@pytest.mark.slow
def test_an_elastic_job_that_loses_a_rank_before_it_has_joined_starts_again(tmp_path):
    """The other rank waits in MPI_Init, where no death is reported."""
    early = f"{os.uname().nodename} ended before the others"
    done = launch("--elastic", "--restarts", "1", program="dies_early.py", arguments=(tmp_path / "mark", "killed"))
    assert done.status == 0, done
    assert done.stdout.split() == ["size", "2"]
    assert any(early in line for line in lines(done)), done


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--elastic",)], ids=["plain", "elastic"])
def test_a_job_of_which_a_rank_does_not_start_is_ended_and_starts_again(flags, tmp_path):
    """As when it ended on another host, of whose processes bert-launch sees nothing."""
    program = {"program": "dies_early.py", "arguments": (tmp_path / "mark", "hangs")}
    done = launch(*flags, "--restarts", "1", "--start-timeout", "8", **program)
    assert done.status == 0, done
    assert done.stdout.split() == ["size", "2"]
    told = "bert-launch: rank 1 did not start (waited 8 s: --start-timeout)"
    assert lines(done) == [told, "bert-launch: restart 1 of 1 in 1 s"]


def test_an_elastic_job_that_cannot_go_on_fails(tmp_path):
    """The survivor aborts, because this program is not made for it; mpirun's exit status is 0."""
    done = launch("--elastic", arguments=("killed at once", tmp_path), timeout=100)
    assert done.status != 0, done


@pytest.mark.slow
def test_a_killed_training_continues_from_its_checkpoint(tmp_path):
    """To the same weights as one that was not killed."""
    killed = launch("--restarts", "1", program="broken_off.py", arguments=(tmp_path / "a", "killed"), timeout=200)
    undisturbed = launch(program="broken_off.py", arguments=(tmp_path / "b",), timeout=100)
    assert killed.status == undisturbed.status == 0, killed
    assert KILLED in lines(killed)
    assert killed.stdout.splitlines()[0] == "from step 0"
    assert 0 < int(killed.stdout.splitlines()[1].split()[-1]) <= 12
    assert killed.stdout.splitlines()[-1] == undisturbed.stdout.splitlines()[-1]  # a digest of the weights


@pytest.mark.slow
def test_what_is_left_of_a_start_is_killed_before_the_next(tmp_path):
    """A killed rank leaves a process that keeps mpirun from ending."""
    done = launch("--restarts", "1", arguments=("leaves a process", tmp_path), timeout=100)
    assert done.status == 0, done
    left = int((tmp_path / "left").read_text())
    waited_for(lambda: not is_running(left))
    assert re.search(r"bert-launch: (rank 1|a rank) on host \S+ ended before the others\n", done.stderr), done
