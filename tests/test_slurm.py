"""scripts/slurm.sh with stand-ins for Slurm's `srun` and `scontrol`, and nodes without a network."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "slurm.sh"

# As srun does, it stays between the job's shell and the command, hands SIGUSR1 on and takes the status over.
SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys
folder = os.environ["STUBS"]
if sys.argv[1:] == ["--mpi=list"]:
    sys.stderr.write(open(folder + "/mpi").read())  # which stream depends on Slurm's version
    sys.exit()
with open(folder + "/srun.log", "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
command = sys.argv[1:]
while command[0].startswith("--"):
    del command[0]
process = None
signal.signal(signal.SIGUSR1, lambda *_: process.send_signal(signal.SIGUSR1))
process = subprocess.Popen(command)
status = process.wait()
sys.exit(status if status >= 0 else 128 - status)
"""
SCONTROL = """#!/bin/sh
echo "$*" >> "$STUBS/scontrol.log"
exit "${SCONTROL_STATUS:-0}"
"""
BERT_LAUNCH = """#!/bin/sh
echo "$*" >> "$STUBS/launch.log"
"""
# What Slurm 22.05 prints, what 20.11 prints, and lists with less in them.
SLURM_22 = """MPI plugin types are...
\tpmix
\tnone
\tcray_shasta
\tpmi2
specific pmix plugin versions available: pmix_v4
"""
SLURM_20 = "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: pmix_v2\nsrun: pmix_v3\n"


class Stubs:
    """A folder with the stubs, first on PATH, and what they were called with."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("bert-launch", BERT_LAUNCH)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.offer(SLURM_22)

    def offer(self, listed: str) -> None:
        (self.folder / "mpi").write_text(listed)

    def calls(self, name: str) -> list[str]:
        log = self.folder / f"{name}.log"
        return log.read_text().splitlines() if log.exists() else []

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM_", "RINGBERT_")) and name != "HF_HUB_OFFLINE"
        }
        path = os.pathsep.join([str(self.folder), os.environ["PATH"]])
        return {**kept, "PATH": path, "STUBS": str(self.folder), "SLURM_JOB_ID": "17", **changes}

    def run(self, *command: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *command],
            env=self.environment(**changes),
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
        )

    @contextmanager
    def started(self, *command: str, **changes: str) -> Iterator[subprocess.Popen[str]]:
        """The job's shell, which is ended with all that it started."""
        job = subprocess.Popen(
            [SCRIPT, *command],
            env=self.environment(**changes),
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            yield job
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
            job.communicate()


@pytest.fixture
def stubs(tmp_path) -> Stubs:
    (tmp_path / "stubs").mkdir()
    return Stubs(tmp_path / "stubs")


def wait_for(path: Path, job: subprocess.Popen[str], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path} after {seconds} s"
        assert job.poll() is None, job.stderr.read() if job.stderr else ""
        time.sleep(0.02)


# -- the script ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 1, 2, 137])
def test_the_status_of_the_ranks_passes_through(stubs, status):
    done = stubs.run("bash", "-c", f"exit {status}")
    assert done.returncode == status, done.stderr
    assert stubs.calls("scontrol") == []


def test_saved_means_requeued(stubs):
    done = stubs.run("bash", "-c", "exit 75")
    assert done.returncode == 0, done.stderr
    assert stubs.calls("scontrol") == ["requeue 17"]


def test_a_refused_requeue_is_told_and_keeps_the_status(stubs):
    done = stubs.run("bash", "-c", "exit 75", SCONTROL_STATUS="1")
    assert done.returncode == 75
    assert "the run is saved, but the job was not requeued" in done.stderr


@pytest.mark.parametrize(("after", "status", "requeued"), [("exit 75", 0, 1), ("exit 4", 4, 0), ("exit 0", 0, 0)])
def test_the_signal_reaches_the_ranks_and_the_shell_waits_for_their_end(stubs, tmp_path, after, status, requeued):
    """Bash's `wait` returns 138 when a trap runs; the status must be that of the ranks, which take a while."""
    ready, done = tmp_path / "ready", tmp_path / "done"
    ranks = f"trap 'sleep 0.5; touch {done}; {after}' USR1; touch {ready}; while :; do sleep 0.05; done"
    with stubs.started("bash", "-c", ranks) as job:
        wait_for(ready, job)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(30) == status
    assert done.exists()
    assert stubs.calls("scontrol") == ["requeue 17"] * requeued


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (SLURM_22, "pmix"),
        (SLURM_20, "pmix_v3"),
        ("srun: MPI types are...\nsrun: pmix_v9\nsrun: pmix_v10\n", "pmix_v10"),
        ("MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmi2\n", "pmi2"),
    ],
)
def test_the_mpi_that_srun_offers(stubs, offered, chosen):
    stubs.offer(offered)
    assert stubs.run("true", SLURM_CPUS_PER_TASK="8").returncode == 0
    assert stubs.calls("srun") == [f"--mpi={chosen} --export=ALL --cpus-per-task=8 true"]


