"""What listens while a job of bert-launch runs on one host: no rank does, except on loopback."""

import signal
import subprocess
import sys

import pytest
from test_restarts import launched, waited_for

from distributed.launcher.mpirun import OPEN_MPI, find_mpi

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads Linux's list of sockets")


def listening(process_id: int) -> list[tuple[str, str]]:
    """Program and address of each TCP socket on which a process or its descendants listen."""
    tree = [str(process_id)]
    for parent in tree:
        tree += subprocess.run(["pgrep", "-P", parent], capture_output=True, text=True).stdout.split()
    found = []
    for line in subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines():
        address, users = line.split()[3], line.partition("users:")[2]
        program = users.partition('"')[2].partition('"')[0]
        if any(f"pid={number}," in users for number in tree):
            found.append((program, address.rpartition(":")[0]))
    return found


def test_ranks_of_one_host_listen_on_loopback_only(tmp_path):
    if find_mpi().implementation != OPEN_MPI:
        pytest.skip("mpirun is not Open MPI's")
    with launched(arguments=("waits", tmp_path)) as process:
        waited_for(lambda: (tmp_path / "waiting").exists())
        sockets = listening(process.pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    others = [(program, address) for program, address in sockets if not address.startswith(("127.", "[::1]"))]
    # mpirun's own control port stays open, on IPv4 and IPv6: see docs/running.md.
    assert {program for program, _ in others} <= {"prterun", "mpirun"}, sockets
    assert len(others) <= 2, sockets
    assert sockets, "mpirun listens on loopback at least"
