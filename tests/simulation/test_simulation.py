"""The control protocol of a training, simulated: the real loop, checkpoints and regrouping on many
ranks in one process, with faults that a seed decides (tests/harness/simulation)."""

import itertools
import os
import tempfile
from pathlib import Path

import pytest
from harness.simulation.jobs import simulate
from harness.simulation.options import Options

FIRST_SEED = int(os.environ.get("RINGBERT_SIM_SEED", "0"))
SWEEPS = [("write", 6), ("cut", 6), ("start", 3), ("death", 6), ("death", 3), ("error", 3)]
PARTS = 5  # of a sweep, so that none takes long
SMALL = {"num_steps": 4, "global_batch_size": 8, "save_every": 2, "evaluate_every": 3}


@pytest.fixture
def folder():
    """In memory: a sweep makes thousands of small folders, which a disk removes slowly."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(30))
def test_a_training_survives_the_faults_of_thirty_seeds(number, folder):
    simulate(Options.drawn(FIRST_SEED + number), folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "ranks", "part"),
    [(kind, ranks, part) for kind, ranks in SWEEPS for part in range(1, PARTS + 1)],
)
def test_a_training_survives_a_fault_at_each_call(kind, ranks, part, folder):
    """Complete where seeds sample: the first call that changes a file fails, then the second, …;
    on two machines. Of three ranks the last one is often left with what it has received. "start":
    rank 0 of a resumed job dies. Each part has every fifth call, until there are no more."""
    machine = -(-ranks // 2)
    for number in itertools.count(part, PARTS):
        options = Options(
            seed=7, ranks=ranks, per_machine=machine, garbage=True, nth=(kind, number), **SMALL
        )
        history = simulate(options, folder / str(number))
        if not any(happened["nth"] for _, happened in history):
            break
    assert number > 60


def test_the_same_seed_is_the_same_simulation(folder):
    options = Options.drawn(7)
    assert simulate(options, folder / "a") == simulate(options, folder / "b")
