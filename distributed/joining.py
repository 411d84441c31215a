"""Joins MPI and finds this process's rank and machine."""

import math
import os
import signal
import sys
import time
from typing import Any

from distributed import launcher
from distributed.launcher import RANK_VARIABLES

TRANSPORTS = "OMPI_MCA_btl"  # Open MPI's, by its names
START_TIMEOUT_S = 600.0  # for all ranks to join, from the first one that waits for the others
POLL_S = (0.0005, 0.02)  # shortest and longest sleep of a waiting rank


def communicator() -> tuple[Any, str]:
    """MPI's communicator of all ranks, or None and the reason why there is only one process."""
    try:
        comm = started().COMM_WORLD
    except ImportError as error:
        return None, f"mpi4py is not installed ({error})"
    except RuntimeError as error:
        return None, f"no MPI library was found ({str(error).splitlines()[0]})"
    return (comm if comm.size > 1 else None), "MPI sees one process"


def started() -> Any:
    """The module mpi4py.MPI, whose first import starts MPI and waits for all ranks.

    SIGALRM ends a rank that waits too long for others. Raises ImportError without mpi4py, RuntimeError without an
    MPI library.
    """
    if "mpi4py.MPI" in sys.modules:
        return sys.modules["mpi4py.MPI"]
    is_alone = not any(os.environ.get(name) for name in (*RANK_VARIABLES, TRANSPORTS))
    if is_alone:  # Open MPI 5 would leave a file of 16 MiB in /dev/shm for other ranks, which never come
        os.environ[TRANSPORTS] = "self"
    else:
        signal.alarm(math.ceil(float(os.environ.get(launcher.START_TIMEOUT, START_TIMEOUT_S))))
    try:
        from mpi4py import MPI
    finally:
        if is_alone:
            del os.environ[TRANSPORTS]
        else:
            signal.alarm(0)
    return MPI


def place_in(comm: Any) -> dict[str, Any]:
    """This process's rank, size, local rank and size, node and number of nodes, by their names in `World`."""
    MPI = started()
    local = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    first = MPI.Group.Translate_ranks(local.group, [0], comm.group)[0]  # no message: a death would block it
    nodes = sorted(set(comm.allgather(first)))
    place = {"rank": comm.rank, "size": comm.size, "local_rank": local.rank, "local_size": local.size}
    return place | {"node": nodes.index(first), "num_nodes": len(nodes)}


def wait_for(request: Any) -> None:
    """Waits for the end of a request without keeping a core busy."""
    pause = POLL_S[0]
    while not request.Test():
        time.sleep(pause)
        pause = min(2 * pause, POLL_S[1])
