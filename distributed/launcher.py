"""What a process knows of the launcher that started it: variables of bert-launch and of MPI's own
launchers."""

import os
import signal
import time

from distributed import records
from distributed.cores import own_slots, quota, wanted_threads

# mpirun ends the job when any rank fails: the others wait for the first one's error
FIRST_RANK_S = 5.0
SECOND_S = 5.0  # after the first request to stop, before which another is its repetition
# Variables that bert-launch sets for its ranks.
JOB_ID = "RINGBERT_JOB_ID"  # tells a job, with all its restarts, from others
SLURM_JOB = "slurm-"  # begins that of slurm.sh, which stays the same when Slurm requeues the job
# The columns of the terminal that reads standard error and moves progress bars, "1" if it does not
# say, "0" without one; also set for bert-launch.
TERMINAL = "RINGBERT_TERMINAL"
RESTART = "RINGBERT_RESTART"  # how many times the job was started again; "0" at first
START_TIMEOUT = "RINGBERT_START_TIMEOUT"  # seconds for all ranks to join
ELASTIC = "RINGBERT_ELASTIC"  # "1": the ranks go on without those that die
# seconds from a batch system's signal to the end of the job, as slurm.sh asks for them
STOP_S = "RINGBERT_STOP_S"
COMMAND = "RINGBERT_COMMAND"  # what the user typed, for run.json
# a folder in which scripts with hvd.elastic keep their commits, for the next start of the job
COMMITS = "RINGBERT_COMMITS"
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
# the ranks on this machine: of Open MPI, Hydra (MPICH, Intel MPI), MVAPICH2, Slurm
LOCAL_SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "SLURM_NTASKS_PER_NODE",
)
SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_SIZE",
    "FLUX_JOB_SIZE",
    "SLURM_STEP_NUM_TASKS",
)
# of `srun --pty`, whose shell is one process, however many tasks its step has
OF_A_SHELL = "SLURM_PTY_PORT"


class Requests:
    """Tells a second request to stop from a repetition of the first one.

    `timeout` sends its signal to a process and then to its group, so to the same process again.
    """

    def __init__(self) -> None:
        self._first_s: float | None = None

    def is_second(self, number: int) -> bool:
        """Whether this signal, which has just come, is a second request: after some seconds, or
        from a terminal."""
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
            return False
        is_of_terminal = number == signal.SIGINT and os.isatty(0)
        return is_of_terminal or now_s - self._first_s >= SECOND_S


def advice_on_stops() -> str | None:
    """What saves, under a launcher that kills its ranks soon after it was asked to end; None under
    others."""
    is_of_mpirun = "OMPI_COMM_WORLD_SIZE" in os.environ
    if records.JOB in os.environ or not is_of_mpirun:
        return None
    return (
        "note: this mpirun kills its ranks half a second after Ctrl-C or SIGTERM, before they can"
        " save: send it SIGUSR1 (kill -USR1) to save and stop, or use bert-launch"
    )


def is_of_mpirun() -> bool:
    """Whether mpirun, which ends all ranks when one fails, has started this process."""
    return any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"))


def is_restart() -> bool:
    """Whether bert-launch has started this job again."""
    return os.environ.get(RESTART, "0") != "0"


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
        if name == "SLURM_STEP_NUM_TASKS" and OF_A_SHELL in os.environ:
            continue
        value = os.environ.get(name, "")
        if value.isdigit():
            size = int(value) + (name in RANKS_WITHOUT_SIZE)
            if size > 1:
                return f"{name}={value}", size
    return "", 1


def share_of_cores() -> int:
    """How many cores this process may use before its rank has its own: the machine's, divided
    among the ranks here, or those that the launcher has bound it to."""
    if wanted := wanted_threads():
        return wanted
    own = len(os.sched_getaffinity(0))
    if own < (os.cpu_count() or own):
        return own
    limit, _ = quota()
    own = max(1, int(min(own, limit)))
    if slots := own_slots():
        own = max(1, own * slots.count // slots.total)
    sizes = [os.environ.get(name, "") for name in LOCAL_SIZE_VARIABLES]
    num_ranks = next((int(size) for size in sizes if size.isdigit()), 1)
    return max(1, own // max(1, num_ranks))


def reports() -> bool:
    """Whether this process, which is alone by mistake, reports an error: one is enough. Rank 0 does
    not know of the mistake if its launcher gives no size."""
    first_that_knows = "1" if launched_size()[0].startswith(RANKS_WITHOUT_SIZE) else "0"
    return launched_rank() in ("0", first_that_knows)
