"""What the ranks tell bert-launch: lines in standard error, which never reach the terminal.

mpirun's exit status does not say how a job ended: with Open MPI's fault tolerance it is 0 when all ranks aborted,
and also when a host is lost. So the program says it. Without `bert-launch` nothing is printed.

    joined          rank 0: all ranks have joined MPI
    saved           rank 0: a checkpoint is complete in its place
    ended STATUS    rank 0: the program is complete (0), or has saved and stopped on request (75);
                    or the rank that has printed why the job fails
"""

import os
import sys

MARK = "\x1e"  # begins a record: the record separator of RFC 7464, "JSON text sequences"

# Variables that bert-launch sets for the ranks.
JOB = "RINGBERT_JOB"  # the name of the job, by which its processes are found; with it the ranks tell records
TERMINAL = "RINGBERT_TERMINAL"  # "1": bert-launch passes standard error to what moves progress bars
HAS_SAVED = "RINGBERT_HAS_SAVED"  # "1": this job is a restart, and an earlier start has saved a checkpoint
START_TIMEOUT = "RINGBERT_START_TIMEOUT"  # seconds for all ranks to join

PARENT = "RINGBERT_PARENT"  # set for bert-launch: the process that started it, with which it is to end


def tell(record: str) -> None:
    """Tells bert-launch, if it asked. A record is one write, so that other output does not split it."""
    if JOB in os.environ:
        sys.stderr.write(f"{MARK}{record}\n")
        sys.stderr.flush()
