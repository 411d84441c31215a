"""Jobs on two and three hosts that lose one: `scripts/soak.sh hosts`, before a release."""

import contextlib
import ctypes
import os
import platform
import re
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.hosts import available, simulated_hosts
from harness.jobs import assert_same_training, launch, program, trained_alone
from harness.mpi import ENVIRONMENT, HANGS_S

pytestmark = pytest.mark.skipif(available() is not None, reason=available() or "")


@contextlib.contextmanager
def started(number, np_per_host, name, folder, *arguments, flags=()):
    """Hosts, and a job of all of them that runs a program of tests/jobs/programs."""
    with simulated_hosts(number) as hosts, ThreadPoolExecutor() as pool:
        command = hosts.launch(np_per_host, *program(name, folder, *arguments), flags=flags)
        yield hosts, pool.submit(hosts.run, 0, command)


def wait_for(file, job):
    while not file.exists():
        assert not job.done(), job.result()
        time.sleep(0.1)


@pytest.mark.parametrize(("number", "np_per_host"), [(2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("is_cut", [False, True], ids=["host killed", "link cut"])
def test_a_job_goes_on_without_a_lost_host(tmp_path, number, np_per_host, is_cut):
    """After a cut link the ranks on each side give the others up, and mpirun waits for the other
    host."""
    with started(number, np_per_host, "work.py", tmp_path, "hold", flags=("--restarts=3",)) as (
        hosts,
        job,
    ):
        wait_for(tmp_path / "holding", job)
        hosts.lose(1, is_cut)
        done = job.result()
    assert done.status == 0, done
    # and words of mpirun's
    starts = [line for line in done.stdout.splitlines() if line.startswith("from ")]
    assert starts == ["from 0", "from 7"]
    assert "No route to host" in done.stderr, done
    assert f"10.99.0.2 gives no answer: {(number - 1) * np_per_host} rank" in done.stderr, done
    gone = "rank 1" if np_per_host == 1 else "ranks 2, 3"
    assert not is_cut or re.search(f"prog: error: .*{gone}.*host2", done.stderr), done


@pytest.mark.parametrize(("number", "np_per_host"), [(2, 2), (3, 1), (3, 2)])
def test_ranks_die_on_several_hosts(tmp_path, number, np_per_host):
    """Each host's sums are in its own memory, and the first rank of each sends them to the
    others."""
    undisturbed, victims = trained_alone(tmp_path / "alone"), ["2@sum@4", "0@summed@9"]
    (tmp_path / "fast").touch()
    with started(number, np_per_host, "training.py", tmp_path, *victims, flags=("--elastic",)) as (
        hosts,
        job,
    ):
        for name in victims:
            wait_for(tmp_path / name, job)
            for host in range(number):
                hosts.kill(host, f"OMPI_COMM_WORLD_RANK={name[0]}")
        done = job.result()
    assert_same_training(done, tmp_path, undisturbed, survivors=number * np_per_host - 2, lost=2)


def refuse_filters():
    """As some containers do (seccomp): setsockopt may not set SO_ATTACH_FILTER and
    SO_ATTACH_REUSEPORT_CBPF."""
    load, equal, give, allow, error = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
    program = [
        (load, 0, 0, 0),
        (equal, 0, 3, 54),
        (load, 0, 0, 32),
        (equal, 2, 0, 26),
        (equal, 1, 0, 51),
        (give, 0, 0, allow),
        (give, 0, 0, error | 1),
    ]
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    described = ctypes.create_string_buffer(
        struct.pack("HP", len(program), ctypes.addressof(packed))
    )
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert prctl(22, 2, described, 0, 0) == 0, ctypes.get_errno()


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the numbers of system calls are x86_64's"
)
def test_where_strangers_cannot_be_kept_out_tensorflows_servers_are_refused(tmp_path):
    command, env = launch(2, *program("ring.py", tmp_path)), {**os.environ, **ENVIRONMENT}
    done = subprocess.run(
        command, env=env, preexec_fn=refuse_filters, capture_output=True, text=True, timeout=HANGS_S
    )
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error:" in line]
    assert all(
        word in line for word in ("--backend", "Operation not permitted", "RINGBERT_OPEN_PORTS")
    )
