"""A wrong use of hvd in a graph ends the job with one line over all ranks; names without a counterpart say so."""

import re

import pytest
from harness.jobs import launch, program, run

import ringbert.horovod as hvd
import ringbert.horovod.tensorflow.keras  # noqa: F401  (a submodule of hvd)
from ringbase.errors import InputError

CASES = {
    "broadcast": r"BroadcastGlobalVariablesCallback",
    "jit": r"jit_compile=True needs NCCL",
    "early": r"rank 0: the end of the script.*rank 1: hvd.allreduce",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_wrong_use_in_a_graph_is_one_line(case):
    done = run(launch(2, *program("horovod_use.py", case)))
    assert done.status == 1, str(done)
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    assert line.startswith("horovod_use.py: error: ")
    assert re.search(CASES[case], line), line
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_script_trains_alone_without_a_launcher():
    assert run(program("horovod_use.py", "broadcast")).status == 0


@pytest.mark.slow
def test_the_ring_sums_gradients():
    done = run(launch(2, *program("horovod_use.py", "right")), RINGBERT_BACKEND="ring")
    assert done.status == 0, str(done)


@pytest.mark.parametrize("name", " ".join(hvd.ABSENT).split())
def test_what_has_no_counterpart_says_so(name):
    with pytest.raises(InputError, match=rf"hvd\.{name} has no counterpart"):
        getattr(hvd.tensorflow.keras, name)
