"""Ranks on two hosts find their place on each and add up between them; strangers cannot take
part."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.hosts import VARIABLES, available, simulated_hosts
from harness.jobs import launch, program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(available() is not None, reason=available() or ""),
]

# Prints those of the ports at which a server of TensorFlow answers, which would read files for
# whoever asks. It speaks HTTP/2 (RFC 9113), where both sides begin with a frame of settings, which
# is of type 4.
# All ports at once, as many refuse by silence.
STRANGER = r"""
import socket, sys
from concurrent.futures import ThreadPoolExecutor
def answers(port):
    try:
        with socket.create_connection((sys.argv[1], int(port)), 5) as server:
            server.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            return server.recv(9)[3:4] == b"\4"
    except OSError:
        return False
ports = sys.argv[2:]
with ThreadPoolExecutor(100) as pool:
    print(*[port for port, is_open in zip(ports, pool.map(answers, ports)) if is_open])
"""


def attacked(folder, num_hosts, **variables):
    """The result of a job of two ranks a host, and how many of its servers answered to a further
    host."""
    command = program("ring.py", folder)
    with simulated_hosts(num_hosts + 1) as hosts, ThreadPoolExecutor() as pool:
        if num_hosts == 1:
            command = launch(2, *command)
        else:
            command = hosts.launch(2, *command, num_hosts=num_hosts)
        job = pool.submit(hosts.run, 0, command, env={**VARIABLES, **variables})
        files = [folder / f"ports-{host}" for host in range(num_hosts)]
        while not all(file.exists() for file in files) and not job.done():
            time.sleep(0.1)
        answers = 0
        for address, file in zip(hosts.addresses, files, strict=False):
            ports = map(str, json.loads(file.read_text())) if file.exists() else ()
            stranger = [sys.executable, "-c", STRANGER, address, *ports]
            tried = hosts.run(num_hosts, stranger)
            assert tried.status == 0, tried
            answers += len(tried.stdout.split())
        (folder / "tried").touch()
        return job.result().json(), answers


@pytest.mark.parametrize("victims", [(0, 3), (1, 0), (2, 3)])
def test_no_result_is_wrong_when_ranks_die(tmp_path, victims):
    """At any moment, mostly in an exchange over both hosts, of which Open MPI can return garbage as
    a success."""
    with simulated_hosts(2) as hosts, ThreadPoolExecutor() as pool:
        command = hosts.launch(2, *program("sums.py", tmp_path, len(victims)), flags=("--elastic",))
        job = pool.submit(hosts.run, 0, command)
        while len(list(tmp_path.glob("ready-*"))) < 4:
            assert not job.done(), job.result()
            time.sleep(0.05)
        for rank in victims:
            time.sleep(1)
            for host in range(2):
                hosts.kill(host, f"OMPI_COMM_WORLD_RANK={rank}")
        assert job.result().json() == {"ranks": 2, "wrong": 0}


def test_ranks_on_two_hosts_know_their_place_and_add_up_undisturbed(tmp_path):
    """The second host's ranks know only the variables that bert-launch forwards, such as
    PYTHONPATH."""
    result, answers = attacked(tmp_path, 2)
    assert (result["num_nodes"], answers) == (2, 0)
    # rank, local_rank, local_size, node, host name: on the second host local_rank is not rank.
    of_hosts = [
        [0, 0, 2, 0, "host1"],
        [1, 1, 2, 0, "host1"],
        [2, 0, 2, 1, "host2"],
        [3, 1, 2, 1, "host2"],
    ]
    assert result["places"] == of_hosts


@pytest.mark.parametrize(("variables", "expected"), [({}, 0), ({"RINGBERT_OPEN_PORTS": "1"}, 2)])
def test_strangers_reach_a_job_on_one_host_only_if_its_user_allows_it(
    tmp_path, variables, expected
):
    result, answers = attacked(tmp_path, 1, **variables)
    assert (result["num_nodes"], answers) == (1, expected)
