"""One contract for every file of distributed/collectives, and World's messages, on 1, 2 and 3 ranks."""

from mpi import ROOT, alone, mpirun

from distributed.collectives import BACKENDS


def test_each_backend_is_a_file_and_each_file_a_backend() -> None:
    files = {path.stem for path in (ROOT / "distributed" / "collectives").glob("*.py")} - {"__init__"}
    assert files == set(BACKENDS)


def test_one_rank() -> None:
    assert alone("collectives.py", "local").json() == {"size": 1, "checks": 6}


def test_two_ranks() -> None:
    assert mpirun(2, "collectives.py", "mpi").json() == {"size": 2, "checks": 6}


def test_three_ranks() -> None:
    assert mpirun(3, "collectives.py", "mpi").json() == {"size": 3, "checks": 6}
