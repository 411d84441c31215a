"""Scripts of every shape that Horovod's examples have, with one changed line, compared with Horovod's own numbers.

tests/horovod holds the scripts. tests/goldens/horovod.json holds what they print under Horovod 0.28.1 and
TensorFlow 2.12.1, in an environment with `pip install horovod==0.28.1`: `mpirun -np 2 python SCRIPT.py`.
"""

import json
import re

import keras
import numpy as np
import pytest
from harness.mpi import ROOT

SCRIPTS = ROOT / "tests" / "horovod"
GOLDENS = json.loads((ROOT / "tests" / "goldens" / "horovod.json").read_text())
# float32 sums in other orders and other kernels, over up to 20 steps; 16-bit messages round each gradient.
TOLERANCE, HALF_TOLERANCE = 2e-4, 5e-3


@pytest.mark.filterwarnings("ignore")  # the scripts are as their authors wrote them
@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_a_script_gives_horovods_numbers(name, hvd, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    from synthetic import REPORTS

    source = (SCRIPTS / f"{name}.py").read_text()
    source, number = re.subn(r"\nimport horovod(.*) as hvd\n", r"\nimport ringbert.horovod\1 as hvd\n", source)
    assert number == 1
    exec(compile(source, f"{name}.py", "exec"), {"__name__": "__main__"})
    keras.backend.clear_session()
    if hvd.rank() == 0:
        ours, theirs = (dict(keras.tree.flatten_with_path(of[name])) for of in (REPORTS, GOLDENS))
        assert ours.keys() == theirs.keys()
        for path, number in theirs.items():
            tolerance = HALF_TOLERANCE if "fp16" in path else TOLERANCE
            np.testing.assert_allclose(ours[path], number, rtol=tolerance, atol=tolerance, err_msg=str(path))
