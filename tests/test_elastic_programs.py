"""A program whose ranks are killed at its start, in training and in prediction ends as if nothing had happened."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import texts
from classifier_runs import TRAIN, model_flags, own_files, scores_in, table_in, write_data
from mpi import ENVIRONMENT, ROOT
from program_runs import metrics_in

from distributed import records

pytestmark = pytest.mark.slow
STEPS = 90


def ranks_of(job: Path) -> dict[int, int]:
    """The process ids of a job's ranks by their numbers at the start; `job` is its output folder."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            variables = dict(
                line.split(b"=", 1) for line in (folder / "environ").read_bytes().split(b"\0") if line
            )
            if f"--output_dir={job}".encode() in arguments and b"OMPI_COMM_WORLD_RANK" in variables:
                found[int(variables[b"OMPI_COMM_WORLD_RANK"])] = int(folder.name)
    return found


def run_with_kills(
    job: Path, flags: list[str], kills: list[tuple[str | Path, int]], ranks: int, *launch_flags: str
) -> str:
    """Runs bert-classifier; each rank is killed when the pattern before it is printed, or the path exists. Returns
    all that was printed."""
    launch = [sys.executable, "-m", "distributed.launch", f"-np={ranks}", *launch_flags, "--"]
    argv = [*launch, sys.executable, "-m", "tasks.classifier", *flags, f"--output_dir={job}"]
    printed, at = job.with_suffix(".err"), 0
    with printed.open("w") as file:
        process = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, **ENVIRONMENT}, stderr=file)
        for pattern, rank in kills:
            while True:
                match = None if isinstance(pattern, Path) else re.compile(pattern).search(printed.read_text(), at)
                if match or (isinstance(pattern, Path) and pattern.exists()):
                    break
                assert process.poll() is None, printed.read_text()
                time.sleep(0.02)
            at = match.end() if match else at
            os.kill(ranks_of(job)[rank], signal.SIGKILL)
        status = process.wait(timeout=240)
    assert status == 0, printed.read_text()
    return printed.read_text()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("batch", ["keep", "shrink"])
def test_a_classifier_whose_ranks_are_killed(batch, tmp_path):
    data = write_data(tmp_path / "data")
    tests = texts.make_examples(3000, 4)
    texts.write_lines(data / "test.jsonl", *(json.dumps({"more": e.second, "body": e.first}) for e in tests))
    flags = [
        *model_flags(data), *own_files(data), "--do_train", "--do_eval", "--do_predict", "--learning_rate=1e-3",
        "--lr_scaling=none", "--train_batch_size=8", f"--elastic_batch={batch}", f"--num_train_steps={4 * STEPS}",
        "--log_steps=1", "--eval_batch_size=8", "--resume=never",
    ]  # fmt: skip
    kills: list[tuple[str | Path, int]] = [("plan: ", 2), ("weights: ", 0), ("trained for", 3)]
    printed = run_with_kills(tmp_path / "out", flags, kills, 4, "--elastic")
    for rank in (2, 0, 3):
        assert len(re.findall(f"rank {rank} on .* died", printed)) == 1, printed
    assert records.MARK not in printed
    assert "NBC_Progress" not in printed, printed
    assert "Traceback" not in printed, printed
    assert scores_in(tmp_path / "out")["eval_accuracy"] > 0.8
    assert len(table_in(tmp_path / "out" / "test_results.tsv")) == 3000
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["world_size"] == 1
    lines = [line for line in metrics_in(tmp_path / "out") if "loss" in line]
    positions = [line["rows"] for line in lines]
    assert positions == sorted(set(positions)), "rows were trained on twice"
    if batch == "keep":
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
        assert positions == [32 * step for step in range(1, STEPS + 1)]
    else:
        assert {b - a for a, b in zip([0, *positions], positions, strict=False)} <= {24, 16, 8}
    assert len(TRAIN) * 3 == positions[-1] or batch == "shrink"


def test_a_run_that_began_anew_is_not_begun_anew_by_a_restart(tmp_path):
    """--resume never is for the first start only."""
    data, out = write_data(tmp_path / "data"), tmp_path / "out"
    flags = [
        *model_flags(data), *own_files(data), "--do_train", "--do_eval", "--learning_rate=1e-3", "--resume=never",
        "--lr_scaling=none", "--train_batch_size=16", f"--num_train_steps={2 * STEPS}", "--log_steps=1",
        "--save_checkpoints_steps=10",
    ]  # fmt: skip
    first = out / "checkpoints" / "rows-000000000320"
    printed = run_with_kills(out, flags, [(first, 1)], 2, "--restarts=1")
    assert "rank 1 on host" in printed
    assert "restart 1 of 1" in printed
    assert re.search(r"weights: \d+ tensors from .*rows-\d{12}", printed), printed
    steps = [line["step"] for line in metrics_in(out) if "loss" in line]
    assert steps == list(range(1, STEPS + 1))
