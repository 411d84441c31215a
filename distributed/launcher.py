"""What a process knows of the launcher that started it, and what it tells bert-launch.

Lines in standard error, which never reach the terminal, say how the job ended. mpirun's exit status
does not: with Open MPI's fault tolerance it is 0 when all ranks aborted, and also when a host is
lost.

    joined          rank 0: all ranks have joined MPI
    saved           rank 0: a checkpoint is complete in its place
    ended STATUS    rank 0: the program is complete (0), or has saved and stopped on request (75);
                    or the rank that has printed why the job fails
"""

import os
import sys

MARK = "\x1e"  # begins a record: the record separator of RFC 7464, "JSON text sequences"
# Variables that bert-launch sets for its ranks.
JOB = "RINGBERT_JOB"  # "1": the ranks tell records
# The columns of the terminal that reads standard error and moves progress bars, "1" if it does not
# say, "0" without one; also set for bert-launch.
TERMINAL = "RINGBERT_TERMINAL"
# "1": this job is a restart, and an earlier start has saved a checkpoint
HAS_SAVED = "RINGBERT_HAS_SAVED"
START_TIMEOUT = "RINGBERT_START_TIMEOUT"  # seconds for all ranks to join
ELASTIC = "RINGBERT_ELASTIC"  # "1": the ranks go on without those that die
COMMAND = "RINGBERT_COMMAND"  # what the user typed, for run.json
# Set only in processes of a launcher: Open MPI, MPICH, MVAPICH2, jsrun (LSF), Flux, and Cray's PALS
# and ALPS, which may give no size. (Flux removes its variables from the shell of a batch job.)
RANKS_WITHOUT_SIZE = ("PALS_RANKID", "ALPS_APP_PE")
RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "MV2_COMM_WORLD_RANK",
    "JSM_NAMESPACE_RANK",
    "FLUX_TASK_RANK",
    *RANKS_WITHOUT_SIZE,
)
SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_SIZE",
    "FLUX_JOB_SIZE",
    "SLURM_STEP_NUM_TASKS",
)


def tell(record: str) -> None:
    """Tells bert-launch, if it asked. A record is one write, so that other output does not split
    it."""
    if JOB in os.environ:
        sys.stderr.write(f"{MARK}{record}\n")
        sys.stderr.flush()


def columns(descriptor: int) -> int:
    """Those of the terminal behind a file; 0 if it is none, and 1 if it does not say."""
    try:
        return max(1, os.get_terminal_size(descriptor).columns)
    except OSError:
        return int(os.isatty(descriptor))


def launched_rank() -> str:
    """This process's rank according to the launcher's variables; "0" without a launcher."""
    # A plain sbatch shell has SLURM_PROCID too, but only a step of several tasks is a launch.
    names = (*RANK_VARIABLES, "SLURM_PROCID") if launched_size()[1] > 1 else RANK_VARIABLES
    return next(filter(None, map(os.environ.get, names)), "0")


def launched_size() -> tuple[str, int]:
    """The variable, with its value, by which a launcher says that it started several processes, and
    their number, or the least that it can be; else "" and 1."""
    for name in (*SIZE_VARIABLES, *RANKS_WITHOUT_SIZE):
        value = os.environ.get(name, "")
        if value.isdigit():
            size = int(value) + (name in RANKS_WITHOUT_SIZE)
            if size > 1:
                return f"{name}={value}", size
    return "", 1


def reports() -> bool:
    """Whether this process, which is alone by mistake, reports an error: one is enough. Rank 0 does
    not know of the mistake if its launcher gives no size."""
    first_that_knows = "1" if launched_size()[0].startswith(RANKS_WITHOUT_SIZE) else "0"
    return launched_rank() in ("0", first_that_knows)
