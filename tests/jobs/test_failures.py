"""A rank that fails, is killed or is stopped: the others end, the reason is shown once;
`--restarts`."""

import re
import signal
import socket

import pytest
from harness.jobs import assert_gone, held, launch, pids, program, run, started

FAILED = "failed on rank {} of 2\nTraceback (most recent call last)"
REFUSED = "error: --train_file x.json: broken in line 3\n"
THREAD = "1: import threading; threading.Thread(target=fail).start(); time.sleep(1000)"
FAULTS = {  # what strikes -> exit status, and the beginning of the one error
    "1: fail()": (70, FAILED.format(1)),
    "1: refuse()": (1, REFUSED),
    "refuse()": (1, REFUSED),
    "fail()": (70, FAILED.format(0)),
    "world.on_first(fail)": (70, FAILED.format(0)),
    "world.on_first(refuse)": (1, REFUSED),
    THREAD: (70, FAILED.format(1)),
    "1: sys.exit(3)": (3, "rank 1 of 2 exits: 3\n"),
    "1: sys.exit('the words')": (1, "rank 1 of 2 exits: the words\n"),
    "1: sys.exit(0)": (70, "error: the ranks do different things: "),
    "1: time.sleep(1000)": (70, "error: rank 1 did not arrive at "),
}
SLOW = [pytest.param(fault, marks=pytest.mark.slow) for fault in list(FAULTS)[2:]]


@pytest.mark.parametrize("fault", [*list(FAULTS)[:2], *SLOW])
def test_a_fault_ends_all_ranks_and_is_shown_once(tmp_path, fault):
    """An error of the user's is not tried again."""
    flags = ("--restarts=3",) if "refuse" in fault else ()
    done = run(launch(2, *program("work.py", tmp_path, fault), flags=flags))
    status, error = FAULTS[fault]
    assert (done.status, done.stdout) == (status, "from 0\n"), done
    assert f"\nprog: {error}" in f"\n{done.stderr}", done
    assert done.stderr.count("prog:") - done.stderr.count("prog: warning") == 1, done
    assert done.stderr.count("Traceback") == error.count("Traceback"), done
    assert_gone(*pids(tmp_path))


def test_a_killed_rank_is_named_and_its_job_goes_on_where_it_was_as_often_as_allowed(tmp_path):
    with held(tmp_path, 2, "--restarts=1") as job:
        first = pids(tmp_path)
        (tmp_path / "holding").unlink()  # the second start holds too
        job.strike(tmp_path / "rank-1")
        job.wait_for(lambda: (tmp_path / "holding").exists() and pids(tmp_path)[1] != first[1])
        assert_gone(*first)
        job.strike(tmp_path / "rank-1")
        done = job.fail()
    assert done.stdout.splitlines() == ["from 0", "from 7"]
    assert re.search(r"rank 1\b", done.stderr)
    assert re.search(r"(?i)signal 9|killed", done.stderr)
    assert_gone(*pids(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "stopped"), [(2, [1]), (4, [0, 1])])
def test_a_stopped_rank_is_named_and_the_job_ends(tmp_path, ranks, stopped):
    """Also when rank 0, which would notice it, is one of them."""
    with held(tmp_path, ranks) as job:
        for rank in stopped:
            job.strike(tmp_path / f"rank-{rank}", signal.SIGSTOP)
        printed = job.fail().stderr
    (line,) = [line for line in printed.splitlines() if "prog: error:" in line]
    said = rf"rank {stopped[0]}, process \d+ on \S+, gave its last sign of life \d+ s ago"
    assert re.search(said, line)
    assert_gone(*pids(tmp_path))


@pytest.mark.slow
def test_a_job_that_a_user_ends_is_not_started_again(tmp_path):
    """This program has nothing to save, so the first signal ends it."""
    with held(tmp_path, 2, "--restarts=3") as job:
        job.process.send_signal(signal.SIGINT)
        done = job.fail()
    assert done.stdout.splitlines() == ["from 0"]
    assert "bert-launch: SIGINT ends the ranks" in done.stderr
    assert_gone(*pids(tmp_path))


@pytest.mark.slow
def test_a_rank_that_never_joins_ends_the_job(tmp_path):
    one = 'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then exec sleep 1000; else exec "$@"; fi'
    command = ("sh", "-c", one, "sh", *program("work.py", tmp_path))
    with started(launch(2, *command, flags=("--start-timeout=5",))) as job:
        printed = job.fail().stderr
    assert "a process was ended by SIGALRM (not all ranks joined within --start-timeout" in printed


@pytest.mark.slow
def test_what_only_another_host_lacks_is_one_line(tmp_path):
    """Rank 0, which reports what all have, waits for it to join."""
    broken = tmp_path / "broken" / "mpi4py"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no file of it here')")
    one = f'[ $OMPI_COMM_WORLD_RANK = 1 ] && PYTHONPATH={broken.parent}:$PYTHONPATH; exec "$@"'
    command = ("sh", "-c", one, "sh", *program("work.py", tmp_path / "work"))
    done = run(launch(2, *command))
    assert done.status == 1, done
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("prog: error")]
    assert f"error on {socket.gethostname()}: " in line
    assert "mpi4py is not installed (no file of it here)" in line
