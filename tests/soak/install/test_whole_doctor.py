"""bert-doctor with all its checks, on two ranks and two hosts; the examples as their README says."""

import json
import re
import sys

import pytest
from harness import jobs
from harness.hosts import available, simulated_hosts
from harness.jobs import launch, run
from harness.mpi import ENVIRONMENT, ROOT

DOCTOR = (sys.executable, "-m", "tasks.doctor")


def failed_in(output: str, status: int) -> dict:
    """The failed checks of a page in JSON, by name."""
    failed = {check["name"]: check for check in json.loads(output)["checks"] if check["status"] == "failed"}
    assert bool(failed) == bool(status), output
    return failed


def test_two_healthy_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "WAIT_S", 900)  # it computes for a minute or two
    done = run(launch(2, *DOCTOR, "--backend=ring", f"--output_dir={tmp_path}"))
    assert done.status == 0, done
    assert done.stdout.splitlines()[-1].startswith("green: ")
    for name in ("MPI", "sums", "ranks against one", "save and resume", "bf16 --xla on", "BERT-base"):
        assert f"\n  ok {name} " in done.stdout, done
    assert not list(tmp_path.iterdir()), "something is left in --output_dir"


def test_a_full_disk(tmp_path):
    """A file system of 32 MiB, mounted for this process only."""
    mount = f'mount -t tmpfs -o size=32m tmpfs {tmp_path} && exec "$@"'
    command = [*DOCTOR, "--quick", "--json", f"--output_dir={tmp_path}"]
    done = run(["unshare", "--mount", "sh", "-c", mount, "sh", *command])
    failed = failed_in(done.stdout, done.status)
    assert list(failed) == ["output folder"]
    assert "--output_dir" in failed["output folder"]["advice"]


def close_ports(two, host, ports):
    """Drops what arrives at these TCP ports, as a firewall does, by routing rules before the local table."""
    closing = f"add pref 50 iif eth0 ipproto tcp dport {ports} blackhole"
    for rule in ("add pref 100 lookup local", closing, "del pref 0"):
        assert two.run(host, ["ip", "rule", *rule.split()], timeout=20).status == 0


@pytest.mark.skipif(available() is not None, reason=available() or "")
def test_closed_ports_between_hosts():
    with simulated_hosts(2) as two:
        for backend, is_closed in (("ring", False), ("ring", True), ("mpi", True)):
            if is_closed and backend == "ring":
                close_ports(two, 1, "15000-31999")  # of TensorFlow's ring; MPI needs none of them
            command = two.launch(1, *DOCTOR, "--quick", "--json", "--device=cpu", f"--backend={backend}")
            done = two.run(0, command, env=ENVIRONMENT)
            failed = failed_in(done.stdout, done.status)
            assert list(failed) == (["backend"] if is_closed and backend == "ring" else []), backend
            if failed:
                assert "host1 cannot reach 10.99.0.2:" in failed["backend"]["text"]
                assert "RINGBERT_NETWORK" in failed["backend"]["text"]


@pytest.mark.parametrize(
    ("example", "last"),
    [
        ("lenet_loop.py", r"2 rank\(s\): 9[\d.]+% of 360 digits are right"),
        (
            "lenet_fit.py --model_file={tmp}/digits.keras",
            r"\S+digits\.keras: 9[\d.]+% of the test digits are right",
        ),
        ("lstm_text.py", r"0\.[01]\d praise: i found it never funny"),
        ("resnet_synthetic.py", r"Total img/sec on 2 rank\(s\): [\d.]+ \+-[\d.]+"),
        ("metrics_by_rank.py", r"mean over all digits: loss 0\.\d+, accuracy 0\.[89]\d+"),
    ],
)
def test_the_examples(example, last, tmp_path):
    name, *flags = example.format(tmp=tmp_path).split()
    done = run(launch(2, sys.executable, ROOT / "examples" / name, *flags))
    assert done.status == 0, done
    assert re.fullmatch(last, done.stdout.splitlines()[-1]), done
