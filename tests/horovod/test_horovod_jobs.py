"""A wrong use of hvd in a graph ends the job with one line over all ranks; names without a
counterpart say so."""

import re

import pytest
from harness.jobs import launch, program, run

import ringbert.horovod as hvd
import ringbert.horovod.tensorflow.keras  # noqa: F401  (a submodule of hvd)
from ringbase.errors import InputError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "num_ranks", "backend", "named"),
    [
        ("right", 1, "auto", None),  # without a launcher
        ("right", 2, "ring", None),
        ("jit", 2, "auto", "jit_compile=True needs NCCL"),
        ("early", 2, "auto", r"rank 0: the end of the script.*rank 1: hvd\.allreduce"),
    ],
)
def test_a_script_trains_and_a_wrong_use_in_a_graph_is_one_line(case, num_ranks, backend, named):
    done = run(launch(num_ranks, *program("horovod_use.py", case)), RINGBERT_BACKEND=backend)
    assert (done.status, "Traceback" in done.stderr) == (int(named is not None), False), str(done)
    if named:
        (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
        assert re.match(rf"horovod_use\.py: error: .*{named}", line), line


@pytest.mark.parametrize("name", " ".join(hvd.ABSENT).split())
def test_what_has_no_counterpart_says_so(name):
    with pytest.raises(InputError, match=rf"hvd\.{name} has no counterpart"):
        getattr(hvd.tensorflow.keras, name)
