"""Whatever goes wrong on one rank ends all of them soon, with its reason shown once."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from mpi import ENVIRONMENT, PROGRAMS, ROOT, Done, finish, mpirun, started

from ringbert.errors import Preempted

SECONDS_TO_END = 10.0


def fails(mode: str, *args: object, np: int = 2) -> Done:
    """Runs the program until it fails, which must end all ranks soon and without success."""
    done = mpirun(np, "failures.py", mode, *args, timeout=100)
    ended = time.time()
    failed = [float(seconds) for seconds in re.findall(r"failing at ([0-9.]+)", done.stdout)]
    assert failed, f"nothing failed\n{done}"
    assert done.status != 0, f"mpirun ends as if all were well\n{done}"
    assert ended - min(failed) < SECONDS_TO_END, f"the end took {ended - min(failed):.1f} s\n{done}"
    return done


def assert_printed_once(done: Done, line: str) -> None:
    """`line` (a regular expression) is a whole line of the output, and is there once."""
    lines = [text for text in (done.stdout + done.stderr).splitlines() if re.fullmatch(line, text)]
    assert len(lines) == 1, f"{len(lines)} times {line!r}\n{done}"


def assert_one_traceback(done: Done, rank: int) -> None:
    assert_printed_once(done, f"prog: failed on rank {rank} of 2")
    assert_printed_once(done, r"(__main__\.)?Planned: the planned failure")
    assert done.stderr.count("Traceback (most recent call last)") == 1, done
    assert "in fail" in done.stderr, f"the traceback does not reach the place\n{done}"


def assert_one_error_line(done: Done, line: str) -> None:
    assert_printed_once(done, re.escape(line))
    assert (done.stdout + done.stderr).count("prog:") == 1, done
    assert "Traceback" not in done.stderr, done


@pytest.mark.parametrize(
    ("mode", "rank"),
    [
        ("exception", 1),
        ("on_first", 0),
        pytest.param("thread", 1, marks=pytest.mark.slow),
        pytest.param("exception on all", 0, marks=pytest.mark.slow),
        pytest.param("on_each_machine", 0, marks=pytest.mark.slow),
    ],
)
def test_an_exception_ends_all_ranks_and_is_shown_once(mode: str, rank: int) -> None:
    done = fails(mode)
    assert_one_traceback(done, rank)
    assert done.status == 1, done


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["step", "prefetch"])
def test_an_exception_in_training(mode: str, tmp_path: Path) -> None:
    """In the step of rank 1 while rank 0 waits in a sum; in the thread of rank 1 that prepares batches."""
    done = fails(mode, tmp_path)
    assert_one_traceback(done, 1)


@pytest.mark.slow
def test_sys_exit_on_one_rank() -> None:
    done = fails("exit")
    assert_printed_once(done, "prog: rank 1 of 2 exits: 3")
    assert "Traceback" not in done.stderr, done
    assert done.status == 3, done


@pytest.mark.slow
def test_sys_exit_with_words_on_one_rank() -> None:
    done = fails("exit with words")
    assert_printed_once(done, "prog: rank 1 of 2 exits: the words")
    assert done.status == 1, done


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["killed", "killed in the ring"])
def test_a_killed_rank(mode: str) -> None:
    done = fails(mode)
    assert "signal 9" in done.stderr, done  # in mpirun's own words


@pytest.mark.parametrize(
    "mode",
    [
        "input error on all",
        pytest.param("input error on rank 1", marks=pytest.mark.slow),
        pytest.param("input error on first", marks=pytest.mark.slow),
    ],
)
def test_an_error_of_the_users_is_one_line_over_all_ranks(mode: str) -> None:
    done = fails(mode)
    assert_one_error_line(done, "prog: error: --train_file x.json: broken in line 3")
    assert done.status == 1, done
    if mode != "input error on rank 1":  # there rank 0 shows where it was stopped
        assert "most recent call first" not in done.stderr, done


def test_ranks_that_disagree_stop() -> None:
    done = fails("disagree", np=3)
    line = "the ranks disagree about the vocabulary: rank 0: digest-0; rank 1: digest-1; rank 2: digest-2"
    assert_one_error_line(done, f"prog: error: {line}")
    assert done.status == 1, done


def signalled(mode: str, *args: object) -> Done:
    """Runs the program on two ranks and sends SIGUSR1 to mpirun once rank 0 waits for it."""
    with started(2, "failures.py", mode, *args) as process:
        assert process.stdout is not None
        deadline = threading.Timer(100, process.terminate)
        deadline.start()
        while line := process.stdout.readline():
            if "waiting" in line:
                break
        assert line, f"the ranks ended: {process.stderr.read() if process.stderr else ''}"
        deadline.cancel()
        process.send_signal(signal.SIGUSR1)
        sent = time.monotonic()
        done = finish(process, timeout=30)
    assert time.monotonic() - sent < SECONDS_TO_END
    assert done.status == Preempted.STATUS == 75, done
    assert "Traceback" not in done.stderr, done
    return done


def test_sigusr1_to_mpirun_reaches_the_ranks_which_leave_alike() -> None:
    done = signalled("preempted")
    assert "prog:" not in done.stderr, done


@pytest.mark.slow
def test_sigusr1_to_mpirun_saves_and_exits(tmp_path: Path) -> None:
    done = signalled("signal", tmp_path)
    steps = re.findall(r"saved after step (\d+) of 1000", done.stderr)
    assert len(steps) == 1, done
    step = int(steps[0])
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    state = json.loads((checkpoint / "state.json").read_text())
    assert (state["step"], state["position"]) == (step, step * state["global_batch_size"])
    logged = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert logged == list(range(1, step + 1))
    assert 5 <= step < 500


@pytest.mark.parametrize(
    ("number", "ranks"),
    [
        (signal.SIGINT, 1),
        (signal.SIGTERM, 2),
        *(pytest.param(number, ranks, marks=pytest.mark.slow) for number, ranks in (
            (signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGHUP, 1), (signal.SIGHUP, 2),
        )),
    ],
)  # fmt: skip
def test_a_signal_that_ends_a_training_saves_first(tmp_path: Path, number: signal.Signals, ranks: int) -> None:
    """Sent to a process that is alone, or to bert-launch."""
    command = [sys.executable, str(PROGRAMS / "failures.py"), "signal", str(tmp_path)]
    if ranks > 1:
        command = [sys.executable, "-m", "distributed.launch", f"-np={ranks}", "--", *command]
    done = told(command, number)
    assert done.status == Preempted.STATUS, done
    assert "Traceback" not in done.stderr, done
    assert re.search(rf"{number.name}: .*; send it again to end (them )?at once", done.stderr), done
    (step,) = re.findall(
        r"saved after step (\d+) of 1000 on request; to continue, run the same command", done.stderr
    )
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    assert json.loads((checkpoint / "state.json").read_text())["step"] == int(step) < 500


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_second_signal_ends_at_once(tmp_path: Path, ranks: int) -> None:
    command = [sys.executable, str(PROGRAMS / "failures.py"), "signal", str(tmp_path), "long step"]
    if ranks > 1:
        command = [sys.executable, "-m", "distributed.launch", f"-np={ranks}", "--", *command]
    done = told(command, signal.SIGINT, signal.SIGINT)
    assert done.status not in (0, Preempted.STATUS), done
    assert not list(tmp_path.glob("checkpoints/rows-*"))


def told(command: list[str], *numbers: signal.Signals) -> Done:
    """Runs a command and sends it signals once rank 0 is in its fifth step."""
    environment = {**os.environ, **ENVIRONMENT}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    with process:
        deadline = threading.Timer(100, process.kill)
        deadline.start()
        assert process.stdout is not None
        while "waiting" not in (line := process.stdout.readline()):
            assert line, f"the ranks ended: {process.stderr.read() if process.stderr else ''}"
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.5)
        sent = time.monotonic()
        output, errors = process.communicate(timeout=60)
        deadline.cancel()
    assert time.monotonic() - sent < SECONDS_TO_END
    return Done(process.returncode, output, errors)
