"""A rank that does not come is named, and the job ends instead of hanging."""

import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hosts import available, simulated_hosts
from mpi import ENVIRONMENT, PROGRAMS, ROOT, Done, mpirun

from distributed.watchdog import Watchdog
from distributed.watchdog.stalls import Kind, Seen, StallSettings, describe, find_mismatch, find_stall

WARNING_S, TIMEOUT_S = 2, 6
SECONDS_TO_END = 8.0  # to hear of it, to write stacks, to end


def run(
    folder: Path, mode: str, backend: str, np: int = 2, timeout_s: float = TIMEOUT_S, sleep_s: float = 5
) -> Done:
    settings = WARNING_S, timeout_s
    return mpirun(np, "stalls.py", mode, backend, *settings, folder, timeout=100, env={"SLEEP_S": str(sleep_s)})


def ended_after(done: Done) -> float:
    """Seconds from the failure to the end, which must not be a success."""
    assert done.status != 0, done
    failed = [float(seconds) for seconds in re.findall(r"failing at ([0-9.]+)", done.stdout)]
    assert failed, f"nothing failed\n{done}"
    return time.time() - max(failed)


def the_line(done: Done, start: str) -> str:
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(start)]
    return line


def stacks(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / "stacks").iterdir()}


def assert_stopped_rank_ends_the_job(done: Done, folder: Path, stopped: int, place: str) -> None:
    assert ended_after(done) < TIMEOUT_S + SECONDS_TO_END, done
    other = 1 - stopped
    where = rf"rank {stopped} has not arrived at {place}, where rank {other} has waited for (\d+) s"
    what = rf"rank {stopped}: process (\d+) on \S+ is stopped; kill -CONT (\d+) there lets it go on"
    warning = re.fullmatch(f"warning: {where}; {what}", the_line(done, "warning: rank"))
    assert warning, done
    assert WARNING_S <= int(warning[1]) < TIMEOUT_S
    ending = f"the job ends after --stall_timeout {TIMEOUT_S} s; the stacks of the ranks are in {folder}/stacks"
    error = re.fullmatch(f"prog: error: {where}; {what}; {re.escape(ending)}", the_line(done, "prog:"))
    assert error, done
    assert error[2] == warning[2]
    assert "most recent call first" not in done.stderr, done
    (name,) = stacks(folder)
    assert name == f"rank-{other}.txt"
    assert "most recent call first" in stacks(folder)[name]


def test_a_stopped_rank_is_named_and_the_job_ends(tmp_path: Path) -> None:
    done = run(tmp_path, "stop 1", "none")
    assert_stopped_rank_ends_the_job(done, tmp_path, 1, "a barrier")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mpi", "ring"])
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_is_stopped_in_training(tmp_path: Path, stopped: int, backend: str) -> None:
    done = run(tmp_path, f"stop {stopped}", backend)
    assert_stopped_rank_ends_the_job(done, tmp_path, stopped, "the sum of a step's weights")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mpi", "ring"])
def test_a_rank_that_is_stopped_anywhere_in_a_step(tmp_path: Path, backend: str) -> None:
    done = run(tmp_path, "stop 1 anywhere", backend)
    assert ended_after(done) < TIMEOUT_S + SECONDS_TO_END, done
    assert re.search(r"rank 1: process \d+ on \S+ is stopped", the_line(done, "prog: error:")), done


@pytest.mark.slow
def test_work_for_the_others_is_no_stall_unless_the_rank_is_stopped(tmp_path: Path) -> None:
    done = run(tmp_path, "work", "none", timeout_s=4, sleep_s=10)
    assert done.status == 0, done
    assert done.stderr == "all done\n"
    done = run(tmp_path, "stop 0 at work", "none")
    assert ended_after(done) < TIMEOUT_S + SECONDS_TO_END, done
    assert re.search(r"rank 0: process \d+ on \S+ is stopped", the_line(done, "prog: error:")), done


@pytest.mark.slow
def test_a_slow_rank_in_prediction_is_no_stall(tmp_path: Path) -> None:
    done = run(tmp_path, "predict", "none", timeout_s=4, sleep_s=10)
    assert done.status == 0, done
    assert done.stderr.splitlines()[-1] == "all done"


