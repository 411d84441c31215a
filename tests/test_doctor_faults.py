"""bert-doctor as users run it, on healthy ranks and on broken ones: what is red, and the exit status."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fake_driver
import hosts
import pytest
from mpi import ENVIRONMENT, ROOT

pytestmark = pytest.mark.slow

DOCTOR = (sys.executable, "-m", "tasks.doctor")
NO_HOSTS = hosts.available()
ONE_GPU = "a/0000:01:00.0/9.0"


def environment(**others: str) -> dict[str, str]:
    return {**os.environ, **ENVIRONMENT, **others}


def run(
    command: list[str] | tuple[str, ...], timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, env=environment(**variables), cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )


def launched(np: int, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "distributed.launch", "-np", str(np), "--", *DOCTOR, *arguments)


def red(done: subprocess.CompletedProcess) -> dict[str, dict[str, Any]]:
    """The failed checks of a page in JSON, by name; everything else must be as for a red page."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    page = json.loads(done.stdout)
    assert page["verdict"] == "red"
    return {check["name"]: check for check in page["checks"] if check["status"] == "failed"}


@pytest.mark.timeout(900)
def test_two_healthy_ranks(tmp_path: Path) -> None:
    """With the ring, which also shows the overlap of sums and backward pass."""
    page = run(launched(2, "--backend=ring", f"--output_dir={tmp_path}"), timeout=880)
    assert page.returncode == 0, page.stdout + page.stderr
    lines = page.stdout.splitlines()
    assert lines[0].startswith("RingBERT ")
    assert "2 ranks on 1 host" in lines[0]
    assert max(map(len, lines)) < 100
    assert lines[-1].startswith("green: ")
    for name in (
        "MPI",
        "sums by mpi",
        "sums by ring",
        "fp32 --xla on",
        "ranks against one",
        "overlap",
        "BERT-base",
    ):
        assert any(line.startswith(f"  ✓ {name} ") for line in lines), f"{name}\n{page.stdout}"
    assert "4 steps, and 2 steps, a checkpoint and 2 more: the same bits" in page.stdout
    assert not list(tmp_path.iterdir()), "something is left in --output_dir"


