"""What the launchers of Open MPI, MPICH and Intel MPI print when a rank ends a job, as facts in place of banners.

Open MPI draws blocks between lines of dashes, Hydra (MPICH and Intel MPI) between lines of "=".
"""

import re
import signal
from dataclasses import dataclass, replace

ADVICE = {
    signal.SIGKILL: "out of memory?",
    signal.SIGSEGV: "a crash in compiled code",
    signal.SIGBUS: "is /dev/shm full?",
    signal.SIGABRT: "its own lines are above",
    signal.SIGILL: "compiled for another processor?",
}


@dataclass(frozen=True)
class Death:
    """The end of a rank, or the loss of a host, as far as the launcher says it.

    `status` is that of an exit or of MPI_Abort, if it is known; `process` is the process id, which Hydra names;
    `reason` is what is said of it, if that is known better.
    """

    rank: int | None = None
    host: str = ""
    process: int | None = None
    signal: int | None = None
    status: int | None = None
    is_abort: bool = False
    is_lost_host: bool = False
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        if self.is_lost_host:
            return f"the connection to host {self.host} was lost"
        who = f"rank {self.rank}" if self.rank is not None else "a rank"
        who += f" on host {self.host}" if self.host else ""
        if self.signal is not None:
            return f"{who} was killed ({_named(self.signal)})"
        if self.is_abort:
            return f"{who} called MPI_Abort with status {self.status}"
        return f"{who} exited with status {self.status}" if self.status else f"{who} ended before the others"


def _named(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    advice = ADVICE.get(signal.Signals(number))
    return f"{name}: {advice}" if advice else name


PLACE = r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+)"
RUNTIME = r"(?:PRTE|ORTE)"
BLOCKS = [  # between the rules, with single spaces
    re.compile(rf"noticed that {PLACE} exited on signal (?P<signal>\d+)"),
    re.compile(
        r"one or more processes exited with non-zero status, thus causing the job to be terminated\. "
        r"The first process to do so was: Process name: \S*?(?P<rank>\d+)\] Exit code: (?P<status>\d+)"
    ),
    re.compile(
        r"MPI_ABORT was invoked on rank (?P<abort>\d+) in communicator .*?"
        r"(?:Proc: \S*?(?P<rank>\d+)\] )?(?:with errorcode|Errorcode:) (?P<status>-?\d+)"
    ),
    re.compile(rf"has exited due to {PLACE} (?:calling|exiting improperly)"),
    re.compile(
        rf"{RUNTIME} has lost communication with a remote daemon\. .*Remote daemon ?: \S+ on node (?P<lost>\S+)"
    ),
    re.compile(r"terminated normally, but \d+ process(?:es)? returned a non-zero exit code"),
    re.compile(
        r"BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
        r"(?: = (?:RANK (?P<rank>\d+) )?PID (?P<process>\d+) RUNNING AT (?P<host>\S+))?"
        r"(?: = KILLED BY SIGNAL: (?P<signal>\d+)| = EXIT (?:CODE|STATUS): (?P<status>-?\d+))"
    ),
]
LINES = [  # whole lines
    re.compile(r"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*\(signal (?P<signal>\d+)\)"),
    re.compile(
        r"Abort\((?P<status>-?\d+)\) on node \d+ \(rank (?P<rank>\d+) in comm \d+\): "
        r"(?P<abort>application called MPI_Abort).*"
    ),
    re.compile(r"application called (?P<abort>MPI_Abort)\(\w+, (?P<status>-?\d+)\) - process (?P<rank>\d+)"),
    re.compile(r"This typically refers to a problem with your application\."),
    re.compile(r"Please see the FAQ page for debugging suggestions"),
    re.compile(r"\[(?:proxy:\d+(?::\d+)?|mpiexec)@[^\]]+\] .*"),
    re.compile(r"\[[^\]]+\] \d+ more process(?:es)? ha(?:s|ve) sent help message help-mpi-(?:api|errors)\.txt.*"),
    re.compile(r"\[[^\]]+\] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all help .*"),
    re.compile(r"\S+: Forwarding signal \d+ to job"),
    # Open MPI, in the ranks that hear of a death while they wait: MPI_ERR_PROC_FAILED and MPI_ERR_REVOKED.
    re.compile(r"NBC_Progress: an error 7[57] was found during schedule .* - aborting the schedule"),
]
EXIT_CODE_OF_SIGNAL = 128  # plus its number, as shells have it


def of_block(text: str) -> list[Death] | None:
    """The facts in the text between two rules; None if it is not about the end of a rank."""
    words = " ".join(text.split())
    for pattern in BLOCKS:
        if match := pattern.search(words):
            return [death] if (death := _death(match.groupdict())) else []
    return None


def of_line(line: str) -> list[Death] | None:
    """The facts in a line that stands alone; None if it is not about the end of a rank."""
    for pattern in LINES:
        if match := pattern.fullmatch(line.strip()):
            return [death] if (death := _death(match.groupdict())) else []
    return None


def _death(found: dict[str, str | None]) -> Death | None:
    if found.get("lost"):
        return Death(host=str(found["lost"]), is_lost_host=True)
    if not found:
        return None
    numbers = {name: int(text) for name, text in found.items() if text and re.fullmatch(r"-?\d+", text)}
    host, rank = found.get("host") or "", numbers.get("rank", numbers.get("abort"))
    number, status = numbers.get("signal"), numbers.get("status")
    if number is None and status is not None and status > EXIT_CODE_OF_SIGNAL and "abort" not in found:
        number = status - EXIT_CODE_OF_SIGNAL
    return Death(rank, host, numbers.get("process"), number, status, is_abort="abort" in found)


def cause(deaths: list[Death], num_ranks: int) -> Death | None:
    """The death that ended a job. The others follow from it: launchers kill all ranks after one."""
    if not deaths:
        return None
    first = deaths[0]
    if first.process is not None and first.rank is None:  # MPICH, which names the signal on a line of its own
        number = next((death.signal for death in deaths if death.signal is not None), None)
        return replace(first, signal=number)
    if first.process is not None:  # Intel MPI, which shows every signal, also those that it sent itself
        shown = {death.rank for death in deaths}
        ended = [rank for rank in range(num_ranks) if rank not in shown]
        own = next((death for death in deaths if death.signal != signal.SIGKILL), None)
        if own is None and ended:
            return Death(ended[0] if len(ended) == 1 else None)
        return own or (first if num_ranks == 1 else Death(host=first.host, signal=first.signal))
    return first
