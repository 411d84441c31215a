"""Joins MPI."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from distributed import network
from distributed.launcher import RANK_VARIABLES, START_TIMEOUT, launched_size

DEBIANS_MPICH = "libmpich.so.12"
BUILD_MPI4PY = (
    "build mpi4py for it: pip install --no-binary mpi4py --force-reinstall --no-deps mpi4py (needs"
    " gcc and Debian's libmpich-dev)"
)
START_TIMEOUT_S = 600  # for all ranks to join, from the first one that waits for the others


def communicator() -> tuple[Any, str]:
    """MPI's communicator of all ranks, or None for one process, and an error if a launcher started
    several."""
    reason = "MPI sees one process"
    advice = (
        "use the mpirun that belongs to mpi4py's MPI library (bert-launch finds it), or srun"
        " --mpi=pmix"
    )
    try:
        comm = started().COMM_WORLD
        if comm.size > 1:
            return comm, ""
    except (ImportError, RuntimeError) as error:
        reason, own_advice = what_is_missing(error)
        advice = own_advice or advice
    setting, size = launched_size()
    if size == 1:
        return None, ""
    fault = "the launcher started several processes, but each is alone"
    return None, f"{setting}: {fault}: {reason}; {advice}"


def what_is_missing(error: ImportError | RuntimeError) -> tuple[str, str]:
    """Why mpi4py.MPI cannot be imported, and what helps; "" if that is not known."""
    first_line = str(error).partition("\n")[0]
    if isinstance(error, ImportError) and ".so" not in first_line:
        return f"mpi4py is not installed ({first_line})", ""
    reason = f"no MPI library was found for mpi4py ({first_line})"
    # Debian's and Ubuntu's MPICH has its library under another name than mpi4py's wheels look for.
    with contextlib.suppress(OSError):
        ctypes.CDLL(DEBIANS_MPICH)
        return f"{reason}; there is {DEBIANS_MPICH}", BUILD_MPI4PY
    return reason, ""


def started():
    """The module mpi4py.MPI, whose first import starts MPI and waits for all ranks.

    SIGALRM ends a rank that waits too long for others. Raises ImportError without mpi4py,
    RuntimeError without an MPI library.
    """
    if "mpi4py.MPI" in sys.modules:
        return sys.modules["mpi4py.MPI"]
    is_alone = not any(map(os.environ.get, RANK_VARIABLES))
    if not is_alone:
        network.tell_mpi()
    with alone() if is_alone else starting():
        from mpi4py import MPI
    return MPI


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A `with` block in which Open MPI starts for one process. What a site says of its own Open MPI
    does not keep this one from starting, which may lack what is named there; and Open MPI 5 leaves
    no file of 16 MiB in /dev/shm for other ranks, which never come."""
    site = {name: os.environ.pop(name) for name in network.OF_A_SITE if name in os.environ}
    btl, *_ = network.OF_A_SITE
    os.environ[btl] = "self"
    try:
        yield
    finally:
        del os.environ[btl]
        os.environ.update(site)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """A `with` block in which this rank waits for others that the watchdog does not watch yet:
    SIGALRM ends it when that takes longer than --start-timeout."""
    signal.alarm(int(os.environ.get(START_TIMEOUT, START_TIMEOUT_S)))
    try:
        yield
    finally:
        signal.alarm(0)
