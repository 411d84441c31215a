"""`ringbert.horovod`: several ranks against one, and against Keras without it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hosts import available, two_hosts
from mpi import ENVIRONMENT, PROGRAMS, alone, mpirun

# Sums over ranks round in another order; twelve digits of float64 are more than that changes in ten steps.
TOLERANCE = {"rtol": 1e-12, "atol": 1e-14}


@pytest.fixture(scope="module")
def of_one_rank() -> dict:
    return alone("horovod_fit.py").json()


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "backend"), [(3, "mpi"), (2, "ring")])
def test_ranks_end_with_the_weights_of_one(of_one_rank: dict, num_ranks: int, backend: str) -> None:
    """With the ring as with NCCL, sums are operations of the graph, in buckets."""
    of_many = mpirun(num_ranks, "horovod_fit.py", env={"RINGBERT_BACKEND": backend}, timeout=200).json()
    check_equal(of_many, of_one_rank)


@pytest.mark.slow
@pytest.mark.skipif(available() is not None, reason=available() or "")
@pytest.mark.parametrize("backend", ["mpi", "ring"])
def test_ranks_of_two_hosts_end_with_the_weights_of_one(of_one_rank: dict, backend: str) -> None:
    program = [sys.executable, str(PROGRAMS / "horovod_fit.py")]
    with two_hosts() as hosts:
        done = hosts.mpirun(1, program, timeout=250, env=ENVIRONMENT | {"RINGBERT_BACKEND": backend})
    assert done.returncode == 0, done.stdout + done.stderr
    check_equal(json.loads(done.stdout.splitlines()[-1]), of_one_rank)


def check_equal(of_many: dict, of_one: dict) -> None:
    assert of_one.keys() == of_many.keys()
    for name, expected in of_one.items():
        np.testing.assert_allclose(of_many[name]["weights"], expected["weights"], err_msg=name, **TOLERANCE)
        assert np.ptp(expected["weights"]) > 0
        if "losses" in expected and "uneven" not in name:
            np.testing.assert_allclose(of_many[name]["losses"], expected["losses"], err_msg=name, **TOLERANCE)
    scales = of_many["scaled loss"]["scale"], of_one["scaled loss"]["scale"]
    assert scales == ([2.0**14], [2.0**14])  # one overflow halves it


PLAIN = """
import json, sys
import keras
model = keras.models.load_model(sys.argv[1])
moments = [float(abs(variable.numpy()).sum()) for variable in model.optimizer.variables]
kind = f"{type(model.optimizer).__module__}.{type(model.optimizer).__qualname__}"
steps = int(model.optimizer.iterations)
model.fit(keras.ops.ones([1, 5]), keras.ops.ones([1, 1]), verbose=0)
assert "ringbert" not in sys.modules
print(json.dumps([kind, steps, int(model.optimizer.iterations), moments]))
"""


@pytest.mark.slow
def test_plain_keras_loads_what_was_saved_and_hvd_trains_on(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    saved = mpirun(2, "horovod_saved.py", path).json()
    plain = subprocess.run(
        [sys.executable, "-c", PLAIN, str(path)],
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert plain.returncode == 0, plain.stderr
    kind, steps, steps_after, moments = json.loads(plain.stdout.splitlines()[-1])
    assert (kind, steps, steps_after) == ("keras.src.optimizers.adam.Adam", 4, 5)
    assert moments == saved["moments"]
    assert min(moments) > 0
    assert mpirun(2, "horovod_saved.py", path, "load").json()["steps"] == [4, 8]


@pytest.mark.parametrize("first_to_end", [0, 1])
@pytest.mark.slow
def test_a_rank_that_ends_early_is_named(first_to_end: int) -> None:
    done = mpirun(2, "horovod_early.py", first_to_end, timeout=60)
    assert done.status != 0
    (line,) = [line for line in done.stderr.splitlines() if "error:" in line]
    assert f"rank {first_to_end}: the end of the script" in line
    assert f"rank {1 - first_to_end}: hvd.allreduce" in line
