"""A wrong use of hvd in a graph ends the job with one line over all ranks; names without a counterpart say so."""

import re

import pytest
from harness.jobs import launch, program, run

import ringbert.horovod as hvd
import ringbert.horovod.tensorflow.keras  # noqa: F401  (a submodule of hvd)
from ringbase.errors import InputError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("broadcast", "BroadcastGlobalVariablesCallback"),
        ("jit", "jit_compile=True needs NCCL"),
        ("early", r"rank 0: the end of the script.*rank 1: hvd\.allreduce"),
    ],
)
def test_a_wrong_use_in_a_graph_is_one_line(case, named):
    done = run(launch(2, *program("horovod_use.py", case)))
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    assert re.match(rf"horovod_use\.py: error: .*{named}", line), line
    assert (done.status, "Traceback" in done.stderr) == (1, False), str(done)


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "backend"), [(1, "auto"), (2, "ring")])
def test_a_script_trains_alone_without_a_launcher_and_over_the_ring(num_ranks, backend):
    done = run(launch(num_ranks, *program("horovod_use.py", "right")), RINGBERT_BACKEND=backend)
    assert done.status == 0, str(done)


@pytest.mark.parametrize("name", " ".join(hvd.ABSENT).split())
def test_what_has_no_counterpart_says_so(name):
    with pytest.raises(InputError, match=rf"hvd\.{name} has no counterpart"):
        getattr(hvd.tensorflow.keras, name)
