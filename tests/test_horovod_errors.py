"""Each wrong use of hvd ends the job with one line over all ranks."""

import re

import pytest
from mpi import alone, mpirun

import ringbert.horovod as hvd
import ringbert.horovod.tensorflow.keras  # noqa: F401  (a submodule of hvd)
from ringbert.errors import InputError
from ringbert.horovod.absent import REASONS

# What tests/programs/horovod_errors.py does wrong, and what the one line says.
CASES = {
    "model": r"the ranks do different things: .*\(3, 4\).*\(3, 5\)",
    "optimizer": r"the ranks disagree about the optimizer: rank 0: SGD; rank 1: Adam",
    "data": r"the ranks do different things: .*rank 1: the end of the script",
    "broadcast": r"has different values on the ranks at its second gradient",
    "late": r"the ranks do different things: .*the comparison of the models",
    "jit": r"jit_compile=True needs NCCL",
    "calls": r"the ranks do different things: .*accuracy.*loss",
    "shapes": r"the ranks do different things",
    "join": r"hvd\.broadcast cannot go on without the ranks that have called hvd\.join",
    "adasum": r"hvd\.Adasum has no counterpart",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(CASES))
def test_a_wrong_use_is_one_line(case: str) -> None:
    done = mpirun(2, "horovod_errors.py", case, timeout=120)
    assert done.status == 1, str(done)
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert len(errors) == 1, str(done)
    assert re.match(r"horovod_errors\.py: error: ", errors[0])
    assert re.search(CASES[case], errors[0]), errors[0]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_forgotten_init_is_one_line() -> None:
    done = alone("horovod_errors.py", "init")
    assert done.status == 1, str(done)
    assert [line for line in done.stderr.splitlines() if "hvd.init() must be called first" in line]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_fit_goes_on_without_xla() -> None:
    """Keras warns of it, as for each model that XLA cannot compile."""
    done = mpirun(2, "horovod_errors.py", "jit fit", timeout=120)
    assert "trained with jit_compile=False" in done.stderr, str(done)
    assert "Model doesn't support `jit_compile=True`" in done.stderr


@pytest.mark.parametrize("name", sorted(REASONS))
def test_what_has_no_counterpart_says_so(name: str) -> None:
    for package in (hvd, hvd.tensorflow, hvd.keras, hvd.tensorflow.keras):
        with pytest.raises(InputError, match=rf"hvd\.{name} has no counterpart in RingBERT: "):
            getattr(package, name)
    with pytest.raises(AttributeError):
        _ = hvd.no_such_name
