"""World without MPI, under the wrong launcher, and the cores that a rank is given."""

import json
import os
import sys

import pytest
from harness.jobs import launch, run
from harness.mpi import ROOT

JOIN = """
import json, sys
from distributed.world import World
with World.join(device=None, program="prog") as world:
    assert "tensorflow" not in sys.modules, "TensorFlow was imported for a program that computes nothing"
    world.barrier()
    world.agree({"a": 1})
    assert world.broadcast(5) == 5
    assert world.gather(6) == world.all_gather(6) == [6]
    assert world.all_reduce_sum([1.5, 2]).tolist() == [1.5, 2]
    assert world.on_first(max, 1, 2) == world.on_each_machine(max, 1, 2) == 2
    assert "/dev/shm/" not in open("/proc/self/maps").read(), "Open MPI 5 alone would leave a file there"
    print(world.rank, world.size, world.local_rank, world.local_size, world.node, world.num_nodes)
"""


@pytest.fixture(params=["mpi4py missing", "library missing", "no launcher"])
def without_mpi(request, tmp_path):
    """The environment of a process that has no MPI, or MPI and no launcher; and why it is alone."""
    if request.param == "library missing":
        return {"MPI4PY_LIBMPI": str(tmp_path / "libmpi.so")}, "MPI library"
    if request.param == "mpi4py missing":
        (tmp_path / "mpi4py").mkdir()
        (tmp_path / "mpi4py/__init__.py").write_text("raise ImportError('No module named mpi4py')")
        return {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, "mpi4py is not installed"
    return {}, "MPI sees one process"


def test_without_mpi_there_is_one_rank_and_under_a_launcher_of_two_an_error(without_mpi):
    variables, reason = without_mpi
    done = run([sys.executable, "-c", JOIN], **variables)
    assert done.status == 0, done
    assert (done.stdout, done.stderr) == ("0 1 0 1 0 1\n", "")
    refused = run([sys.executable, "-c", JOIN], **variables, OMPI_COMM_WORLD_SIZE="2")
    assert refused.status == 1, refused
    assert refused.stdout == ""
    assert refused.stderr.count("\n") == 1, refused
    assert refused.stderr.startswith("prog: error: OMPI_COMM_WORLD_SIZE=2: ")
    assert reason in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_refused"), [("PMI_SIZE", True), ("SLURM_STEP_NUM_TASKS", True), ("SLURM_NTASKS", False)]
)
def test_other_launchers_and_a_batch_job_without_one(name, is_refused):
    """SLURM_NTASKS is set in the batch script too, which may start one process by itself."""
    done = run([sys.executable, "-c", JOIN], **{name: "4"})
    assert (f"prog: error: {name}=4" in done.stderr) == is_refused, done
    assert done.status == is_refused


CORES = """
import json
from distributed.world import World
with World.join(device=None, program="prog") as world:
    print(json.dumps([world.device.threads, [note for note in world.device.notes if "bound" in note]]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared out")
def test_ranks_share_the_cores_and_one_that_is_bound_to_few_is_told():
    cores = len(os.sched_getaffinity(0))
    shared = run(launch(2, sys.executable, "-c", CORES))
    assert shared.status == 0, shared
    assert [json.loads(line) for line in shared.stdout.splitlines()] == [[cores // 2, []]] * 2
    alone = run(["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-c", CORES]).json()
    assert alone[0] == 1
    assert "--bind-to none" in alone[1][0]
