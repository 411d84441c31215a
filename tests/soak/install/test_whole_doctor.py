"""bert-doctor with all its checks, on two ranks and two hosts; the examples that CI does not
run."""

import json
import re
import sys

import pytest
from harness.hosts import available, simulated_hosts
from harness.jobs import launch, run, shell
from harness.mpi import ENVIRONMENT, ROOT

DOCTOR = (sys.executable, "-m", "tasks.doctor")


def test_two_healthy_ranks(tmp_path):
    """It computes for a minute or two."""
    done = shell(*launch(2, *DOCTOR, "--backend=ring", f"--output_dir={tmp_path}"), wait_s=900)
    assert done.stdout.splitlines()[-1].startswith("green: ")
    for name in (
        "MPI",
        "sums",
        "ranks against one",
        "save and resume",
        "bf16 --xla off",
        "BERT-base",
    ):
        assert f"\n  ok {name} " in done.stdout, done
    assert "% of 2 times one rank's speed" in " ".join(done.stdout.split())
    assert not list(tmp_path.iterdir()), "something is left in --output_dir"


def failed_in(done):
    """The failed checks of a page in JSON, by name."""
    failed = {
        check["name"]: check
        for check in json.loads(done.stdout)["checks"]
        if check["status"] == "failed"
    }
    assert bool(failed) == bool(done.status), done
    return failed


def test_a_full_disk(tmp_path):
    """A file system of 32 MiB, mounted for this process only."""
    mount = f'mount -t tmpfs -o size=32m tmpfs {tmp_path} && exec "$@"'
    command = [*DOCTOR, "--quick", "--json", f"--output_dir={tmp_path}"]
    failed = failed_in(run(["unshare", "--mount", "sh", "-c", mount, "sh", *command]))
    assert list(failed) == ["output folder"]
    assert "--output_dir" in failed["output folder"]["text"]


@pytest.mark.skipif(available() is not None, reason=available() or "")
def test_closed_ports_between_hosts():
    """Of TensorFlow's ring; MPI needs none of them."""
    with simulated_hosts(2) as two:
        # A firewall: routing rules before the local table drop what arrives.
        for rule in (
            "add pref 100 lookup local",
            "add pref 50 iif eth0 ipproto tcp dport 15000-31999 blackhole",
            "del pref 0",
        ):
            assert two.run(1, ["ip", "rule", *rule.split()]).status == 0
        command = two.launch(1, *DOCTOR, "--quick", "--json", "--device=cpu")
        failed = failed_in(two.run(0, [*command, "--backend=ring"], env=ENVIRONMENT))
        assert list(failed) == ["backend"]
        assert "host1 cannot reach 10.99.0.2:" in failed["backend"]["text"]
        assert "RINGBERT_NETWORK" in failed["backend"]["text"]
        assert not failed_in(two.run(0, [*command, "--backend=mpi"], env=ENVIRONMENT))


@pytest.mark.parametrize(
    ("example", "last"),
    [
        ("lstm_text.py", r"0\.[01]\d praise: i found it never funny"),
        ("resnet_synthetic.py", r"Total img/sec on 2 rank\(s\): [\d.]+ \+-[\d.]+"),
    ],
)
def test_the_examples_that_ci_does_not_run(example, last):
    done = shell(*launch(2, sys.executable, ROOT / "examples" / example))
    assert re.fullmatch(last, done.stdout.splitlines()[-1]), done
