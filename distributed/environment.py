"""The variables that launchers set for the processes that they start; read before MPI starts."""

import os
from collections.abc import Mapping

from ringbase.errors import InputError

# Variables that launchers set only in the processes that they start.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def launched_rank(environment: Mapping[str, str] = os.environ) -> str:
    """This process's rank according to the launcher's variables; "0" without a launcher."""
    for name in RANK_VARIABLES:
        if environment.get(name):
            return environment[name]
    # A plain sbatch shell has SLURM_PROCID too, but only a step of several tasks is a launch.
    if environment.get("SLURM_STEP_NUM_TASKS", "1") not in ("", "1"):
        return environment.get("SLURM_PROCID", "0")
    return "0"


def launched_size(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """The variable by which a launcher says that it started several processes, and their number; else "" and 1."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        size = environment.get(name, "")
        if size.isdigit() and int(size) > 1:
            return name, int(size)
    return "", 1


def check_launcher(size: int, why_alone: str) -> None:
    """Raises InputError if a launcher started several processes but MPI sees one (`size`), because of
    `why_alone`."""
    name, launched = launched_size()
    if launched > 1 and size == 1:
        raise InputError(
            f"{name}={launched}: the launcher started {launched} processes, but each is alone: {why_alone}; use "
            "the mpirun that belongs to mpi4py's MPI library (bert-launch finds it), or srun --mpi=pmix"
        )
