"""Strangers cannot reach TensorFlow's servers, which listen on all networks and have no password."""

import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hosts import ADDRESSES, Hosts, available, two_hosts
from mpi import ENVIRONMENT, PROGRAMS, ROOT

from distributed import socket_filter


def answers(port: int, source: str, target: str = "127.0.0.1", wait: float = 0.3) -> bool:
    try:
        socket.create_connection((target, port), wait, (source, 0)).close()
    except TimeoutError:
        return False
    return True


def own_address() -> str | None:
    """An address of this machine besides loopback."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]
    return None


def test_only_the_named_addresses_connect_and_none_before():
    with socket_filter.listening(0) as keeper, socket_filter.listening(0) as other:
        port, unrelated = keeper.getsockname()[1], other.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            socket_filter.listening(port)
        assert answers(port, "127.0.0.2")
        socket_filter.refuse_all(keeper)
        with socket_filter.listening(port, shares=True) as server:
            # The keeper gets every connection. Without it, half of them would reach the server.
            assert not any(answers(port, "127.0.0.1", wait=0.1) for _ in range(12))
            socket_filter.accept_only(["127.0.0.1", "127.0.0.3"], keeper)
            assert keeper.fileno() == -1
            assert [answers(port, f"127.0.0.{end}") for end in (1, 2, 3, 4)] == [True, False, True, False]
            if server.family == socket.AF_INET6:
                assert not answers(port, "::1", "::1")
            if (address := own_address()) is not None:
                assert not answers(port, address, address)
            with pytest.raises(PermissionError):
                server.setsockopt(socket.SOL_SOCKET, 27, 0)  # SO_DETACH_FILTER: the filter is locked
        assert answers(unrelated, "127.0.0.2")  # other servers of the process stay as they are


def test_this_system_can_keep_strangers_out():
    assert socket_filter.why_impossible() == ""
    before = os.listdir("/proc/self/fd")
    assert socket_filter.why_impossible() == ""
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the system call is x86_64's")
@pytest.mark.parametrize(("errno", "reason"), [(1, "Operation not permitted"), (0, "filters have no effect")])
def test_a_system_without_socket_filters(errno, reason):
    """As in some containers: the system refuses the filter, or says that all is well and does nothing."""
    program = textwrap.dedent(
        """
        import ctypes, struct, sys
        from distributed import socket_filter

        # seccomp: setsockopt(_, _, SO_ATTACH_FILTER or SO_ATTACH_REUSEPORT_CBPF, …) returns with errno.
        LOAD, EQUAL, RETURN, ALLOW, ERRNO = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
        program = [(LOAD, 0, 0, 0), (EQUAL, 0, 3, 54), (LOAD, 0, 0, 32), (EQUAL, 2, 0, 26), (EQUAL, 1, 0, 51),
                   (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | int(sys.argv[1]))]
        packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
        described = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(packed)))
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        assert prctl(38, 1, 0, 0, 0) == 0  # no new privileges
        assert prctl(22, 2, described, 0, 0) == 0, ctypes.get_errno()
        print(socket_filter.why_impossible())
        """
    )
    command = [sys.executable, "-c", program, str(errno)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert reason in done.stdout


# -- a real attack on a real job ----------------------------------------------------------------------------------

# A third machine, linked with the first one by a network of its own.
STRANGER = """
set -e
cd "$1"
touch stranger.net
unshare --net=stranger.net ip link set lo up
ip link add eth9 type veth peer name peer9
ip link set peer9 netns "$1/stranger.net"
ip address add 10.98.0.1/24 dev eth9
ip link set eth9 up
nsenter --net=stranger.net sh -c 'ip address add 10.98.0.2/24 dev peer9; ip link set peer9 up'
"""


def attacked(hosts: Hosts, secret: Path, ranks_per_host: list[int], environment: dict[str, str]) -> str:
    """What the stranger reads from a job of two ranks."""
    python = sys.executable
    stranger = ["nsenter", f"--net={hosts.folder}/stranger.net", python, str(PROGRAMS / "attack.py")]
    job = [python, str(PROGRAMS / "attacked.py"), "10.98.0.1", str(secret), *stranger]
    env = {**ENVIRONMENT, **environment}
    if len(ranks_per_host) == 2:
        done = hosts.mpirun(1, job, timeout=200, env=env)
    else:
        done = hosts.run(0, [python, "-m", "distributed.launch", "-np", "2", "--", *job], timeout=200, env=env)
    assert done.stdout, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed != "refused" or done.returncode == 0, done.stderr  # the job went on to its end
    return printed


@pytest.mark.slow
@pytest.mark.skipif(available() is not None, reason=available() or "")
def test_a_stranger_cannot_read_files_through_a_job(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the user's secret")
    network = {"RINGBERT_NETWORK": f"{ADDRESSES[0]}/24"}
    with two_hosts() as hosts:
        make = ["nsenter", f"--mount=/proc/{hosts.holder_pid}/ns/mnt"]
        make += ["nsenter", f"--net={hosts.folder}/{hosts.names[0]}.net", "sh", "-c", STRANGER, "sh", hosts.folder]
        subprocess.run(make, check=True, timeout=30)
        assert attacked(hosts, secret, [2], {}) == "refused"
        assert attacked(hosts, secret, [1, 1], network) == "refused"
        # The attack itself works: without the filter the stranger reads the file (and the job may crash).
        assert attacked(hosts, secret, [2], {"RINGBERT_OPEN_PORTS": "1"}) == "the user's secret"
