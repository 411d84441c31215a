"""Scripts of every shape that Horovod's examples have, with one changed line, compared with Horovod's own numbers.

tests/horovod holds the scripts. tests/goldens/horovod.json holds what they print under Horovod 0.28.1 and
TensorFlow 2.12.1 on 2 ranks, in an environment with `pip install horovod==0.28.1`:

    cd tests/horovod && mpirun -np 2 python run_scripts.py horovod SCRIPT.py …
"""

import json
import sys
from typing import Any

import numpy as np
import pytest
from harness.mpi import ROOT

SCRIPTS = ROOT / "tests" / "horovod"
GOLDENS = json.loads((ROOT / "tests" / "goldens" / "horovod.json").read_text())
# float32 sums in other orders and other kernels, over up to 20 steps; 16-bit messages round each gradient.
TOLERANCE, HALF_TOLERANCE = 2e-4, 5e-3
HALVES = {"fp16"}
NAMES = sorted(GOLDENS)
pytestmark = pytest.mark.filterwarnings("ignore")  # the scripts are as their authors wrote them


def assert_close(ours: Any, theirs: Any, place: str) -> None:
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), place
        for key, value in theirs.items():
            assert_close(ours[key], value, f"{place}/{key}")
    elif isinstance(theirs, list) and theirs and isinstance(theirs[0], dict):
        for number, (own, value) in enumerate(zip(ours, theirs, strict=True)):
            assert_close(own, value, f"{place}/{number}")
    else:
        tolerance = HALF_TOLERANCE if HALVES & set(place.split("/")) else TOLERANCE
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=place)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_gives_horovods_numbers(name, hvd, monkeypatch):
    import keras

    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.chdir(SCRIPTS)
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    import run_scripts
    from synthetic import REPORTS

    policy, path = keras.config.dtype_policy(), SCRIPTS / f"{name}.py"
    try:
        exec(
            compile(run_scripts.changed(path.name, "ringbert.horovod"), str(path), "exec"),
            {"__name__": "__main__"},
        )
    finally:
        keras.config.set_dtype_policy(policy)
        keras.backend.clear_session()
    if hvd.rank() == 0:
        assert_close(REPORTS[name], GOLDENS[name], name)