def test_a_given_mpi_is_taken(stubs):
    assert stubs.run("true", RINGBERT_MPI="pmi2").returncode == 0
    assert stubs.calls("srun") == ["--mpi=pmi2 --export=ALL --cpus-per-task=1 true"]


def test_mpirun_in_the_place_of_srun(stubs):
    assert stubs.run("true", "--flag", RINGBERT_LAUNCHER="mpirun", SLURM_NTASKS="8").returncode == 0
    assert stubs.calls("launch") == ["-np 8 -- true --flag"]
    assert stubs.calls("srun") == []


@pytest.mark.parametrize(
    ("command", "changes", "message"),
    [
        ([], {}, "no program: sbatch"),
        (["true"], {"SLURM_JOB_ID": ""}, "not in a Slurm job"),
        (["bert-nothing"], {}, "bert-nothing is not on PATH: set RINGBERT_VENV"),
        (["true"], {"RINGBERT_LAUNCHER": "prun"}, "RINGBERT_LAUNCHER=prun: srun or mpirun"),
    ],
)
def test_mistakes_are_one_line(stubs, command, changes, message):
    done = stubs.run(*command, **changes)
    assert done.returncode == 1
    assert done.stderr.startswith(f"slurm.sh: error: {message}")
    assert done.stderr.count("\n") == 1
    assert stubs.calls("srun") == []


def test_no_mpi_of_srun_is_an_error_not_a_fall_back(stubs):
    stubs.offer("MPI plugin types are...\n\tnone\n\tcray_shasta\n")
    done = stubs.run("true")
    assert done.returncode == 1
    assert done.stderr.startswith("slurm.sh: error: srun --mpi=list offers neither pmix nor pmi2")
    assert stubs.calls("srun") == stubs.calls("launch") == []


def test_what_the_ranks_find_in_their_environment(stubs, tmp_path):
    """Slurm binds no rank to a GPU of its own; the cache and whether there is a network are passed on."""
    show = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
    bound = {"SLURM_GPUS_PER_TASK": "1", "SLURM_TRES_PER_TASK": "gres/gpu:1", "SLURM_GPU_BIND": "single:1"}

    def shown(**changes: str) -> Mapping[str, str]:
        done = stubs.run(sys.executable, "-c", show, str(tmp_path / "shown"), **bound, **changes)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "shown").read_text())

    default, passed_on = shown(HOME="/home/kim"), shown(RINGBERT_CACHE="/tmp/ringbert", HF_HUB_OFFLINE="1")
    assert not bound.keys() & default.keys()
    assert default["RINGBERT_CACHE"] == "/home/kim/.cache/ringbert"
    assert default["HF_HUB_OFFLINE"] == "0"
    assert passed_on["RINGBERT_CACHE"] == "/tmp/ringbert"
    assert passed_on["HF_HUB_OFFLINE"] == "1"


