"""Everything else that goes wrong on a rank: `scripts/soak.sh deaths`, before a release."""

import os
import random
import re
import signal
import time

import numpy as np
import pytest
from harness.classifier_runs import model_flags, own_files, scores_in, table_in, write_data
from harness.jobs import assert_gone, launch, program, ranks_of, run, started
from harness.program_runs import command, metrics_in

STEPS = 40  # of programs/training.py
ELASTIC = ("--elastic",)


# -- without TensorFlow -------------------------------------------------------------------------------------------


def struck(folder, ranks, numbers, number):
    """How a job of `ranks` ends whose ranks `numbers` get a signal; all its processes end."""
    with started(launch(ranks, *program("work.py", folder, "hold"))) as job:
        job.wait_for((folder / "holding").exists)
        for rank in numbers:
            job.strike(folder / f"rank-{rank}", number)
        done = job.end()
    assert done.status not in (0, 75), done
    assert_gone(*(int((folder / f"rank-{rank}").read_text()) for rank in range(ranks)))
    return done


FAULTS = [  # what strikes, exit status, how the last error begins, whether there is a traceback
    ("raise on all", 70, "prog: failed on rank 0 of 2", True),
    ("raise on first", 70, "prog: failed on rank 0 of 2", True),
    ("raise in a thread", 70, "prog: failed on rank 1 of 2", True),
    ("refuse on first", 1, "prog: error: --train_file x.json: broken in line 3", False),
    ("exit with 3", 3, "prog: rank 1 of 2 exits: 3", False),
    ("exit with words", 1, "prog: rank 1 of 2 exits: the words", False),
    ("leave", None, "prog: error: the ranks do different things", False),
    ("hang", None, "prog: error: rank 1 ", False),
]


@pytest.mark.parametrize(("fault", "status", "error", "has_traceback"), FAULTS)
def test_a_fault_on_one_rank_ends_all_and_is_shown_once(tmp_path, fault, status, error, has_traceback):
    done = run(launch(2, *program("work.py", tmp_path, fault)))
    assert done.status == status if status is not None else done.status not in (0, 75), done
    assert done.stderr.count("prog:") - done.stderr.count("prog: warning") == 1, done
    assert f"\n{error}" in done.stderr, done
    assert done.stderr.count("Traceback (most recent call last)") == has_traceback, done
    assert_gone(*(int((tmp_path / f"rank-{rank}").read_text()) for rank in range(2)))


@pytest.mark.parametrize("fault", ["slow", "rank 0 works"])
def test_a_slow_rank_is_no_stall(tmp_path, fault):
    done = run(launch(2, *program("work.py", tmp_path, fault)))
    assert done.status == 0, done
    assert "error" not in done.stderr, done


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
@pytest.mark.parametrize("rank", [0, 2])
def test_any_signal_that_ends_a_rank_ends_the_job(tmp_path, number, rank):
    done = struck(tmp_path, 3, [rank], number)
    assert re.search(rf"rank {rank}\b", done.stderr), done


def test_several_stopped_ranks_end_the_job(tmp_path):
    """Also when rank 0, which would notice it, is one of them."""
    struck(tmp_path, 4, [0, 1], signal.SIGSTOP)


def test_a_signal_between_two_starts_ends_the_job(tmp_path):
    with started(launch(2, *program("work.py", tmp_path, "hold"), flags=("--restarts=9",))) as job:
        job.wait_for((tmp_path / "holding").exists)
        job.strike(tmp_path / "rank-0")
        job.wait_for(lambda: "restart 1 of 9" in job.done().stderr)
        job.process.terminate()
        done = job.end()
    assert done.status not in (0, 75)
    assert done.stdout.splitlines() == ["from 0"]


# -- trainings of a toy -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "fast").touch()
    return run(program("training.py", folder)).json()["weights"]


def assert_same_training(done, folder, undisturbed, survivors):
    result = done.json()
    assert len(result["digests"]) == survivors, done
    assert len(set(result["digests"])) == 1, "the survivors hold different weights"
    np.testing.assert_allclose(result["weights"], undisturbed, rtol=0, atol=1e-12)
    steps = [line["step"] for line in metrics_in(folder) if "loss" in line]
    assert len(steps) == len(set(steps)), "a step is logged twice"
    assert len(steps) >= STEPS - 2, "more is missing than what rank 0 had not logged when it was killed"
    names = [path.name for path in (folder / "checkpoints").iterdir()]
    assert all(re.fullmatch(r"rows-\d{12}", name) for name in names), "something half-written is left"


def victims(*groups):
    return [pytest.param(group, id=" ".join(group)) for group in groups]


@pytest.mark.parametrize(
    "names",
    victims(
        *([f"{rank}@{place}@7"] for rank in (0, 1) for place in ("weights", "sum", "summed", "evaluation")),
        ["0@save@7"],  # a checkpoint, which rank 0 alone writes
        ["0@write@8"],
        ["0@write@5"],
        ["0@summed@6", "2@summed@6"],  # at the same time
        ["1@sum@6", "0@weights@7", "2@evaluation@20"],  # until one is left
    ),
)
def test_a_death_anywhere_changes_nothing(tmp_path, names, undisturbed):
    (tmp_path / "fast").touch()
    with started(launch(4, *program("training.py", tmp_path, *names), flags=ELASTIC)) as job:
        for name in names:
            job.strike(tmp_path / name)
        done = job.end()
    assert_same_training(done, tmp_path, undisturbed, 4 - len(names))