def test_another_mpis_launcher() -> None:
    """Two processes, each alone, with the variables of MPICH's launcher: one red page."""
    variables = {"PMI_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [*DOCTOR, "--json"], env=environment(**variables, PMI_RANK=str(rank)), cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [1, 1], outputs
    assert outputs[1][0] == ""
    page = json.loads(outputs[0][0])
    failed = {check["name"]: check for check in page["checks"] if check["status"] == "failed"}
    assert list(failed) == ["MPI"]
    assert "PMI_SIZE=2: the launcher started 2 processes, but each is alone" in failed["MPI"]["text"]
    assert "bert-launch" in failed["MPI"]["advice"][0]


@pytest.mark.skipif(fake_driver.COMPILER is None, reason="no C compiler")
def test_a_gpu_that_tensorflow_does_not_see(tmp_path: Path) -> None:
    """The driver shows a GPU, on rank 1 only in the second run; TensorFlow's CPU build sees none."""
    driver = fake_driver.build(tmp_path)
    failed = red(run([*DOCTOR, "--quick", "--json"], **fake_driver.environment(driver, ONE_GPU)))
    assert list(failed) == ["GPUs"]
    assert "this machine has 1 NVIDIA GPUs, but TensorFlow" in failed["GPUs"]["text"]
    assert "--device cpu" in failed["GPUs"]["advice"][0]

    on_rank_1 = fake_driver.environment(driver, "", FAKE_GPUS_1=ONE_GPU)
    arguments = (*launched(2), "--quick", "--json")
    command = launch_with(arguments, "FAKE_GPUS", "FAKE_GPUS_1")
    failed = red(run(command, **on_rank_1))
    assert list(failed) == ["GPUs"]
    assert failed["GPUs"]["text"].startswith("rank 1: this machine has 1 NVIDIA GPUs")


def launch_with(command: Sequence[str], *names: str) -> list[str]:
    """bert-launch's command, with more variables for the ranks."""
    more = " ".join(f"-x {name}" for name in names)
    place = command.index("--")
    return [*command[:place], f"--mpi-args={more}", *command[place:]]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting needs root and unshare")
def test_a_full_disk(tmp_path: Path) -> None:
    """A file system of 32 MiB, mounted for this process only."""
    mount = f'mount -t tmpfs -o size=32m tmpfs {tmp_path} && exec "$@"'
    arguments = [*DOCTOR, "--quick", "--json", f"--output_dir={tmp_path}"]
    failed = red(run(["unshare", "--mount", "sh", "-c", mount, "sh", *arguments]))
    assert list(failed) == ["output folder"]
    assert "No space left on device" in failed["output folder"]["text"]
    assert "--output_dir" in failed["output folder"]["advice"][0]


def close_ports(two: hosts.Hosts, host: int, ports: str) -> None:
    """Drops what arrives at these TCP ports, as a firewall does, by routing rules before the local table."""
    for rule in (
        "add pref 100 lookup local",
        f"add pref 50 iif eth0 ipproto tcp dport {ports} blackhole",
        "del pref 0",
    ):
        done = two.run(host, ["ip", "rule", *rule.split()], timeout=20)
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(NO_HOSTS is not None, reason=NO_HOSTS or "")
def test_a_closed_port_between_hosts() -> None:
    command = [*DOCTOR, "--quick", "--json", "--device=cpu"]
    with hosts.two_hosts() as two:
        healthy = two.mpirun(1, [*command, "--backend=ring"], timeout=180, env=ENVIRONMENT)
        assert healthy.returncode == 0, healthy.stdout + healthy.stderr
        page = {check["name"]: check for check in json.loads(healthy.stdout)["checks"]}
        assert [page[name]["status"] for name in ("ports", "clocks", "sums by ring")] == ["ok"] * 3
        close_ports(two, 1, "15000-31999")
        failed = red(two.mpirun(1, [*command, "--backend=ring"], timeout=180, env=ENVIRONMENT))
        assert list(failed) == ["ports"]
        assert "rank 0: host1 cannot reach host2 at 10.99.0.2:" in failed["ports"]["text"]
        assert "timed out" in failed["ports"]["text"]
        assert "15000 to 31999" in failed["ports"]["advice"][0]
        # MPI needs none of these ports.
        passed = two.mpirun(1, [*command, "--backend=mpi"], timeout=180, env=ENVIRONMENT)
        assert passed.returncode == 0, passed.stdout + passed.stderr
        page = {check["name"]: check["status"] for check in json.loads(passed.stdout)["checks"]}
        assert (page["ports"], page["sums by mpi"]) == ("warning", "ok")


@pytest.mark.skipif(NO_HOSTS is not None, reason=NO_HOSTS or "")
def test_hosts_between_which_mpi_is_closed() -> None:
    """MPI itself waits for ever; the page comes from the process that waits."""
    program = "from tasks.doctor import program; program.JOIN_S = 10; program.main()"
    ports = ["--mca", "btl_tcp_port_min_v4", "40000", "--mca", "btl_tcp_port_range_v4", "100"]
    with hosts.two_hosts() as two:
        for host in range(2):
            close_ports(two, host, "40000-40099")
        done = two.mpirun(
            1, [sys.executable, "-c", program, "--json"], timeout=120, env=ENVIRONMENT, mpi_args=ports
        )
    assert done.returncode != 0
    page = json.loads(done.stdout)
    assert [check["text"] for check in page["checks"]] == ["the ranks have not reached each other within 10 s"]


def test_a_reader_who_has_seen_enough() -> None:
    """As with `bert-doctor | head -1`."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*DOCTOR, "--quick"], env=environment(), cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, text=True,
        timeout=120,
    )  # fmt: skip
    os.close(write_end)
    assert done.returncode == 0
    assert "BrokenPipe" not in done.stderr