def test_sbatch_reads_the_options_that_the_script_relies_on():
    """Slurm stops at the first line that is neither empty nor a comment."""
    head = SCRIPT.read_text().partition("\nset ")[0].splitlines()
    options = [line.removeprefix("#SBATCH ") for line in head if line.startswith("#SBATCH ")]
    assert {"--signal=B:USR1@120", "--requeue", "--open-mode=append"} <= set(options)
    assert all(line.startswith("#") for line in head)


@pytest.mark.slow
def test_a_training_that_is_signalled_and_requeued_finishes(stubs, tmp_path):
    """SIGUSR1 to the job's shell while bert-squad trains: saved, requeued once; started again it goes on."""
    docs, output = tmp_path / "docs", tmp_path / "output"
    subprocess.run([sys.executable, ROOT / "scripts/make_docs_squad.py", docs], check=True, timeout=120)
    command = [
        sys.executable, "-m", "tasks.squad", f"--vocab_file={docs}/vocab.txt",
        f"--bert_config_file={docs}/bert_config.json", f"--train_file={docs}/train.json", "--do_train",
        "--max_seq_length=96", "--max_query_length=24", "--max_train_examples=640", "--train_batch_size=8",
        "--num_train_epochs=1", "--save_checkpoints_steps=10", "--log_steps=1", f"--output_dir={output}",
    ]  # fmt: skip
    steps = 80
    changes = {"RINGBERT_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    with stubs.started(*command, **changes) as job:
        wait_for(output / "checkpoints" / "rows-000000000080", job)
        job.send_signal(signal.SIGUSR1)
        printed = job.communicate(timeout=120)[1]
    assert job.returncode == 0, printed
    assert "saved after step" in printed
    assert stubs.calls("scontrol") == ["requeue 17"]
    saved = max(int(path.name.removeprefix("rows-")) // 8 for path in (output / "checkpoints").iterdir())
    assert 10 < saved < steps
    assert not (output / "result.json").exists()

    again = stubs.run(*command, **changes, SLURM_RESTART_COUNT="1")
    assert again.returncode == 0, again.stderr
    assert "job 17, start 2: srun" in again.stderr
    assert f"checkpoint {output}/checkpoints/rows-{8 * saved:012d}, step {saved} of {steps}" in again.stderr
    assert "windows, 0.00% [UNK] (cached)" in again.stderr
    assert (output / "result.json").exists()
    assert stubs.calls("scontrol") == ["requeue 17"]
    logged = [json.loads(line)["step"] for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert logged == list(range(1, steps + 1))


# -- nodes without a network --------------------------------------------------------------------------------------


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub that has no model; it counts who asks."""

    asked: list[str] = []  # noqa: RUF012 — of the class, which the server makes an object of for each request

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_one_rank_alone_looks_at_the_hub(tmp_path):
    """Two ranks and a model that the hub does not have: asked for once, and one line says so."""
    Hub.asked.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", "HF_HOME": str(tmp_path),
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "distributed.launch", "-np", "2", "--", sys.executable, "-m", "tasks.squad",
        "--model=someone/some-bert", "--do_predict", f"--predict_file={SCRIPT}", f"--output_dir={tmp_path}/out",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=ROOT)
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if "error:" in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("bert-squad: error: --model someone/some-bert")
    assert "Traceback" not in done.stderr
    assert len([path for path in Hub.asked if "someone/some-bert" in path]) == 1, Hub.asked


def test_without_a_network_a_missing_model_is_refused_with_the_reason():
    """conftest.py sets HF_HUB_OFFLINE=1 before anything imports the hub's library, as the job's script does."""
    from bert import weights
    from ringbert.errors import InputError

    with pytest.raises(InputError, match=r"--model someone/some-bert: .*HF_HUB_OFFLINE") as failed:
        weights.find("someone/some-bert")
    assert "\n" not in str(failed.value)
