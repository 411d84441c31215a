"""scripts/slurm.sh with stand-ins for Slurm's `srun` and `scontrol`."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from harness.mpi import HANGS_S
from harness.parsing import ROOT

from distributed.launch import main

SCRIPT = ROOT / "scripts" / "slurm.sh"
SRUN = """#!/bin/bash
# Which stream this goes to depends on Slurm's version.
if [[ $* == --mpi=list ]]; then cat "$STUBS/mpi" >&2; exit; fi
echo "$*" >> "$STUBS/srun.log"
while [[ $1 == --* ]]; do shift; done
exec "$@"  # so that it gets SIGUSR1, which srun hands on
"""
LOGS = '#!/bin/sh\necho "$*" >> "$STUBS/${0##*/}.log"\nexit "${SCONTROL_STATUS:-0}"\n'
OFFERED = {  # by `srun --mpi=list` of Slurm 22, of Slurm 20 and others
    "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\n"
    "specific pmix plugin versions available: pmix_v4\n": "pmix",
    "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: pmix_v2\nsrun: pmix_v10\n": "pmix_v10",
    "MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmi2\n": "pmi2",
}


class Stubs:
    """A folder with the stubs, first on PATH, and what they were called with."""

    def __init__(self, folder):
        self.folder = folder
        for name, text in (("srun", SRUN), ("scontrol", LOGS), ("bert-launch", LOGS)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "mpi").write_text(next(iter(OFFERED)))

    def calls(self, name):
        log = self.folder / f"{name}.log"
        return log.read_text().splitlines() if log.exists() else []

    def start(self, *command, **changes):
        ours = ("SLURM_", "RINGBERT_", "HF_HUB_OFFLINE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        variables = {
            "PATH": f"{self.folder}:{kept['PATH']}",
            "STUBS": str(self.folder),
            "SLURM_JOB_ID": "17",
        }
        environment = kept | variables | changes
        return subprocess.Popen(
            [SCRIPT, *command], env=environment, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )

    def run(self, *command, **changes):
        """Status and standard error."""
        job = self.start(*command, **changes)
        error = job.communicate(timeout=HANGS_S)[1]
        return job.returncode, error


@pytest.fixture
def stubs(tmp_path_factory):
    return Stubs(tmp_path_factory.mktemp("stubs"))


def test_the_status_of_the_ranks_passes_through_and_saved_means_requeued(stubs):
    for status in (0, 137):
        assert stubs.run("bash", "-c", f"exit {status}")[0] == status
    status, error = stubs.run("bash", "-c", "exit 75", SCONTROL_STATUS="1")
    assert (status, "not requeued" in error) == (75, True)
    assert stubs.run("bash", "-c", "exit 75")[0] == 0
    assert stubs.calls("scontrol") == ["requeue 17"] * 2


@pytest.mark.parametrize(("after", "status", "requeued"), [("exit 75", 0, 1), ("exit 4", 4, 0)])
def test_the_signal_reaches_the_ranks_and_the_shell_waits_for_their_end(
    stubs, tmp_path, after, status, requeued
):
    """Bash's `wait` returns 138 when a trap runs; the status must be that of the ranks, which take
    a while."""
    ready, done = tmp_path / "ready", tmp_path / "done"
    wait = f"touch {ready}; for i in {{1..1200}}; do sleep 0.05; done"
    job = stubs.start("bash", "-c", f"trap 'sleep 0.5; touch {done}; {after}' USR1; {wait}")
    while not ready.exists():
        assert job.poll() is None
        time.sleep(0.02)
    job.send_signal(signal.SIGUSR1)
    job.communicate(timeout=HANGS_S)
    assert (job.returncode, done.exists()) == (status, True)
    assert stubs.calls("scontrol") == ["requeue 17"] * requeued


def test_ranks_that_broke_off_start_again_within_the_job(stubs, tmp_path):
    """As often as the user says; not after an error of one line, nor after the signal."""
    show = f'echo "$RINGBERT_RESTART $RINGBERT_JOB_ID $PMIX_MCA_psec" >> {tmp_path}/starts'
    twice = f"{show}; [ $(wc -l < {tmp_path}/starts) = 3 ] && exit 0; exit 137"
    status, error = stubs.run("sh", "-c", twice, RINGBERT_RESTARTS="5", SLURM_RESTART_COUNT="4")
    assert status == 0
    assert error.count("broke off with status 137: restart") == 2
    starts = (tmp_path / "starts").read_text().splitlines()
    assert starts == [f"{number} slurm-17 native" for number in (4, 5, 6)]
    status, error = stubs.run("sh", "-c", "exit 137")
    assert (status, len(stubs.calls("scontrol"))) == (137, 0)
    assert "status 137: one was killed" in error.splitlines()[-1]
    for final in (1, 2):
        status, error = stubs.run("sh", "-c", f"exit {final}", RINGBERT_RESTARTS="5")
        assert (status, error.count("start 1"), "restart" in error) == (final, 1, False)


def test_the_launcher_prints_the_script(capsys):
    def printed(*argv):
        with pytest.raises(SystemExit, match="0"):
            main([*argv])
        return capsys.readouterr().out

    assert printed("--print-slurm", "gpu") == SCRIPT.read_text()
    cpu = printed("-np", "2", "--print-slurm=cpu", "--", "bert-squad")
    assert "#SBATCH --gpus" not in cpu
    assert len(SCRIPT.read_text().splitlines()) - len(cpu.splitlines()) == 1


def test_the_mpi_that_srun_offers_or_that_is_given_or_mpirun(stubs):
    for offered, chosen in OFFERED.items():
        (stubs.folder / "mpi").write_text(offered)
        assert stubs.run("true", SLURM_CPUS_PER_TASK="8")[0] == 0
        assert stubs.calls("srun")[-1] == f"--mpi={chosen} --export=ALL --cpus-per-task=8 true"
    assert stubs.run("true", RINGBERT_MPI="pmi2")[0] == 0
    assert stubs.calls("srun")[-1] == "--mpi=pmi2 --export=ALL --cpus-per-task=1 true"
    assert stubs.run("true", "--flag", RINGBERT_LAUNCHER="mpirun", SLURM_NTASKS="8")[0] == 0
    assert stubs.calls("bert-launch") == ["-np 8 -- true --flag"]
    seeded = ("true", "--seed", "%a", "--output_dir=out/seed-%a")
    assert stubs.run(*seeded, SLURM_ARRAY_TASK_ID="3")[0] == 0
    assert stubs.calls("srun")[-1].endswith(" true --seed 3 --output_dir=out/seed-3")


def test_mistakes_are_one_line_and_start_nothing(stubs):
    (stubs.folder / "mpi").write_text("MPI plugin types are...\n\tnone\n\tcray_shasta\n")
    for command, changes, named in (
        ([], {}, "sbatch"),
        (["true"], {"SLURM_JOB_ID": ""}, "Slurm"),
        (["bert-nothing"], {}, "RINGBERT_VENV"),
        (["true"], {"RINGBERT_LAUNCHER": "prun"}, "RINGBERT_LAUNCHER=prun"),
        (["true"], {}, "pmix"),  # never a fall-back to ranks that do not see each other
    ):
        status, error = stubs.run(*command, **changes)
        assert (status, error.count("\n")) == (1, 1), error
        assert error.startswith("slurm.sh: error: ")
        assert named in error
    assert stubs.calls("srun") == stubs.calls("bert-launch") == []


def test_what_the_ranks_find_in_their_environment(stubs, tmp_path):
    """Slurm binds no rank to a GPU of its own; the cache and whether there is a network are passed
    on."""
    show = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
    bound = {
        "SLURM_GPUS_PER_TASK": "1",
        "SLURM_TRES_PER_TASK": "gres/gpu:1",
        "SLURM_GPU_BIND": "single:1",
    }
    variables = {"HOME": "/home/kim", "HF_HUB_OFFLINE": "1", **bound}
    assert stubs.run(sys.executable, "-c", show, str(tmp_path / "shown"), **variables)[0] == 0
    shown = json.loads((tmp_path / "shown").read_text())
    assert not bound.keys() & shown.keys()
    assert (shown["RINGBERT_CACHE"], shown["HF_HUB_OFFLINE"]) == ("/home/kim/.cache/ringbert", "1")
