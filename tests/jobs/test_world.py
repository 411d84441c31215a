"""World without MPI, under the wrong launcher, and the cores that a rank is given."""

import os
import sys
from pathlib import Path

import pytest
from harness.jobs import launch, run
from harness.mpi import ROOT

JOIN = """
import json, sys
from distributed.world import World
with World.join(device=None, program="prog") as world:
    assert "tensorflow" not in sys.modules, "TensorFlow for a program that computes nothing"
    world.barrier()
    if world.size == 1:
        assert "/dev/shm/" not in open("/proc/self/maps").read(), "a file of Open MPI"
    bound = [note for note in world.device.notes if "cores" in note]
    sizes = [world.rank, world.size, world.local_rank, world.ranks.local_size]
    place = [*sizes, world.node, world.ranks.num_nodes]
    places = world.gather(place)
    if world.rank == 0:
        print(json.dumps({"places": places, "threads": world.device.threads, "bound": bound}))
"""


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"PYTHONPATH": f"FOLDER:{ROOT}"}, "mpi4py is not installed"),
        ({"MPI4PY_LIBMPI": "FOLDER/libmpi.so"}, "MPI library"),
        ({}, "MPI sees one process"),
    ],
)
def test_without_mpi_there_is_one_rank_and_under_a_launcher_of_two_an_error(
    tmp_path, variables, reason
):
    (tmp_path / "mpi4py.py").write_text("raise ImportError('No module named mpi4py')")
    variables = {name: value.replace("FOLDER", str(tmp_path)) for name, value in variables.items()}
    done = run([sys.executable, "-c", JOIN], **variables)
    assert done.json()["places"] == [[0, 1, 0, 1, 0, 1]]
    assert done.stderr == ""
    refused = run([sys.executable, "-c", JOIN], **variables, OMPI_COMM_WORLD_SIZE="2")
    assert (refused.status, refused.stdout, refused.stderr.count("\n")) == (1, "", 1), refused
    assert refused.stderr.startswith("prog: error: OMPI_COMM_WORLD_SIZE=2: ")
    assert reason in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "is_refused"),
    [
        ("PMI_SIZE=4", True),
        ("SLURM_STEP_NUM_TASKS=4", True),
        ("SLURM_STEP_NUM_TASKS=4 SLURM_PTY_PORT=40000", False),  # srun --pty bash
        ("MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_RANK=0", True),
        ("JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_RANK=0", True),
        ("FLUX_JOB_SIZE=4 FLUX_TASK_RANK=0", True),
        ("PALS_RANKID=1", True),
        ("ALPS_APP_PE=1", True),
        ("SLURM_NTASKS=4", False),
    ],
)
def test_other_launchers_and_a_batch_job_without_one(variables, is_refused):
    """SLURM_NTASKS is set in the batch script too, which may start one process by itself."""
    settings = dict(setting.split("=") for setting in variables.split())
    done = run([sys.executable, "-c", JOIN], **settings)
    assert (f"prog: error: {variables.split()[0]}: " in done.stderr) == is_refused, done
    assert done.status == is_refused


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared out")
def test_ranks_share_the_cores_and_one_that_is_bound_to_few_is_told():
    shared = run(launch(2, sys.executable, "-c", JOIN)).json()
    assert shared["places"] == [[0, 2, 0, 2, 0, 1], [1, 2, 1, 2, 0, 1]]
    assert (shared["threads"], shared["bound"]) == (len(os.sched_getaffinity(0)) // 2, [])
    alone = run(
        ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-c", JOIN]
    ).json()
    assert alone["threads"] == len(alone["bound"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("site", ["OMPI_MCA_pml=ucx", "OMPI_MCA_btl=openib", "OMPI_MCA_mtl=psm2"])
def test_one_process_starts_whatever_a_site_has_chosen_for_its_own_mpi(site):
    name, value = site.split("=")
    alone = run([sys.executable, "-c", JOIN], **{name: value})
    assert (alone.status, alone.stderr) == (0, ""), alone
    assert alone.json()["places"] == [[0, 1, 0, 1, 0, 1]]


@pytest.mark.slow
def test_the_user_says_how_many_threads():
    for value, threads in ("3", 3), ("5,2", 5):
        assert run([sys.executable, "-c", JOIN], OMP_NUM_THREADS=value).json()["threads"] == threads
    for value, threads in ("1", 1), ("64", len(os.sched_getaffinity(0))):
        of_slurm = run([sys.executable, "-c", JOIN], SLURM_CPUS_PER_TASK=value).json()
        assert of_slurm["threads"] == threads


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is no limit")
def test_a_quota_of_a_control_group_is_shared_by_its_ranks():
    """docker --cpus, Kubernetes' limits.cpu: the affinity mask does not show it."""
    root, name = Path("/sys/fs/cgroup"), f"ringbert-test-{os.getpid()}"
    is_new = (root / "cgroup.controllers").is_file()
    group = (root if is_new else root / "cpu") / name
    limit = {"cpu.max": "100000 100000"} if is_new else {"cpu.cfs_quota_us": "100000"}
    try:
        group.mkdir()
        for file, text in limit.items():
            (group / file).write_text(text)
    except OSError as error:
        pytest.skip(f"no control group of its own here ({error})")
    enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    try:
        alone = run([*enter, sys.executable, "-c", JOIN]).json()
    finally:
        group.rmdir()
    assert alone["threads"] == 1
    (note,) = alone["bound"]
    assert f"{group}) limits its processes to 1 cores" in note