@pytest.mark.slow
def test_if_both_judges_are_stopped_the_others_end(tmp_path: Path) -> None:
    done = run(tmp_path, "stop 0 1", "none", np=4)
    line = the_line(done, "prog: error:")
    judges = r"rank 0 on \1 \(stopped\) and rank 1 on \1 \(stopped\) have shown no sign of life for"
    assert re.search(rf"rank 2 on (\S+) waits at a barrier, and {judges}", line), done
    assert "rank-2.txt" in stacks(tmp_path)
    assert "most recent call first" not in done.stderr, done


@pytest.mark.slow
def test_a_slow_rank_is_only_named(tmp_path: Path) -> None:
    done = run(tmp_path, "slow", "mpi", timeout_s=20)
    assert done.status == 0, done
    where = "rank 1 has not arrived at the sum of a step's weights, where rank 0 has waited for"
    what = r"rank 1: process \d+ on \S+ is alive; \d+ s ago it was at the result of a step"
    assert re.fullmatch(rf"warning: {where} \d+ s; {what}", the_line(done, "warning: rank")), done
    assert "all done" in done.stderr
    assert not (tmp_path / "stacks").exists()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mpi", "ring"])
@pytest.mark.parametrize(
    ("mode", "place"), [("exit", "the end of the program"), ("short", "a comparison of the ranks")]
)
def test_a_rank_that_does_something_else_ends_the_job_at_once(
    tmp_path: Path, mode: str, place: str, backend: str
) -> None:
    """It calls sys.exit(0), or its data end early, while the other one is in a step."""
    done = run(tmp_path, mode, backend, timeout_s=60)
    assert ended_after(done) < SECONDS_TO_END, done
    reason = f"rank 0 is at the sum of a step's weights, but rank 1 is at {place}"
    ending = f"the stacks of the ranks are in {tmp_path}/stacks"
    assert the_line(done, "prog:") == f"prog: error: the ranks do different things: {reason}; {ending}"
    assert sorted(stacks(tmp_path)) == ["rank-0.txt", "rank-1.txt"]
    assert "most recent call first" not in done.stderr, done


@pytest.mark.slow
@pytest.mark.skipif(available() is not None, reason=available() or "")
@pytest.mark.parametrize(("number", "np_per_host"), [(2, 1), (2, 2), (3, 1)])
def test_a_cut_link_between_hosts_ends_the_job(tmp_path: Path, number: int, np_per_host: int) -> None:
    """The first host has mpirun, and one of the judges or both; with one, the other side ends by itself too."""
    program = [sys.executable, str(PROGRAMS / "stalls.py"), "endless", "mpi", "5", "10", str(tmp_path)]
    with simulated_hosts(number) as hosts:

        def cut() -> None:
            while not (tmp_path / "failing").exists():
                time.sleep(0.1)
            hosts.lose(1, is_cut=True)

        threading.Thread(target=cut, daemon=True).start()
        done = hosts.mpirun(np_per_host, program, timeout=120, env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)})
    assert ended_after(Done(done.returncode, done.stdout, done.stderr)) < 45
    gone = "rank 1" if np_per_host == 1 else "ranks 2, 3"
    assert re.search(f"prog: error: .*{gone}: no sign of life from host2 for", done.stderr), done.stderr
    if np_per_host == 1:
        assert "no sign of life from host1" in stacks(tmp_path)["rank-1.txt"]


@pytest.mark.slow
@pytest.mark.skipif(available() is not None, reason="killed ranks are survived with Open MPI 5")
def test_a_stopped_rank_is_killed_so_that_the_others_can_go_on() -> None:
    """Rank 1, then rank 0, which judges."""
    done = mpirun(4, "fence.py", timeout=60, mpi_args=("--with-ft", "ulfm"))
    result = done.json()
    assert result["sizes"] == [4, 3, 2], done
    assert max(result["seconds"]) < 6, done
    assert done.stderr.count("is stopped; kill -CONT") == 4, done  # two warnings each
    assert done.stderr.count("it is killed, and the others go on") == 2, done


# -- what a judge concludes ---------------------------------------------------------------------------------------


def rank(number: int, count: int, name: str, kind: Kind = Kind.WAITING, **facts: object) -> Seen:
    known = {"heard": 100.0, "letter": "S", "host": "a", "node": 0, **facts}
    return Seen(number, 4240 + number, count=count, name=name, kind=kind, **known)  # type: ignore[arg-type]


def said(*ranks: Seen, clock: float = 101.0) -> str | None:
    stall = find_stall(ranks, clock, 10.0)
    return None if stall is None else describe(stall, ranks, 31.0, clock, 10.0)


