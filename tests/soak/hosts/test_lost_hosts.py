"""Jobs on two and three hosts that lose one: `scripts/soak.sh hosts`, before a release."""

import ctypes
import json
import os
import platform
import re
import shlex
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from harness.hosts import TCP_ONLY, available, simulated_hosts
from harness.jobs import VARIABLES, launch, program, run
from harness.program_runs import metrics_in

pytestmark = pytest.mark.skipif(available() is not None, reason=available() or "")
ENV = {**VARIABLES, "RINGBERT_NETWORK": "10.99.0.0/24"}


def wait_for(condition, job):
    while not condition():
        assert not job.done(), job.result()
        time.sleep(0.1)


def launched(hosts, np_per_host, *command, flags=()):
    """The command line of bert-launch on all hosts."""
    where = ",".join(f"{address}:{np_per_host}" for address in hosts.addresses)
    mpi_args = f"--mpi-args={shlex.join([*TCP_ONLY, *hosts.agent])}"
    return launch(np_per_host * hosts.number, *command, flags=("-H", where, mpi_args, *flags))


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("is_cut", [False, True], ids=["host killed", "link cut"])
def test_a_job_goes_on_without_a_lost_host(tmp_path, number, is_cut):
    """After a cut link no rank notices; here one is killed too, and mpirun cannot end those of the other host."""
    with simulated_hosts(number) as hosts, ThreadPoolExecutor() as pool:
        command = launched(hosts, 1, *program("work.py", tmp_path, "hold"), flags=("--restarts=3",))
        job = pool.submit(hosts.run, 0, command, timeout=300, env=ENV)
        wait_for((tmp_path / "holding").exists, job)
        hosts.lose(1, is_cut)
        if is_cut:
            hosts.kill(0, "OMPI_COMM_WORLD_RANK=")
        done = job.result()
    assert done.returncode == 0, done.stdout + done.stderr
    starts = [line for line in done.stdout.splitlines() if line.startswith("from ")]  # and words of mpirun's
    assert starts == ["from 0", "from 7"]
    ranks = f"{number - 1} rank{'s' * (number > 2)}"
    assert re.search(rf"without 10\.99\.0\.2 \(.*No route to host\): {ranks} on 10\.99\.0\.1", done.stderr), done


@pytest.mark.parametrize(("number", "np_per_host"), [(2, 1), (2, 2), (3, 1)])
def test_a_cut_link_ends_the_job_on_both_sides(tmp_path, number, np_per_host):
    with simulated_hosts(number) as hosts, ThreadPoolExecutor() as pool:
        command = launched(hosts, np_per_host, *program("work.py", tmp_path, "hold"))
        job = pool.submit(hosts.run, 0, command, timeout=300, env=ENV)
        wait_for((tmp_path / "holding").exists, job)
        hosts.lose(1, is_cut=True)
        done = job.result()
    assert done.returncode not in (0, 75), done
    gone = "rank 1" if np_per_host == 1 else "ranks 2, 3"
    assert re.search(f"prog: error: .*{gone}.*host2", done.stderr), done.stderr


@pytest.mark.parametrize(("number", "np_per_host"), [(2, 2), (3, 1), (3, 2)])
def test_ranks_die_on_several_hosts(tmp_path, number, np_per_host):
    """Each host's sums are in its own memory, and the first rank of each sends them to the others."""
    folders = [tmp_path / name for name in ("undisturbed", "disturbed")]
    for folder in folders:
        folder.mkdir()
        (folder / "fast").touch()
    undisturbed = run(program("training.py", folders[0])).json()
    victims = ["2@sum@4", "0@summed@9"]
    with simulated_hosts(number) as hosts, ThreadPoolExecutor() as pool:
        command = launched(hosts, np_per_host, *program("training.py", folders[1], *victims), flags=("--elastic",))
        job = pool.submit(hosts.run, 0, command, timeout=600, env=ENV)
        for name in victims:
            wait_for((folders[1] / name).exists, job)
            for host in range(number):
                hosts.kill(host, f"OMPI_COMM_WORLD_RANK={name[0]}")
        done = job.result()
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert len(result["digests"]) == number * np_per_host - 2
    assert len(set(result["digests"])) == 1
    np.testing.assert_allclose(result["weights"], undisturbed["weights"], rtol=0, atol=1e-12)
    steps = [line["step"] for line in metrics_in(folders[1]) if "loss" in line]
    assert steps == list(range(1, result["step"] + 1))


def refuse_filters():
    """As some containers do (seccomp): setsockopt may not set SO_ATTACH_FILTER and SO_ATTACH_REUSEPORT_CBPF."""
    load, equal, give, allow, error = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
    program = [(load, 0, 0, 0), (equal, 0, 3, 54), (load, 0, 0, 32), (equal, 2, 0, 26), (equal, 1, 0, 51),
               (give, 0, 0, allow), (give, 0, 0, error | 1)]  # fmt: skip
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    described = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(packed)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert prctl(22, 2, described, 0, 0) == 0, ctypes.get_errno()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are x86_64's")
def test_where_strangers_cannot_be_kept_out_tensorflows_servers_are_refused(tmp_path):
    command = launch(2, *program("ring.py", tmp_path))
    env = {**os.environ, **VARIABLES}
    done = subprocess.run(command, env=env, preexec_fn=refuse_filters, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error:" in line]
    assert all(word in line for word in ("--backend", "Operation not permitted", "RINGBERT_OPEN_PORTS"))
