"""What listens while a job of bert-launch runs on one host: nothing to which another machine could connect."""

import json
import os
import platform
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hosts import Hosts, available, two_hosts
from mpi import ENVIRONMENT, PROGRAMS
from test_restarts import launched, waited_for

from distributed.launcher.mpirun import OPEN_MPI, find_mpi

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads Linux's list of sockets")
LOOPBACK = ("127.", "[::1]", "0.0.0.0%lo", "*%lo")  # addresses in the words of ss


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


def test_a_job_on_one_host_listens_on_loopback_only(tmp_path):
    if find_mpi().implementation != OPEN_MPI:
        pytest.skip("mpirun is not Open MPI's")
    with launched(arguments=("waits", tmp_path)) as process:
        waited_for(lambda: (tmp_path / "waiting").exists())
        sockets = listening(process.pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert [socket for socket in sockets if not socket[1].startswith(LOOPBACK)] == []
    # mpirun's own ports, for IPv4 and IPv6, which it opens on all networks.
    assert [address for _, address in sockets if address.endswith("%lo")], sockets


# -- another machine tries every port -----------------------------------------------------------------------------

STRANGER = """
import socket, sys
for address in sys.argv[1].split(","):
    for port in sys.argv[2:]:
        try:
            socket.create_connection((address, int(port)), 0.5).close()
            print(address)
        except (ConnectionRefusedError, TimeoutError):
            pass
"""


def reached(hosts: Hosts, folder: Path, *flags: str, before: tuple[str, ...] = (), **variables: str) -> set[str]:
    """The addresses of host 1 at which host 2 could connect to a job of host 1, which then went on to its end."""
    folder.mkdir()
    python = sys.executable
    job = [*before, python, "-m", "distributed.launch", "-np", "2", *flags, "--"]
    job += [python, str(PROGRAMS / "listening.py"), str(folder)]
    with ThreadPoolExecutor() as pool:
        running = pool.submit(hosts.run, 0, job, timeout=60, env={**ENVIRONMENT, **variables})
        waited_for(lambda: (folder / "ports").exists() or running.done())
        ports = json.loads((folder / "ports").read_text()) if not running.done() else []
        stranger = [python, "-c", STRANGER, "10.99.0.1,fd99::1", *map(str, ports)]
        tried = subprocess.run([*on_host(hosts, 2), *stranger], capture_output=True, text=True, timeout=30)
        (folder / "tried").touch()
        done = running.result()
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert tried.returncode == 0, tried.stderr
    assert len(ports) >= 2, "mpirun listens by IPv4 and IPv6"
    return set(tried.stdout.split())


def on_host(hosts: Hosts, number: int) -> list[str]:
    mounts = ["nsenter", f"--mount=/proc/{hosts.holder_pid}/ns/mnt"]
    return [*mounts, "nsenter", f"--net={hosts.folder}/host{number}.net"]


@pytest.mark.slow
@pytest.mark.skipif(available() is not None, reason=available() or "")
def test_another_machine_cannot_connect_to_any_port_of_a_job_on_one_host(tmp_path):
    without_rights = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    with two_hosts() as hosts:
        for number in (1, 2):
            add = ["ip", "address", "add", f"fd99::{number}/64", "dev", "eth0", "nodad"]
            subprocess.run([*on_host(hosts, number), *add], check=True, timeout=30)
        assert reached(hosts, tmp_path / "plain") == set()
        assert reached(hosts, tmp_path / "elastic", "--elastic", "--restarts", "1") == set()
        assert reached(hosts, tmp_path / "rights", before=without_rights) == set()
        # The stranger does reach what listens on all networks.
        assert reached(hosts, tmp_path / "open", RINGBERT_OPEN_PORTS="1") == {"10.99.0.1", "fd99::1"}


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the system call is x86_64's")
def test_a_system_that_does_not_allow_it_says_so_once_and_the_job_goes_on(tmp_path):
    program = [sys.executable, PROGRAMS / "counting.py", "slowly", tmp_path]
    command = [sys.executable, PROGRAMS / "without_pidfd_getfd.py", "-np", "2", "--", *program]
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    notes = done.stderr.splitlines()[1:]
    assert len(notes) == 1, done.stderr
    assert "mpirun's own port, which cannot be closed here (Operation not permitted)" in notes[0]
