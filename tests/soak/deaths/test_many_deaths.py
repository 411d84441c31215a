"""Everything else that goes wrong on a rank: `scripts/soak.sh deaths`, before a release."""

import contextlib
import os
import random
import re
import signal
import time

import pytest
from harness.classifier_runs import model_flags, own_files, scores_in, table_in, write_data
from harness.jobs import (
    assert_gone,
    assert_same_training,
    held,
    killed,
    launch,
    program,
    ranks_of,
    run,
    started,
    trained_alone,
)
from harness.program_runs import command, metrics_in

from distributed.launcher import SECOND_S

ELASTIC = ("--elastic",)


# it ends after 4 s
@pytest.mark.parametrize("fault", ["1: time.sleep(3)", "world.on_first(time.sleep, 8)"])
def test_a_slow_rank_is_no_stall(tmp_path, fault):
    done = run(launch(2, *program("work.py", tmp_path, fault)))
    assert (done.status, "error" in done.stderr) == (0, False), done


@pytest.mark.parametrize(
    "number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGTERM]
)
@pytest.mark.parametrize("rank", [0, 2])
def test_any_signal_that_ends_a_rank_ends_the_job(tmp_path, number, rank):
    with held(tmp_path, 3) as job:
        job.strike(tmp_path / f"rank-{rank}", number)
        assert re.search(rf"rank {rank}\b", job.fail().stderr)


def test_a_signal_between_two_starts_ends_the_job(tmp_path):
    with held(tmp_path, 2, "--restarts=9") as job:
        job.strike(tmp_path / "rank-0")
        job.wait_for(lambda: "restart 1 of 9" in job.done().stderr)
        job.process.terminate()
        assert job.fail().stdout.splitlines() == ["from 0"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return trained_alone(tmp_path_factory.mktemp("undisturbed"))


VICTIMS = [
    *(
        f"{rank}@{place}@7"
        for rank in (0, 1)
        for place in ("weights", "sum", "summed", "evaluation")
    ),
    *("0@save@7", "0@write@8", "0@write@5"),  # a checkpoint, which rank 0 alone writes
    "0@summed@6 2@summed@6",  # at the same time
    "1@sum@6 0@weights@7 2@evaluation@20",  # until one is left
]


@pytest.mark.parametrize("names", VICTIMS)
def test_a_death_anywhere_changes_nothing(tmp_path, names, undisturbed):
    (tmp_path / "fast").touch()
    done, names = killed(tmp_path, 4, *names.split()), names.split()
    assert_same_training(
        done, tmp_path, undisturbed, 4 - len(names), lost=sum(name[0] == "0" for name in names)
    )


@pytest.mark.parametrize("seed", range(8))
def test_deaths_at_any_time_change_nothing(tmp_path, seed, undisturbed):
    """Some follow each other so soon that the second one strikes the survivors while they
    recover."""
    chance = random.Random(seed)
    with started(launch(4, *program("training.py", tmp_path), flags=ELASTIC)) as job:
        job.wait_for((tmp_path / "metrics.jsonl").exists)
        for rank in chance.sample(range(4), 3):
            time.sleep(chance.choice([0.01, 0.1, 0.5, 2]) * chance.random())
            job.strike(tmp_path / f"rank-{rank}")
        (tmp_path / "fast").touch()
        done = job.end()
    assert_same_training(done, tmp_path, undisturbed, 1, lost=2)


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_stops_at_any_time_ends_the_training(tmp_path, seed):
    chance = random.Random(seed)
    rank = chance.randrange(2)
    with started(launch(2, *program("training.py", tmp_path, "impatient"))) as job:
        job.wait_for((tmp_path / "metrics.jsonl").exists)
        time.sleep(chance.random())
        job.strike(tmp_path / f"rank-{rank}", signal.SIGSTOP)
        assert re.search(rf"prog: error: .*rank {rank}, process \d+ on", job.fail().stderr)


def test_a_death_while_a_training_saves_on_request(tmp_path, undisturbed):
    with started(launch(3, *program("training.py", tmp_path, "0@save@0"), flags=ELASTIC)) as job:
        job.wait_for((tmp_path / "metrics.jsonl").exists)
        job.process.send_signal(signal.SIGUSR1)
        job.strike(tmp_path / "0@save@0")
        done = job.end()
    assert (done.status, "Traceback" in done.stderr) == (75, False), done
    (tmp_path / "fast").touch()
    assert_same_training(run(program("training.py", tmp_path)), tmp_path, undisturbed, 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_second_signal_ends_at_once(tmp_path, ranks):
    """In a step without an end. One that comes within some seconds would be a repetition of the
    first."""
    with started(launch(ranks, *program("training.py", tmp_path, "0@weights@5"))) as job:
        job.wait_for((tmp_path / "0@weights@5").exists)
        for _ in range(2):
            job.press_ctrl_c()
            time.sleep(SECOND_S + 1)
        job.fail()


STEPS = range(1, 151)
TRAIN = (
    f"--do_train --do_eval --do_predict --num_train_steps={len(STEPS)} --learning_rate=1e-3"
    " --resume=never"
)
TRAIN += " --global_batch_size=32 --log_steps=1 --save_checkpoints_steps=10"


@contextlib.contextmanager
def classifier(tmp_path, ranks, *flags, **options):
    data, out = write_data(tmp_path / "data"), tmp_path / "out"
    flags = (*model_flags(data), *own_files(data), *TRAIN.split(), f"--output_dir={out}", *flags)
    with started(launch(ranks, *command("tasks.classifier", *flags), **options)) as job:
        yield job, out


def check_end(job, out):
    done = job.end()
    assert (done.status, "Traceback" in done.stderr) == (0, False), done
    assert scores_in(out)["eval_accuracy"] > 0.8
    assert len(table_in(out / "test_results.tsv")) == 50
    assert [line["rows"] for line in metrics_in(out) if "loss" in line] == [
        32 * step for step in STEPS
    ]
    return done.stderr


def test_a_classifier_whose_ranks_are_killed_at_its_start_in_training_and_in_prediction(tmp_path):
    with classifier(tmp_path, 4, flags=ELASTIC) as (job, out):
        for rank, words in (2, "plan: "), (0, "weights: "), (3, "trained for"):
            job.wait_for(
                lambda rank=rank, words=words: words in job.done().stderr and rank in ranks_of(out)
            )
            os.kill(ranks_of(out)[rank], signal.SIGKILL)
        check_end(job, out)


def test_a_classifier_that_was_killed_is_started_again_and_goes_on(tmp_path):
    """--resume never is for the first start only."""
    with classifier(tmp_path, 2, flags=("--restarts=1",)) as (job, out):
        job.wait_for((out / "checkpoints" / "rows-000000000320").exists)
        os.kill(ranks_of(out)[1], signal.SIGKILL)
        assert re.search(r"weights: \d+ tensors from .*rows-\d{12}", check_end(job, out))


def test_a_rank_that_is_killed_with_tensorflows_backend_ends_the_others(tmp_path):
    with classifier(tmp_path, 2, "--backend=ring") as (job, out):
        job.wait_for((out / "metrics.jsonl").exists)
        ranks = ranks_of(out)
        os.kill(ranks[1], signal.SIGKILL)
        job.fail()
    assert_gone(*ranks.values())
