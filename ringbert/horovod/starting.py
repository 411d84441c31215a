"""The start of a script's ranks."""

from typing import Any

from ringbert.horovod.process_sets import add_process_set
from ringbert.horovod.session import start
from ringbert.horovod.training import patch_keras


def init(comm=None, process_sets: Any = None) -> None:
    """Joins the other ranks. Call it first: before TensorFlow computes anything.

    TensorFlow then uses this rank's GPU, or its share of the machine's cores, and no others. The
    environment variable RINGBERT_BACKEND chooses what sums: "mpi", "nccl", "ring" or "auto", which
    is NCCL where each rank has its own GPU, else MPI. `comm` is an mpi4py communicator of the
    processes to join, instead of all. `process_sets` are added; "dynamic", that they can be added
    later, is always so.
    """
    patch_keras()
    start(comm)
    for process_set in () if isinstance(process_sets, str) else process_sets or ():
        add_process_set(process_set)