def test_ranks_that_have_not_arrived_are_named() -> None:
    waiting = [rank(0, 8, "a sum"), rank(3, 8, "a sum")]
    computing = rank(1, 7, "a gather", Kind.OUTSIDE, age=40.0)
    stopped = rank(2, 7, "a gather", Kind.OUTSIDE, letter="T")
    assert said(waiting[0], computing, stopped, waiting[1]) == (
        "ranks 1, 2 have not arrived at a sum, where ranks 0, 3 have waited for 31 s; "
        "rank 1: process 4241 on a is alive; 41 s ago it was at a gather; "
        "rank 2: process 4242 on a is stopped; kill -CONT 4242 there lets it go on"
    )


def test_a_host_that_is_silent_is_named_once() -> None:
    far = [rank(number, 7, "x", Kind.OUTSIDE, heard=60.0, host="b", node=1) for number in (1, 2)]
    text = said(rank(0, 8, "a sum"), *far)
    assert text is not None
    assert text.endswith("rank 0 has waited for 31 s; ranks 1, 2: no sign of life from b for 41 s")


def test_a_silent_process_may_wait_for_a_disk() -> None:
    text = said(rank(0, 8, "a sum"), rank(1, 7, "x", Kind.OUTSIDE, heard=60.0, letter="D"))
    assert text is not None
    assert "from process 4241 on a for 41 s, and it waits for a disk or a file server" in text


def test_if_all_have_arrived_and_are_alive_the_network_is_the_suspect() -> None:
    text = said(rank(0, 8, "a sum"), rank(1, 8, "a sum", host="b", node=1))
    assert text is not None
    assert text.startswith(
        "all ranks have arrived at a sum, but it has not ended for 31 s; all are alive, so the net"
    )
    assert "(hosts: a, b)" in text
    text = said(rank(0, 8, "a sum"), rank(1, 8, "a sum", letter="T"))
    assert text is not None
    assert "it has not ended for 31 s; rank 1: process 4241 on a is stopped" in text


def test_nobody_waits_in_vain() -> None:
    assert said(rank(0, 8, "a sum", Kind.OUTSIDE), rank(1, 7, "x", Kind.OUTSIDE)) is None  # all compute
    working = rank(0, 8, "the work of rank 0 (prepare)", Kind.WORKING)
    assert said(working, rank(1, 8, working.name)) is None
    text = said(replace(working, letter="T"), rank(1, 8, working.name))
    assert text is not None
    assert (
        "rank 0: process 4240 on a is stopped (it was working for the others: the work of rank 0 (prepare))"
        in text
    )


def test_ranks_that_do_different_things() -> None:
    assert find_mismatch([rank(0, 8, "a sum"), rank(1, 7, "a gather"), rank(2, 8, "a sum")]) is None
    assert find_mismatch([rank(0, 8, "a sum"), rank(1, 8, "a gather"), rank(2, 8, "a sum")]) == (
        "the ranks do different things: ranks 0, 2 are at a sum, but rank 1 is at a gather"
    )
    left = rank(1, 7, "a gather", Kind.LEFT)
    assert find_mismatch([rank(0, 8, "a sum"), left]) == "rank 1 has left the program, but rank 0 is at a sum"
    assert find_mismatch([rank(0, 8, "x", Kind.OUTSIDE), left]) is None


def test_the_outermost_operation_counts() -> None:
    watchdog = Watchdog()
    assert watchdog.now == (0, "", Kind.OUTSIDE)
    with watchdog.operation("outer"):
        with watchdog.operation("inner"):
            assert watchdog.now == (1, "outer", Kind.WAITING)
        with watchdog.working():
            assert watchdog.now == (1, "outer", Kind.WORKING)
        assert watchdog.now == (1, "outer", Kind.WAITING)
    assert watchdog.now == (1, "outer", Kind.OUTSIDE)
    with watchdog.working():
        with watchdog.operation("second"):
            assert watchdog.now == (2, "second", Kind.WAITING)
        assert watchdog.now == (2, "second", Kind.WORKING)
    with pytest.raises(KeyError), watchdog.operation("third"):
        raise KeyError
    assert watchdog.now == (3, "third", Kind.OUTSIDE)


@pytest.mark.parametrize("name", ["stall_warning", "stall_timeout"])
def test_limits_are_not_negative(name: str) -> None:
    with pytest.raises(ValueError, match=f"--{name} must be at least 0, got -1"):
        StallSettings(**{name: -1.0})
