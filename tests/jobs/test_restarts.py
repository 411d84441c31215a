"""bert-launch --restarts: a job that was killed goes on where it had saved, and other ends are final."""

import signal

import pytest
from harness.jobs import assert_gone, held, launch, pids, program, run


def test_a_killed_job_goes_on_where_it_was_as_often_as_allowed(tmp_path):
    with held(tmp_path, 2, "--restarts=1") as job:
        first = pids(tmp_path)
        (tmp_path / "holding").unlink()  # the second start holds too
        job.strike(tmp_path / "rank-1")
        job.wait_for(lambda: (tmp_path / "holding").exists() and pids(tmp_path)[1] != first[1])
        assert_gone(*first)
        job.strike(tmp_path / "rank-1")
        assert job.fail().stdout.splitlines() == ["from 0", "from 7"]


@pytest.mark.slow
def test_an_error_of_the_users_is_not_tried_again(tmp_path):
    done = run(launch(2, *program("work.py", tmp_path, "1: refuse()"), flags=("--restarts=3",)))
    assert done.status == 1, done
    assert done.stdout.splitlines() == ["from 0"]


@pytest.mark.slow
def test_a_job_that_a_user_ends_is_not_started_again(tmp_path):
    """The first signal asks the ranks to save; this program has nothing to save, and the second one ends it."""
    with held(tmp_path, 2, "--restarts=3") as job:
        job.process.send_signal(signal.SIGINT)
        job.wait_for(lambda: "SIGINT" in job.done().stderr)
        job.process.send_signal(signal.SIGTERM)
        assert job.fail().stdout.splitlines() == ["from 0"]
    assert_gone(*pids(tmp_path))


@pytest.mark.slow
def test_a_rank_that_never_joins_ends_the_job(tmp_path):
    one = 'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then exec sleep 1000; else exec "$@"; fi'
    done = run(launch(2, "sh", "-c", one, "sh", *program("work.py", tmp_path), flags=("--start-timeout=5",)))
    assert done.status not in (0, 75), done
    assert "a process was ended by SIGALRM (not all ranks joined within --start-timeout" in done.stderr
