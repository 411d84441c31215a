"""Trainings whose ranks are killed, or that are asked to stop, end with the weights of one that
nobody disturbed.

It is a toy in float64 that sees the same rows on any number of ranks.
"""

import os
import re
import signal

import numpy as np
import pytest
from harness.classifier_runs import model_flags, own_files, scores_in, write_data
from harness.jobs import (
    assert_same_training,
    killed,
    launch,
    losses,
    program,
    ranks_of,
    run,
    started,
    trained_alone,
)
from harness.program_runs import bert, command
from safetensors.numpy import load_file

from distributed.mpirun import find_mpi
from ringbase.files import read_json

pytestmark = pytest.mark.slow
can_lose_ranks = pytest.mark.skipif(
    not find_mpi().is_open_mpi_5, reason="--elastic needs Open MPI 5"
)
STEPS = 40


@pytest.fixture
def folder(tmp_path):
    """The folder of a training that takes its steps at once."""
    (tmp_path / "fast").touch()
    return tmp_path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return trained_alone(tmp_path_factory.mktemp("undisturbed"))


@can_lose_ranks
def test_an_elastic_training_loses_nothing_but_ranks(folder, undisturbed):
    """Rank 0, which writes everything, dies in a sum; then another one in an evaluation, and one is
    left."""
    done = killed(folder, 3, "0@sum@3", "2@evaluation@15")
    assert_same_training(done, folder, undisturbed, survivors=1, lost=1)
    assert re.search(r"rank 0\b.* died.*2 ranks go on", done.stderr), done
    assert re.search(r"rank 2\b.* died.*1 rank goes on", done.stderr), done


@can_lose_ranks
def test_a_step_that_one_survivor_has_and_another_has_not_counts_once(folder, undisturbed):
    assert_same_training(killed(folder, 3, "1@summed@8", "torn"), folder, undisturbed, survivors=2)


@can_lose_ranks
def test_a_regrouping_without_end_ends_the_job(folder):
    """One rank is stopped when another dies. MPI waits for it, and no watchdog watches."""
    names = "1@sum@3", "2@sum@3"
    command = program("training.py", folder, *names, "impatient")
    with started(launch(3, *command, flags=("--elastic",))) as job:
        job.wait_for(lambda: all((folder / name).exists() for name in names))
        job.strike(folder / "2@sum@3", signal.SIGSTOP)
        job.strike(folder / "1@sum@3")
        done = job.fail()
    assert "did not regroup after a death within --stall_timeout 10 s" in done.stderr, done


def started_ranks(job, output_dir, number):
    """Their process ids, sought before they train: a kill at the first step then comes at once."""
    job.wait_for(lambda: len(ranks_of(output_dir)) == number)
    return ranks_of(output_dir)


@can_lose_ranks
def test_runs_of_several_seeds_are_summed_up_by_whoever_is_left(tmp_path):
    """Rank 0, which writes everything, dies in the first run, whose log may lack the step of its
    death."""
    data, out = write_data(tmp_path / "data"), tmp_path / "out"
    flags = [*model_flags(data), *own_files(data), f"--output_dir={out}"]
    flags += ["--do_train", "--do_eval", "--num_train_steps=200", "--log_steps=1", "--seeds=1,2"]
    flags += ["--global_batch_size=8"]
    with started(launch(2, *command("tasks.classifier", *flags), flags=("--elastic",))) as job:
        rank_0 = started_ranks(job, out, 2)[0]
        job.wait_for((out / "seed-1" / "metrics.jsonl").exists)
        os.kill(rank_0, signal.SIGKILL)
        done = job.end()
    assert done.status == 0, done
    disturbed, whole = ([step for step, _ in losses(out / f"seed-{seed}")] for seed in (1, 2))
    assert whole == [*range(1, 201)]
    assert disturbed == sorted(set(disturbed)), "a step is logged twice"
    assert disturbed[-1] == 200
    assert len(disturbed) >= 199
    of_seeds = [scores_in(out / f"seed-{seed}")["eval_accuracy"] for seed in (1, 2)]
    mean = sum(of_seeds) / 2
    assert f"eval_accuracy = {mean:.4f} ±" in (out / "eval_results.txt").read_text()
    scores = read_json(out / "result.json")["scores"]
    assert scores["eval_accuracy"] == pytest.approx(mean)


@can_lose_ranks
def test_texts_of_all_ranks_stay_negatives_of_each_other_when_a_rank_dies(tmp_path):
    """The loss of bert-embedder joins the ranks' rows, so each one needs those of the others."""
    data = write_data(tmp_path / "data")
    flags = [*model_flags(data), f"--train_file={data}/train.csv", "--do_train", "--log_steps=1"]
    flags += ["--anchor_column=body", "--positive_column=more", "--lr_scaling=none"]
    flags += ["--global_batch_size=24", "--num_train_steps=150", "--learning_rate=1e-4"]
    flags += ["--lr_scheduler_type=cosine", "--adam_bias_correction", "--layer_lr_decay=0.5"]

    def weights(name):
        tensors = load_file(tmp_path / name / "model/model.safetensors")
        return np.concatenate([values.ravel() for values in tensors.values()])

    bert("embedder", tmp_path / "start", *flags, "--learning_rate=1e-30", "--num_train_steps=1")
    bert("embedder", tmp_path / "alone", *flags)
    bert("embedder", tmp_path / "other", *flags, "--seed=7")
    out = tmp_path / "out"
    embedder = command("tasks.embedder", *flags, f"--output_dir={out}")
    with started(launch(3, *embedder, flags=("--elastic",))) as job:
        rank_1 = started_ranks(job, out, 3)[1]
        job.wait_for((out / "metrics.jsonl").exists)
        os.kill(rank_1, signal.SIGKILL)
        done = job.end()
    assert (done.status, "2 ranks go on" in done.stderr) == (0, True), done
    start, alone = weights("start"), weights("alone")

    def apart(name):
        return np.linalg.norm(weights(name) - alone) / np.linalg.norm(alone - start)

    assert apart("out") < 1e-3
    assert apart("other") > 0.1  # other batches have other negatives


def test_a_killed_training_starts_again_from_its_checkpoint(folder, undisturbed):
    done = killed(folder, 2, "0@write@8", flag="--restarts=1")
    assert_same_training(done, folder, undisturbed, survivors=2)


def test_sigusr1_saves_and_stops_and_the_next_start_goes_on(tmp_path, undisturbed):
    """On another number of ranks. tests/jobs/test_stops.py has the other signals."""
    with started(launch(2, *program("training.py", tmp_path))) as job:
        job.wait_for(lambda: num_steps(tmp_path) > 3)
        job.process.send_signal(signal.SIGUSR1)
        done = job.end()
    assert (done.status, "Traceback" in done.stderr) == (75, False), done
    assert re.search(rf"saved after step {num_steps(tmp_path)} of {STEPS}", done.stderr), done
    assert f"rows-{14 * num_steps(tmp_path):012}" in os.listdir(tmp_path / "checkpoints")
    (tmp_path / "fast").touch()
    assert_same_training(run(program("training.py", tmp_path)), tmp_path, undisturbed, survivors=1)


def num_steps(folder):
    """How many steps are logged."""
    return len(losses(folder)) if (folder / "metrics.jsonl").exists() else 0
