"""What the ranks tell bert-launch: lines of JSON in standard error, which never reach the terminal.

mpirun's exit status does not say how a job ended: with Open MPI's fault tolerance it is 0 when all ranks aborted.
So the program says it. `bert-launch` asks for it by a variable; without that nothing is printed.

    starting {rank}              the process is about to join MPI, where it waits for all others
    joined {rank}                the process has joined MPI as this rank
    saved {folder, position}     a checkpoint is complete in its place
    completed {rank}             the rank has left `with World.join(…)` without an error
    preempted {rank}             the same after its training was saved and stopped on request
    refused {rank}               an error of the user's was printed

Each also names its kind, host and process. The job is complete when rank 0 is.
"""

import json
import os
import socket
import sys

MARK = "\x1e"  # begins a record: the record separator of RFC 7464, "JSON text sequences"

# Variables that bert-launch sets for the ranks.
RECORDS = "RINGBERT_RECORDS"  # "1": tell records
TERMINAL = "RINGBERT_TERMINAL"  # "1": bert-launch passes standard error to what moves progress bars
STACKS = "RINGBERT_STACKS"  # a folder for the stack of each rank that is ended by SIGTERM
HAS_SAVED = "RINGBERT_HAS_SAVED"  # "1": this job is a restart, and the one before has saved a checkpoint
STANDARD_INPUT = "RINGBERT_STANDARD_INPUT"  # "HOST PATH": where a rank can read what bert-launch is given
PARENT = "RINGBERT_PARENT"  # set for bert-launch: the process that started it, with which it is to end
JOB = "RINGBERT_JOB"  # the name of the job, by which its processes are found


def tell(kind: str, **facts: object) -> None:
    """Tells bert-launch, if it asked. A record is one write, so that other output does not split it."""
    if os.environ.get(RECORDS) == "1":
        record = {"kind": kind, "host": socket.gethostname(), "process": os.getpid(), **facts}
        sys.stderr.write(f"{MARK}{json.dumps(record, default=str)}\n")
        sys.stderr.flush()