@pytest.mark.parametrize("seed", range(8))
def test_deaths_at_any_time_change_nothing(tmp_path, seed, undisturbed):
    """Some follow each other so soon that the second one strikes the survivors while they recover."""
    chance = random.Random(seed)
    ranks = chance.sample(range(4), 3)
    with started(launch(4, *program("training.py", tmp_path), flags=ELASTIC)) as job:
        job.wait_for((tmp_path / "metrics.jsonl").exists)
        for rank in ranks:
            time.sleep(chance.choice([0.01, 0.1, 0.5, 2]) * chance.random())
            os.kill(int((tmp_path / f"rank-{rank}").read_text()), signal.SIGKILL)
        (tmp_path / "fast").touch()
        done = job.end()
    assert_same_training(done, tmp_path, undisturbed, 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_stops_at_any_time_ends_the_training(tmp_path, seed):
    chance = random.Random(seed)
    rank = chance.randrange(2)
    with started(launch(2, *program("training.py", tmp_path, "impatient"))) as job:
        job.wait_for((tmp_path / "metrics.jsonl").exists)
        time.sleep(chance.random())
        job.strike(tmp_path / f"rank-{rank}", signal.SIGSTOP)
        done = job.end()
    assert done.status not in (0, 75), done
    (line,) = [line for line in done.stderr.splitlines() if "prog: error:" in line]
    assert f"rank {rank} " in line


def test_a_death_while_a_training_saves_on_request(tmp_path, undisturbed):
    with started(launch(3, *program("training.py", tmp_path, "0@save@0"), flags=ELASTIC)) as job:
        job.wait_for((tmp_path / "metrics.jsonl").exists)
        job.process.send_signal(signal.SIGUSR1)
        job.strike(tmp_path / "0@save@0")
        done = job.end()
    assert done.status == 75, done
    assert "Traceback" not in done.stderr, done
    (tmp_path / "fast").touch()
    assert_same_training(run(program("training.py", tmp_path)), tmp_path, undisturbed, 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_second_signal_ends_at_once(tmp_path, ranks):
    name = "0@weights@5"  # a step without an end
    with started(launch(ranks, *program("training.py", tmp_path, name))) as job:
        job.wait_for((tmp_path / name).exists)
        for _ in range(2):
            job.press_ctrl_c()
            time.sleep(1)
        done = job.end()
    assert done.status not in (0, 75), done


# -- bert-classifier ----------------------------------------------------------------------------------------------


def classifier(tmp_path, *flags):
    data, out = write_data(tmp_path / "data"), tmp_path / "out"
    more = [
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--learning_rate=1e-3",
        "--global_batch_size=32",
        "--log_steps=1",
    ]
    arguments = [*model_flags(data), *own_files(data), *more, "--num_train_steps=150", "--resume=never", *flags]
    return out, command("tasks.classifier", *arguments, f"--output_dir={out}")


def killed_at(job, out, rank, words):
    job.wait_for(lambda: words in job.done().stderr and rank in ranks_of(out))
    os.kill(ranks_of(out)[rank], signal.SIGKILL)


def test_a_classifier_whose_ranks_are_killed_at_its_start_in_training_and_in_prediction(tmp_path):
    out, argv = classifier(tmp_path)
    with started(launch(4, *argv, flags=ELASTIC)) as job:
        for rank, words in (2, "plan: "), (0, "weights: "), (3, "trained for"):
            killed_at(job, out, rank, words)
        done = job.end()
    assert done.status == 0, done
    assert "Traceback" not in done.stderr, done
    assert scores_in(out)["eval_accuracy"] > 0.8
    assert len(table_in(out / "test_results.tsv")) == 50
    assert [line["rows"] for line in metrics_in(out) if "loss" in line] == [32 * step for step in range(1, 151)]


def test_a_classifier_that_was_killed_is_started_again_and_goes_on(tmp_path):
    """--resume never is for the first start only."""
    out, argv = classifier(tmp_path, "--save_checkpoints_steps=10")
    with started(launch(2, *argv, flags=("--restarts=1",))) as job:
        job.wait_for((out / "checkpoints" / "rows-000000000320").exists)
        os.kill(ranks_of(out)[1], signal.SIGKILL)
        done = job.end()
    assert done.status == 0, done
    assert re.search(r"weights: \d+ tensors from .*rows-\d{12}", done.stderr), done
    assert [line["rows"] for line in metrics_in(out) if "loss" in line] == [32 * step for step in range(1, 151)]
    assert scores_in(out)["eval_accuracy"] > 0.8


def test_a_rank_that_is_killed_with_tensorflows_backend_ends_the_others(tmp_path):
    out, argv = classifier(tmp_path, "--backend=ring")
    with started(launch(2, *argv)) as job:
        job.wait_for((out / "metrics.jsonl").exists)
        ranks = ranks_of(out)
        os.kill(ranks[1], signal.SIGKILL)
        assert job.end().status not in (0, 75)
    assert_gone(*ranks.values())
