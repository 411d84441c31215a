"""What ranks tell bert-launch: records.

Records say how the job ended. mpirun's exit status does not: with Open MPI's fault tolerance it is
0 when all ranks aborted, and also when a host is lost. A record is a line in standard error, which
never reaches the terminal, and on bert-launch's machine one in a pipe of its own, because standard
error may go elsewhere (mpirun --output).

    joined          rank 0: all ranks have joined MPI
    stops           rank 0: SIGUSR1 lets the ranks save and stop, from now on
    runs            rank 0: no longer so
    error MESSAGE   the rank that has printed it: why the job fails, where one line says it
    ended STATUS    rank 0: the program is complete (0), or has saved and stopped on request (75);
                    or the rank that has printed why the job fails
"""

import contextlib
import os
import socket
import sys
from typing import BinaryIO

RECORDS = r"joined|stops|runs|error [^\n]*|ended \d+"
LONGEST_BYTES = 3000  # of a message, so that a record is one write to a pipe
MARK = "\x1e"  # begins a record: the record separator of RFC 7464, "JSON text sequences"
# The ranks tell records: bert-launch's machine, its pipe there, and what that is called.
JOB = "RINGBERT_JOB"
# the pipe of a program that has started bert-launch, which tells it the job's error
CALLER = "RINGBERT_CALLER"


def tell(record: str) -> None:
    """Tells bert-launch, if it asked. A record is one write, so that other output does not split
    it."""
    if JOB not in os.environ:
        return
    is_heard = False
    # bert-launch may be on another machine, or have ended
    with contextlib.suppress(OSError), open_pipe(os.environ[JOB]) as file:
        file.write(f"{record}\n".encode())
        is_heard = True
    # an end also hides what mpirun says after it, in the order of what is printed
    if not is_heard or record.startswith("ended"):
        sys.stderr.write(f"{MARK}{record}\n")
        sys.stderr.flush()


def tell_error(message: str) -> None:
    """Tells bert-launch an error of which one line says all, before the end."""
    tell(f"error {_cut(message)}")


def tell_caller(message: str) -> None:
    """Tells the program that has started this bert-launch why the job has failed."""
    caller = os.environ.pop(CALLER, None)
    if caller:
        with contextlib.suppress(OSError), open_pipe(caller) as file:
            file.write(_cut(message).encode())


def _cut(message: str) -> str:
    data = message.encode(errors="backslashreplace")  # half of a pair, in the name of a file
    return data[:LONGEST_BYTES].decode(errors="ignore")


def tell_end(status: int) -> None:
    tell(f"ended {status & 0xFF}")


def name_of_pipe(descriptor: int) -> str:
    """How other processes of this user find a pipe of this one, on this machine."""
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    return f"{socket.gethostname()} {path} {os.readlink(path)}"


def open_pipe(name: str) -> BinaryIO:
    """The pipe of this name, for writing. Raises OSError: it is not of this machine, or closed."""
    host, path, link = name.split(" ")
    # in another container the process id may be another process's
    if host != socket.gethostname() or os.readlink(path) != link:
        raise FileNotFoundError(name)
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    return os.fdopen(descriptor, "wb", buffering=0)
