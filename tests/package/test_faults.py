"""Each fault of tests/soak/faults.toml can be put into today's code; scripts/faults.py does it, and
looks whether the test that it names sees it."""

import sys
import tomllib

import pytest
from harness.mpi import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from faults import source_of

pytestmark = pytest.mark.slow  # a harmless rewrite of the code is no reason to stop at once
FAULTS = tomllib.loads((ROOT / "tests/soak/faults.toml").read_text())["fault"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["behaviour"])
def test_a_fault_has_its_place_in_the_code_and_a_test_that_is_there(fault):
    _, function = source_of(fault["place"], ROOT)
    assert function.count(fault["find"]) == 1
    assert fault["replace"] != fault["find"]
    assert (ROOT / fault["test"].split()[0]).exists()
