"""Decisions of World that are pure functions, and joining without MPI or under the wrong launcher."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mpi import ENVIRONMENT, ROOT

from distributed.devices import choose_gpu, share_cores
from distributed.environment import SIZE_VARIABLES, check_launcher
from ringbert.errors import InputError, one_line

# -- one GPU per rank ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uuids_of_ranks", "chosen"),
    [
        ([["a"]], [0]),
        ([["a", "b", "c", "d"]] * 2, [0, 1]),
        ([["a", "b"]] * 2, [0, 1]),
        # Slurm's --gpus-per-task=1: each rank sees one GPU, its own, numbered 0.
        ([["a"], ["b"], ["c"]], [0, 0, 0]),
        ([["a", "b"], ["c", "d"]], [0, 0]),
        # Several lists of some of the same GPUs: by UUID, whatever the order.
        ([["a", "b"], ["b", "a"]], [0, 0]),
        ([["a", "b", "c"], ["c", "a", "b"], ["b", "c", "a"]], [0, 0, 0]),
        ([["a", "b"], ["b", "c"]], [0, 0]),
        ([["a", "b"], ["a", "c"], ["a"]], [1, 1, 0]),
        ([["a", "b"], ["a"]], [1, 0]),
    ],
)
def test_each_rank_gets_a_gpu_of_its_own(uuids_of_ranks: list[list[str]], chosen: list[int]) -> None:
    indices = [choose_gpu(uuids_of_ranks, rank) for rank in range(len(uuids_of_ranks))]
    assert indices == chosen
    gpus = [uuids[index] for uuids, index in zip(uuids_of_ranks, indices, strict=True)]
    assert len(set(gpus)) == len(gpus)


@pytest.mark.parametrize(
    ("uuids_of_ranks", "words"),
    [
        ([["a"]] * 2, r"2 ranks on this machine .* see 1 GPU \(rank by rank 1, 1\).*--share_gpus"),
        ([["a", "b"]] * 3, r"3 ranks on this machine .* see 2 GPUs \(rank by rank 2, 2, 2\)"),
        ([["a"], ["a"], ["b", "c"]], r"see 3 GPUs \(rank by rank 1, 1, 2\)"),
        ([["a"], []], r"see 1 GPU \(rank by rank 1, 0\)"),
        ([[], []], "see 0 GPUs"),
    ],
)
def test_ranks_do_not_share_a_gpu_unasked(uuids_of_ranks: list[list[str]], words: str) -> None:
    for rank in range(len(uuids_of_ranks)):  # on every rank, not on the unlucky one alone
        with pytest.raises(InputError, match=words):
            choose_gpu(uuids_of_ranks, rank)


def test_ranks_that_share_gpus_are_spread_over_them() -> None:
    assert [choose_gpu([["a", "b"]] * 5, rank, share_gpus=True) for rank in range(5)] == [0, 1, 0, 1, 0]
    assert [choose_gpu([["a"]] * 2, rank, share_gpus=True) for rank in range(2)] == [0, 0]
    with pytest.raises(InputError, match="see 0 GPUs"):
        choose_gpu([[], []], 0, share_gpus=True)


# -- cores --------------------------------------------------------------------------------------------------------


def cores(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


@pytest.mark.parametrize(
    ("masks", "machine_cores", "threads"),
    [
        ([cores(*range(8))], 8, 8),
        ([cores(*range(8))] * 2, 8, 4),
        ([cores(*range(8))] * 3, 8, 2),
        ([cores(0, 1)] * 4, 2, 1),  # more ranks than cores
        ([cores(0, 1, 2, 3), cores(4, 5, 6, 7)], 8, 4),  # bound to a socket each
    ],
)
def test_cores_are_shared_out_among_the_ranks_that_use_them(masks: list, machine_cores: int, threads: int) -> None:
    for rank in range(len(masks)):
        assert share_cores(masks, rank, machine_cores) == (threads, None)


@pytest.mark.parametrize(
    ("masks", "threads"),
    [
        ([cores(0), cores(1)], 1),  # Open MPI's default for two ranks
        ([cores(0)] * 2, 1),
        ([cores(0, 1)], 2),
    ],
)
def test_ranks_that_are_bound_too_narrowly_are_told(masks: list, threads: int) -> None:
    num_threads, note = share_cores(masks, 0, machine_cores=8)
    assert num_threads == threads
    assert note is not None
    assert f"bound to {len(masks[0])} of 8 cores" in note
    assert "--bind-to none" in note


# -- launchers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIZE_VARIABLES)
def test_a_launcher_of_another_mpi_is_noticed(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}=4: the launcher started 4 processes, .*: MPI sees one process"):
        check_launcher(1, "MPI sees one process", {name: "4"})
    for size, environ in ((4, {name: "4"}), (1, {name: "1"}), (1, {name: ""}), (1, {"SLURM_NTASKS": "4"})):
        check_launcher(size, "", environ)


JOIN = """
import sys
from distributed.world import World
with World.join(device=None, program="prog") as world:
    assert "tensorflow" not in sys.modules, "TensorFlow was imported for a program that computes nothing"
    world.barrier()
    world.agree({"a": 1})
    assert world.broadcast(5) == 5
    assert world.gather(6) == world.all_gather(6) == [6]
    assert world.all_reduce_sum([1.5, 2]).tolist() == [1.5, 2]
    assert world.on_first(max, 1, 2) == world.on_each_machine(max, 1, 2) == 2
    print(world.rank, world.size, world.local_rank, world.local_size, world.node, world.num_nodes)
"""


def join(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", JOIN],
        env={**os.environ, **ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(params=["mpi4py missing", "library missing", "no launcher"])
def without_mpi(request, tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has no MPI, or MPI and no launcher."""
    if request.param == "library missing":
        return {"MPI4PY_LIBMPI": str(tmp_path / "libmpi.so")}
    if request.param == "mpi4py missing":
        (tmp_path / "mpi4py").mkdir()
        (tmp_path / "mpi4py/__init__.py").write_text("raise ImportError('No module named mpi4py')")
        return {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    return {}


def test_without_mpi_there_is_one_rank(without_mpi: dict[str, str]) -> None:
    done = join(**without_mpi)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "1", "0", "1", "0", "1"]
    assert done.stderr == ""


def test_without_mpi_a_launcher_of_two_is_refused_in_one_line(without_mpi: dict[str, str]) -> None:
    done = join(**without_mpi, OMPI_COMM_WORLD_SIZE="2")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("prog: error: OMPI_COMM_WORLD_SIZE=2: the launcher started 2 processes")
    if "PYTHONPATH" in without_mpi:
        assert "mpi4py is not installed" in done.stderr
    elif without_mpi:
        assert "no MPI library was found" in done.stderr
    else:
        assert "MPI sees one process" in done.stderr


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InputError("--train_file x: broken\n  at line 3"), "--train_file x: broken at line 3"),
        (FileNotFoundError(2, "No such file or directory", "data.json"), "data.json: No such file or directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("the reason\nin words"), "the reason in words"),
        (KeyError(), "KeyError"),
    ],
)
def test_an_error_of_the_users_is_one_line(error: BaseException, line: str) -> None:
    assert one_line(error) == line


def test_a_process_without_a_launcher_leaves_no_shared_memory() -> None:
    """Open MPI 5 alone makes a segment in /dev/shm and forgets it; here it is not even mapped."""
    script = "from distributed.joining import communicator; communicator(); print(open('/proc/self/maps').read())"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI", "PMI"))}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment | ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "/mpi4py/" in done.stdout
    assert "/dev/shm/" not in done.stdout
