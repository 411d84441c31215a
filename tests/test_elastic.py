"""Training that goes on when ranks are killed, under Open MPI's ULFM: a toy in float64, whose result is known."""

import re
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hosts import available, simulated_hosts
from mpi import PROGRAMS, ROOT, Done, alone, mpirun
from program_runs import metrics_in

from distributed.launcher.mpirun import find_mpi
from ringbert.errors import Preempted

ULFM, ELASTIC = ("--with-ft", "ulfm"), {"RINGBERT_ELASTIC": "1"}

pytestmark = pytest.mark.skipif(
    find_mpi().version < (5, 0), reason="Open MPI 5 can go on without a rank, older ones cannot"
)


def trained(folder, *kills: str, np: int = 3, env: Mapping[str, str] = ELASTIC) -> dict:
    """The result of a training while ranks are killed: RANK@PLACE@STEP…"""
    folder.mkdir()
    return checked(mpirun(np, "elastic.py", folder, *kills, env=env, mpi_args=ULFM), folder, kills, np)


def checked(done: Done, folder, kills: Sequence[str] = (), np: int = 1) -> dict:
    for kill in kills:
        assert f"rank {kill.partition('@')[0]} on " in done.stderr, str(done)
    result = done.json()
    assert len(set(result["digests"])) == 1, "the survivors hold different weights"
    assert len(result["digests"]) == np - len(kills)
    lines = [line for line in metrics_in(folder) if "loss" in line]
    assert [line["step"] for line in lines] == list(range(1, 21)), "a step is logged twice, or not at all"
    return result | {"losses": [line["loss"] for line in lines], "stderr": done.stderr}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict:
    """One rank trains on the same rows as several."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return checked(alone("elastic.py", folder), folder)


def assert_same_training(result: dict, undisturbed: dict, limit_s: float = 5) -> None:
    """Nothing is lost by a death: each step had its rows, once."""
    np.testing.assert_allclose(result["weights"], undisturbed["weights"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(result["losses"], undisturbed["losses"], rtol=1e-10)
    assert (result["position"], result["step"]) == (undisturbed["position"], undisturbed["step"])
    # All but those whose checkpoint was being written when its writer died.
    scores = [entry for entry in undisturbed["evaluations"] if entry in result["evaluations"]]
    assert result["evaluations"] == scores
    assert scores[-1][0] == result["position"]
    assert max(result["waits"]) < limit_s, "the next step took too long"


@pytest.mark.slow
def test_deaths_in_a_sum_a_save_and_an_evaluation_change_nothing(undisturbed, tmp_path):
    """Rank 0, which writes everything, is the first to die; at the end one rank is left."""
    result = trained(tmp_path / "run", "0@sum@3", "1@save@8", "3@evaluation@15", np=4)
    assert_same_training(result, undisturbed)
    assert "1 rank goes on after step 15" in result["stderr"]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", ["weights", "sum", "summed", "update", "save", "evaluation"])
def test_a_death_anywhere_changes_nothing(place, rank, undisturbed, tmp_path):
    assert_same_training(trained(tmp_path / "run", f"{rank}@{place}@7"), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(("place", "step"), [("copy", 8), ("write", 8), ("write", 5)])
def test_the_writer_dies_in_a_checkpoint(place, step, undisturbed, tmp_path):
    """Step 5 is evaluated, and its score is the best so far: without its checkpoint it is worth nothing."""
    result = trained(tmp_path / "run", f"0@{place}@{step}")
    assert_same_training(result, undisturbed)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert all(re.fullmatch(r"rows-\d{12}", name) for name in names), "something half-written is left"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["recovery", "memory"])
@pytest.mark.parametrize("second", [0, 2])
def test_another_death_while_the_survivors_recover(place, second, undisturbed, tmp_path):
    assert_same_training(trained(tmp_path / "run", "1@sum@6", f"{second}@{place}@6", np=4), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stops",
    [
        ("0@weights@7",),
        ("1@summed@7",),
        ("1@evaluation@7",),
        ("1@sum@6", "0@recovery@6"),
        ("2@sum@6", "1@memory@6"),
    ],
)
def test_stopped_ranks_are_killed_and_change_nothing(stops, undisturbed, tmp_path):
    """In a step, in an evaluation, and while the survivors of another one recover."""
    result = trained(tmp_path / "run", *stops, np=4, env=ELASTIC | {"STOPS": "1"})
    assert_same_training(result, undisturbed, 5 * len(stops))
    assert result["stderr"].count("it is killed, and the others go on") == len(stops)


def test_a_step_counts_for_all_or_for_none(undisturbed, tmp_path):
    """Of two survivors one has the sum of the step in which the third rank died, the other has not."""
    folder = tmp_path / "run"
    folder.mkdir()
    done = mpirun(3, "elastic.py", folder, env=ELASTIC | {"TORN_SUM": "1"}, mpi_args=ULFM)
    result = checked(done, folder, ["1@torn@7"], 3)
    assert_same_training(result, undisturbed)
    assert "after step 7" in result["stderr"]


@pytest.mark.slow
def test_a_score_whose_checkpoint_was_not_finished_is_forgotten(undisturbed, tmp_path):
    """Rank 0 dies in step 7, while it still writes the checkpoint of the evaluation after step 5."""
    result = trained(tmp_path / "run", "0@sum@6", env=ELASTIC | {"SLOW_WRITE": "1"})
    assert_same_training(result, undisturbed)
    assert [position for position, _ in result["evaluations"]] == [140, 210, 280]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_death_while_a_training_leaves_on_request(rank, undisturbed, tmp_path):
    """It has saved by then: no traceback, and the next start goes on."""
    folder = tmp_path / "run"
    folder.mkdir()
    leaves = ELASTIC | {"LEAVE_AFTER": "7"}
    done = mpirun(3, "elastic.py", folder, f"{rank}@leave@7", env=leaves, mpi_args=ULFM)
    assert done.status == Preempted.STATUS, done
    assert f"rank {rank} on " in done.stderr, done
    assert re.search(r"saved after step \d+ of 20 on request", done.stderr), done
    assert "Traceback" not in done.stderr, done
    result = checked(alone("elastic.py", folder), folder)
    np.testing.assert_allclose(result["weights"], undisturbed["weights"], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_two_ranks_die_at_the_same_time(undisturbed, tmp_path):
    assert_same_training(trained(tmp_path / "run", "0@summed@6", "2@summed@6", np=4), undisturbed)


@pytest.mark.slow
@pytest.mark.skipif(available() is not None, reason=available() or "")
@pytest.mark.parametrize(("number", "ranks"), [(2, 2), (3, 1), (3, 2)])
def test_ranks_die_on_several_hosts(number, ranks, undisturbed, tmp_path):
    """Each host's sums are in its own memory, and the first rank of each sends them to the others."""
    folder, kills = tmp_path / "run", ("2@sum@4", "0@summed@9")
    folder.mkdir()
    program = [sys.executable, str(PROGRAMS / "elastic.py"), str(folder), *kills]
    with simulated_hosts(number) as hosts:
        env = ELASTIC | {"PYTHONPATH": str(ROOT), "RINGBERT_NETWORK": "10.99.0.0/24"}
        ended = hosts.mpirun(ranks, program, timeout=180, env=env, mpi_args=ULFM)
    done = Done(ended.returncode, ended.stdout, ended.stderr)
    assert_same_training(checked(done, folder, kills, number * ranks), undisturbed)
