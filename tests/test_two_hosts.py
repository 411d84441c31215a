"""Ranks on two hosts find their place on each, and add up over the network between them."""

import json
import re
import shlex
import subprocess
import sys
import textwrap
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hosts import TCP_ONLY, available, simulated_hosts, two_hosts

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tests" / "programs" / "two_hosts.py"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(available() is not None, reason=available() or "")]


def test_ranks_on_two_hosts_know_their_place_and_add_up() -> None:
    with two_hosts() as hosts:
        # The second host's ranks know only the variables that bert-launch forwards, such as PYTHONPATH.
        done = hosts.mpirun(2, [sys.executable, str(PROGRAM)], timeout=180, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["size"] == 4
    assert result["num_nodes"] == 2
    # rank, local_rank, local_size, node, host name: on the second host local_rank is not rank.
    assert result["places"] == [
        [0, 0, 2, 0, "host1"],
        [1, 1, 2, 0, "host1"],
        [2, 0, 2, 1, "host2"],
        [3, 1, 2, 1, "host2"],
    ]


def test_work_for_a_machine_is_done_by_its_first_rank_and_first_by_rank_0() -> None:
    """Its results are files: downloaded data, prepared rows."""
    program = textwrap.dedent(
        """
        import json, time
        from distributed.world import World
        with World.join(None) as world:
            calls = []
            def work():
                start = time.time()
                time.sleep(0.3)
                calls.append((start, time.time()))
                return world.rank
            done_by = world.on_each_machine(work)
            outcomes = world.gather((calls, done_by))
            if outcomes is not None:
                print(json.dumps(outcomes))
        """
    )
    with two_hosts() as hosts:
        done = hosts.mpirun(2, [sys.executable, "-c", program], timeout=120, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert [len(calls) for calls, _ in outcomes] == [1, 0, 1, 0]
    assert [done_by for _, done_by in outcomes] == [0, 0, 2, 2]
    # On a shared file system the second machine finds the first one's work finished.
    assert outcomes[0][0][0][1] <= outcomes[2][0][0][0]


def test_a_program_that_hangs_is_ended_on_both_hosts() -> None:
    mark = f"hang-{uuid.uuid4()}"
    with two_hosts() as hosts:
        hang = ["sh", "-c", "hostname; sleep 1000", mark]
        with pytest.raises(subprocess.TimeoutExpired) as expired:
            hosts.mpirun(1, hang, timeout=5)
        assert expired.value.stdout is not None
        assert sorted(expired.value.stdout.split()) == [b"host1", b"host2"]
        after = hosts.mpirun(1, ["hostname"], timeout=30)  # the hosts themselves live on
        assert after.returncode == 0, after.stdout + after.stderr
        assert sorted(after.stdout.split()) == ["host1", "host2"]
    assert not hosts.folder.exists()
    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in read_if_there(path)]
    assert not running


def read_if_there(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("is_cut", [False, True], ids=["host killed", "link cut"])
def test_a_job_goes_on_without_a_lost_host(tmp_path: Path, is_cut: bool, number: int) -> None:
    """After a cut link no rank notices; here one is killed too, and mpirun cannot end those of the other host."""
    with simulated_hosts(number) as hosts:
        own = [sys.executable, str(ROOT / "tests" / "programs" / "counting.py"), "slowly", str(tmp_path)]
        where = ",".join(f"{address}:1" for address in hosts.addresses)
        mpi_args = shlex.join([*TCP_ONLY, *hosts.agent])
        launch = [
            sys.executable,
            "-m",
            "distributed.launch",
            "-np",
            str(number),
            "-H",
            where,
            "--mpi-args",
            mpi_args,
        ]
        env = {"PYTHONPATH": str(ROOT)}
        with ThreadPoolExecutor() as pool:
            running = pool.submit(hosts.run, 0, [*launch, "--restarts", "3", "--", *own], timeout=150, env=env)
            while not (tmp_path / "count").exists() or int((tmp_path / "count").read_text()) < 5:
                assert not running.done(), running.result()
                time.sleep(0.1)
            hosts.lose(1, is_cut)
            if is_cut:
                hosts.kill(0, "OMPI_COMM_WORLD_RANK=")
            done = running.result()
    assert done.returncode == 0, done.stdout + done.stderr
    starts = [line.split() for line in done.stdout.splitlines() if line.startswith("from")]
    assert [start[2] for start in starts] == [str(number), str(number - 1)]
    assert int(starts[1][1].rstrip(",")) >= 5
    printed = [line for line in done.stderr.splitlines() if line.startswith("bert-launch: ")]  # and MPI's own
    # mpirun says nothing of a lost host, and may say who was killed, or who noticed that first.
    lost = r"the ranks ended before the program was complete: was a host lost\?"
    killed = r"rank (0 on host host1|2 on host host3) (ended before the others|was killed)"
    assert re.match(f"bert-launch: {killed if is_cut else lost}", printed[0]), done.stderr
    left = "1 rank on 10.99.0.1" if number == 2 else "2 ranks on 10.99.0.1, 10.99.0.3"
    without = f"without 10.99.0.2 (ssh: connect to host host2 port 22: No route to host): {left}"
    assert printed.count(f"bert-launch: {without}") == 1, done.stderr
