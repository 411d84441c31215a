"""Which hosts bert-launch finds ready for another start, through a remote shell that stays on this machine."""

import os
import subprocess
import time

import pytest

from distributed import records
from distributed.launcher.hosts import is_local, ready_hosts, remote_shell
from distributed.launcher.mpirun import INTEL_MPI, MPICH, OPEN_MPI, Mpi
from distributed.launcher.options import Options

SHELL = """#!/bin/sh
echo "a line of the login shell"
host=$1; shift
case $host in
  silent) sleep 60 ;;
  refusing) echo "ssh: connect to host refusing port 22: Connection refused" >&2; exit 255 ;;
esac
exec sh -c "$*"
"""


@pytest.fixture
def shell(tmp_path):
    path = tmp_path / "agent"
    path.write_text(SHELL)
    path.chmod(0o755)
    return [str(path)]


def test_hosts_that_do_not_answer_are_named_with_the_reason(shell):
    began = time.monotonic()
    reasons = ready_hosts(shell, ["good", "silent", "refusing"], "no-such-job", timeout=2)
    assert reasons == {
        "silent": "no answer within 2 s",
        "refusing": "ssh: connect to host refusing port 22: Connection refused",
    }
    assert time.monotonic() - began < 5, "all hosts are asked at the same time"


@pytest.mark.parametrize("host", ["node1", "localhost"])
def test_processes_of_the_last_start_are_killed_and_no_others(shell, host):
    sleeping = {
        name: subprocess.Popen(["sleep", "60"], env={**os.environ, records.JOB: name}) for name in ("a", "ab")
    }
    try:
        assert ready_hosts(shell, [host], "a") == {}
        assert sleeping["a"].wait(timeout=5) == -9
        assert sleeping["ab"].poll() is None
    finally:
        for process in sleeping.values():
            process.kill()
            process.wait()


def test_local_hosts():
    assert is_local("localhost")
    assert is_local(os.uname().nodename)
    assert is_local("127.0.0.1")
    assert not is_local("192.0.2.77")  # an address of documentation
    assert not is_local("no-such-host.invalid")


OPEN_MPI_5 = Mpi(OPEN_MPI, (5, 0), "mpirun")


@pytest.mark.parametrize(
    ("mpi", "mpi_args", "environment", "expected"),
    [
        (OPEN_MPI_5, ("--prtemca", "plm_ssh_agent", "/a/agent -q : rsh"), {}, ["/a/agent", "-q", "-p", "22"]),
        (OPEN_MPI_5, (), {"OMPI_MCA_plm_rsh_agent": "rsh"}, ["rsh", "-p", "22"]),
        (Mpi(MPICH, (4, 2), "mpirun"), ("-launcher-exec", "own"), {}, ["own", "-p", "22"]),
        (Mpi(INTEL_MPI, (2021, 1), "mpirun"), (), {"I_MPI_HYDRA_BOOTSTRAP_EXEC": "own"}, ["own", "-p", "22"]),
    ],
)
def test_the_remote_shell_is_that_of_mpirun(mpi, mpi_args, environment, expected):
    options = Options(("x",), 1, ssh_port=22, mpi_args=mpi_args)
    assert remote_shell(mpi, options, environment) == expected
    plain = remote_shell(mpi, Options(("x",), 1), {})
    assert (plain[0], "BatchMode=yes" in plain) == ("ssh", True)
