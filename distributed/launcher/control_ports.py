"""Takes mpirun's own ports off the network when the job runs on one host.

Open MPI's mpirun listens on all networks for its daemons on other hosts, also where there are none, and has no
option against it. Linux lets a parent duplicate the sockets of its child (pidfd_getfd(2), since 5.6) and bind them
to the loopback interface although they listen already (SO_BINDTODEVICE in socket(7), without rights since 5.7).
"""

import ctypes
import errno
import os
import select
import socket
import sys
import threading
import time

PIDFD_OPEN, PIDFD_GETFD = 434, 438  # numbers of system calls on every processor; Python has no pidfd_getfd
ALL_NETWORKS = ("0.0.0.0", "::")
FIRST_S, FIRST_PAUSE_S = 5.0, 0.001  # mpirun opens its ports within its first second
PAUSE_S = 1.0
REFUSED_S = 0.5  # for so long the system must have refused


class ControlPorts:
    """A thread that lets only this machine connect to the TCP ports of a child process, from its start to its end.

    `refusal` is why the system does not allow it; "" as long as it does.
    """

    def __init__(self, process_id: int):
        self.refusal = ""
        self._process_id = process_id
        self._done: set[tuple[int, str]] = set()  # descriptors, with their files, that need no more attention
        self._thread = threading.Thread(target=self._guard, name="control ports", daemon=True)
        try:
            self._process = _system_call(PIDFD_OPEN, process_id, 0)
        except OSError as error:
            self.refusal = error.strerror or str(error)
        else:
            self._thread.start()

    def join(self) -> None:
        """Waits for the thread, which ends with the process."""
        if self._thread.ident is not None:
            self._thread.join()

    def _guard(self) -> None:
        start_s = worked_s = time.monotonic()
        pause_s = FIRST_PAUSE_S
        while not select.select([self._process], [], [], pause_s)[0]:
            now_s = time.monotonic()
            pause_s = FIRST_PAUSE_S if now_s - start_s < FIRST_S else PAUSE_S
            try:
                self._look()
                worked_s = now_s
            except OSError as error:  # also while the process ends
                if now_s - worked_s > REFUSED_S:
                    self.refusal = error.strerror or str(error)
                    break
        os.close(self._process)

    def _look(self) -> None:
        folder = f"/proc/{self._process_id}/fd"
        for descriptor in map(int, os.listdir(folder)):
            try:
                file = os.readlink(f"{folder}/{descriptor}")
                if (descriptor, file) not in self._done and self._is_done(descriptor, file):
                    self._done.add((descriptor, file))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EBADF):  # closed by now
                    raise

    def _is_done(self, descriptor: int, file: str) -> bool:
        """Binds a socket that listens on all networks to loopback. False if it may be one later."""
        if not file.startswith("socket:"):
            return True
        with socket.socket(fileno=_system_call(PIDFD_GETFD, self._process, descriptor, 0)) as candidate:
            if candidate.family not in (socket.AF_INET, socket.AF_INET6) or candidate.type != socket.SOCK_STREAM:
                return True
            if not candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            if candidate.getsockname()[0] in ALL_NETWORKS:
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
            return True


def _system_call(number: int, *arguments: int) -> int:
    """Its result. Raises OSError."""
    if not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, f"not on {sys.platform}")
    result = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
