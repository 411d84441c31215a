"""Scripts of every shape that Horovod's examples have, with one changed line, compared with
Horovod's own numbers; and our examples, with fewer epochs (tests/soak/install runs them all as
their README says).

tests/horovod holds the scripts. tests/goldens/horovod.json holds what they print under Horovod
0.28.1 and TensorFlow 2.12.1, in an environment with `pip install horovod==0.28.1`: `mpirun -np 2
python SCRIPT.py`.
"""

import re
import runpy
import sys

import keras
import numpy as np
import pytest
from harness.mpi import ROOT

from ringbase.files import read_json

pytestmark = pytest.mark.filterwarnings("ignore")  # the scripts are as their authors wrote them
SCRIPTS = ROOT / "tests" / "horovod"
GOLDENS = read_json(ROOT / "tests" / "goldens" / "horovod.json")
# float32 sums in other orders and other kernels, over up to 20 steps; 16-bit messages round each
# gradient.
TOLERANCE, HALF_TOLERANCE = 2e-4, 5e-3


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_a_script_gives_horovods_numbers(name, hvd, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    from synthetic import REPORTS

    source = (SCRIPTS / f"{name}.py").read_text()
    assert len(re.findall(r"\nimport horovod.* as hvd\n", source)) == 1
    source = source.replace("\nimport horovod", "\nimport ringbert.horovod")
    exec(compile(source, f"{name}.py", "exec"), {"__name__": "__main__"})
    keras.backend.clear_session()
    if hvd.rank() == 0:
        ours, theirs = (dict(keras.tree.flatten_with_path(of[name])) for of in (REPORTS, GOLDENS))
        assert ours.keys() == theirs.keys()
        for path, number in theirs.items():
            tolerance = HALF_TOLERANCE if "fp16" in path else TOLERANCE
            np.testing.assert_allclose(
                ours[path], number, rtol=tolerance, atol=tolerance, err_msg=str(path)
            )


@pytest.fixture
def numbers_of(hvd, monkeypatch, capsys, tmp_path):
    """Runs an example, and returns the numbers in what rank 0 prints, by a pattern; none on the
    others."""

    def run(pattern, name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.syspath_prepend(ROOT / "examples")
        monkeypatch.chdir(tmp_path)
        keras.backend.clear_session()
        keras.utils.set_random_seed(hvd.rank())  # the ranks start from other weights
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        out = capsys.readouterr().out
        assert bool(out) == (hvd.rank() == 0)
        return [[float(number) for number in match.groups()] for match in re.finditer(pattern, out)]

    return run


@pytest.mark.parametrize("name", ["lenet_loop.py", "lenet_fit.py"])
def test_lenet_learns_digits(name, numbers_of, hvd):
    accuracies = numbers_of(r"([\d.]+)% of (?:360|the test) digits", name, "--epochs=4")
    assert [accuracy > 60 for (accuracy,) in accuracies] == [True] * (hvd.rank() == 0)


def test_metrics_over_unequal_shares_are_those_over_all_digits(numbers_of):
    if rows := numbers_of(r"loss ([\d.]+), accuracy ([\d.]+)", "metrics_by_rank.py", "--epochs=3"):
        first, second, mean_of_means, whole = map(np.array, rows)
        assert whole[1] > 0.7
        np.testing.assert_allclose(whole, (first + 2 * second) / 3, rtol=0, atol=2e-5)
        assert abs(mean_of_means[0] - whole[0]) > 1e-3
