"""Trainings whose ranks are killed, or that are asked to stop, end with the weights of one that nobody disturbed.

It is a toy in float64 that sees the same rows on any number of ranks.
"""

import os
import re
import signal

import numpy as np
import pytest
from harness.jobs import launch, program, run, started
from harness.program_runs import metrics_in

from distributed.mpirun import find_mpi

pytestmark = pytest.mark.slow
can_lose_ranks = pytest.mark.skipif(find_mpi().version < (5, 0), reason="--elastic needs Open MPI 5")
STEPS = 40


@pytest.fixture
def folder(tmp_path):
    """The folder of a training that takes its steps at once."""
    (tmp_path / "fast").touch()
    return tmp_path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Weights and losses of one rank's training."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "fast").touch()
    return run(program("training.py", folder)).json()["weights"], losses(folder)


def losses(folder):
    """The logged steps and losses."""
    return [(line["step"], line["loss"]) for line in metrics_in(folder) if "loss" in line]


def assert_same_training(done, folder, undisturbed, survivors):
    """With each step logged once."""
    assert_same_weights(done, undisturbed, survivors)
    np.testing.assert_allclose(losses(folder), undisturbed[1], rtol=1e-10)


def assert_same_weights(done, undisturbed, survivors):
    result = done.json()
    assert result["step"] == STEPS
    assert len(result["digests"]) == survivors, done
    assert len(set(result["digests"])) == 1, "the ranks hold different weights"
    np.testing.assert_allclose(result["weights"], undisturbed[0], rtol=0, atol=1e-12)


@can_lose_ranks
def test_an_elastic_training_loses_nothing_but_ranks(folder, undisturbed):
    """Rank 0, which writes everything, dies in a sum; then another one in an evaluation, and one is left."""
    victims = ["0@sum@3", "2@evaluation@15"]
    with started(launch(3, *program("training.py", folder, *victims), flags=("--elastic",))) as job:
        for victim in victims:
            job.strike(folder / victim)
        done = job.end()
    assert_same_training(done, folder, undisturbed, survivors=1)
    assert re.search(r"rank 0\b.* died.*2 ranks go on", done.stderr), done
    assert re.search(r"rank 2\b.* died.*1 rank goes on", done.stderr), done


@can_lose_ranks
def test_a_step_that_one_survivor_has_and_another_has_not_counts_once(folder, undisturbed):
    with started(launch(3, *program("training.py", folder, "torn"), flags=("--elastic",))) as job:
        job.strike(folder / "torn")
        done = job.end()
    assert_same_training(done, folder, undisturbed, survivors=2)


def test_a_killed_training_starts_again_from_its_checkpoint(folder, undisturbed):
    with started(launch(2, *program("training.py", folder, "1@summed@11"), flags=("--restarts=1",))) as job:
        job.strike(folder / "1@summed@11")
        done = job.end()
    assert_same_weights(done, undisturbed, survivors=2)
    assert losses(folder)[-1] == pytest.approx(undisturbed[1][-1], rel=1e-10)


def stop(folder, ranks, request):
    """Starts a training, asks it to stop after some steps, and checks that it has saved."""
    with started(launch(ranks, *program("training.py", folder))) as job:
        job.wait_for(lambda: num_steps(folder) > 3)
        request(job)
        done = job.end()
    assert done.status == 75, done
    assert "Traceback" not in done.stderr, done
    assert re.search(rf"saved after step {num_steps(folder)} of {STEPS}", done.stderr), done
    assert f"rows-{14 * num_steps(folder):012}" in os.listdir(folder / "checkpoints")


def test_sigusr1_saves_and_stops_and_the_next_start_goes_on(tmp_path, undisturbed):
    """On another number of ranks."""
    stop(tmp_path, 2, lambda job: job.process.send_signal(signal.SIGUSR1))
    (tmp_path / "fast").touch()
    assert_same_training(run(program("training.py", tmp_path)), tmp_path, undisturbed, survivors=1)


@pytest.mark.parametrize(
    ("ranks", "stops"), [(2, lambda job: job.process.terminate()), (1, lambda job: job.press_ctrl_c())],
    ids=["SIGTERM to the launcher", "Ctrl-C to one process"],
)  # fmt: skip
def test_what_ends_a_process_saves_first(tmp_path, ranks, stops):
    stop(tmp_path, ranks, stops)


def num_steps(folder):
    """How many steps are logged."""
    path = folder / "metrics.jsonl"
    return sum("loss" in line for line in metrics_in(folder)) if path.exists() else 0
