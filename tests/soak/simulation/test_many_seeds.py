"""What .ci/run samples, for longer: RINGBERT_SIM_SEED is the first seed."""

import os

import pytest
from harness.simulation.jobs import simulate
from harness.simulation.options import Options

FIRST_SEED = int(os.environ.get("RINGBERT_SIM_SEED", "1000"))


@pytest.mark.parametrize("hundred", range(10))
def test_a_training_survives_the_faults_of_a_thousand_seeds(hundred, tmp_path):
    for seed in range(FIRST_SEED + 100 * hundred, FIRST_SEED + 100 * hundred + 100):
        simulate(Options.drawn(seed), tmp_path / str(seed))


def test_a_thousand_ranks_survive_deaths(tmp_path):
    options = Options(
        seed=FIRST_SEED,
        ranks=1000,
        num_steps=20,
        global_batch_size=1000,
        deaths=20,
        slow=0.0001,
        garbage=True,
    )
    history = simulate(options, tmp_path / "run")
    assert history[-1][0] == 0
    assert sum(happened["death"] for _, happened in history) > 5
