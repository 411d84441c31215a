"""Scripts of every shape that Horovod's examples have, with one changed line, compared with Horovod's own numbers.

tests/horovod holds the scripts. tests/goldens/horovod.json holds what they print under Horovod 0.28.1 and
TensorFlow 2.12.1 on 2 ranks, in an environment with `pip install horovod==0.28.1`:

    cd tests/horovod && mpirun -np 2 python run_scripts.py horovod SCRIPT.py …
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi import PROGRAMS, ROOT, mpirun

SCRIPTS = ROOT / "tests" / "horovod"
RUNNER = Path("..") / "horovod" / "run_scripts.py"
GOLDENS = json.loads((ROOT / "tests" / "goldens" / "horovod.json").read_text())
# One launch each: scripts of one launch share a process.
LAUNCHES = (
    ("fit", "loop", "synthetic_fit", "synthetic_loop", "epochs", "advanced", "resume", "text_lstm"),
    ("by_hand", "uneven", "accumulation", "options", "word2vec", "partial", "sync_batch_norm", "train_step"),
    ("mixed_precision",),
    ("elastic_fit", "elastic_loop"),
)
# float32 sums in other orders and other kernels, over up to 20 steps; 16-bit messages round each gradient.
TOLERANCE, HALF_TOLERANCE = 2e-4, 5e-3
HALVES = {"fp16", "synthetic_loop"}


@pytest.fixture(scope="module")
def reported() -> Callable[[str], Any]:
    """Name of a script -> the numbers that it reports on 2 ranks."""
    known: dict[str, Any] = {}

    def report(name: str) -> Any:
        if name not in known:
            (together,) = [names for names in LAUNCHES if name in names]
            scripts = [f"{script}.py" for script in together]
            known.update(mpirun(2, str(RUNNER), "ringbert.horovod", *scripts, timeout=280).json())
        return known[name]

    return report


def test_all_scripts_are_launched_and_known() -> None:
    scripts = {path.stem for path in SCRIPTS.glob("*.py")} - {"run_scripts", "synthetic"}
    assert scripts == {name for names in LAUNCHES for name in names} == set(GOLDENS)
    assert (PROGRAMS / RUNNER).is_file()


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_one_line_names_horovod(name: str) -> None:
    lines = [line for line in (SCRIPTS / f"{name}.py").read_text().splitlines() if "import horovod" in line]
    assert len(lines) == 1
    assert re.fullmatch(r"import horovod(\.\w+)+ as hvd", lines[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_a_script_gives_horovods_numbers(reported: Callable[[str], Any], name: str) -> None:
    assert_close(reported(name), GOLDENS[name], name)


def assert_close(ours: Any, theirs: Any, place: str) -> None:
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), place
        for key, value in theirs.items():
            assert_close(ours[key], value, f"{place}/{key}")
        return
    if isinstance(theirs, list) and theirs and isinstance(theirs[0], dict):
        for number, (own, value) in enumerate(zip(ours, theirs, strict=True)):
            assert_close(own, value, f"{place}/{number}")
        return
    tolerance = HALF_TOLERANCE if HALVES & set(place.split("/")) else TOLERANCE
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=place)
