"""Joins MPI and finds this process's rank and machine."""

import os
import signal
import sys
from typing import Any

from distributed.launcher import RANK_VARIABLES, START_TIMEOUT, launched_size

START_TIMEOUT_S = 600  # for all ranks to join, from the first one that waits for the others


def communicator() -> tuple[Any, str]:
    """MPI's communicator of all ranks, or None for one process, and an error if a launcher started
    several. Without a launcher MPI is not started."""
    setting, size = launched_size()
    if size == 1 and not any(map(os.environ.get, RANK_VARIABLES)):
        return None, ""
    reason = "MPI sees one process"
    try:
        comm = started().COMM_WORLD
        if comm.size > 1:
            return comm, ""
    except (ImportError, RuntimeError) as error:
        reason = f"mpi4py cannot be used ({str(error).splitlines()[0]})"
    if size == 1:
        return None, ""
    advice = (
        "use the mpirun that belongs to mpi4py's MPI library (bert-launch finds it), or srun"
        " --mpi=pmix"
    )
    fault = "the launcher started several processes, but each is alone"
    return None, f"{setting}: {fault}: {reason}; {advice}"


def started():
    """The module mpi4py.MPI, whose first import starts MPI and waits for all ranks.

    SIGALRM ends a rank that waits too long for others. Raises ImportError without mpi4py,
    RuntimeError without an MPI library.
    """
    if "mpi4py.MPI" in sys.modules:
        return sys.modules["mpi4py.MPI"]
    signal.alarm(int(os.environ.get(START_TIMEOUT, START_TIMEOUT_S)))
    try:
        from mpi4py import MPI
    finally:
        signal.alarm(0)
    return MPI


def place_in(comm) -> dict[str, Any]:
    """This process's rank, size, local rank and size, node and number of nodes, by their names in
    `World`."""
    MPI = started()
    local = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    # no message: a death would block it
    (first,) = MPI.Group.Translate_ranks(local.group, [0], comm.group)
    firsts = comm.allgather(first)
    nodes = sorted(set(firsts))
    return {
        "rank": comm.rank,
        "size": comm.size,
        "local_rank": local.rank,
        "local_size": local.size,
        "node": nodes.index(first),
        "num_nodes": len(nodes),
    }
