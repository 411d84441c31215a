"""Runs the programs of tasks/ as their users do: in this process on one rank, or as a command on several."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringbert.errors import InputError
from tasks import flags

ROOT = Path(__file__).resolve().parents[2]


def in_process(prog: str, config_class: type, program: Callable, folder: Path, *argv: str) -> Any:
    """What `run_on_ranks` does, without MPI; what the program returns. `folder` is the run's.

    An error of the user's ends it as from the shell: one line, SystemExit.
    """
    from distributed.collectives.local import LocalCollectives
    from distributed.run import Run
    from distributed.world import World
    from tasks.job import Job

    config = flags.parse(config_class, argv, prog=prog, description="")
    with World(program=prog, user_errors=(InputError,)) as world:
        run = Run.of(folder, world)
        result = program(config, Job(world, LocalCollectives(), run))
        run.close()
    return result


def command(module: str, *argv: str, ranks: int = 1) -> list[str]:
    """The command line of a program, under bert-launch when there are several ranks."""
    program = [sys.executable, "-m", module, *argv]
    return program if ranks == 1 else [sys.executable, "-m", "distributed.launch", f"-np={ranks}", "--", *program]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}


def shell(arguments: list[str], status: int | None = 0) -> str:
    """Runs a command; its standard error. Fails unless it exits with `status` (None: any but 0)."""
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert (done.returncode != 0) if status is None else (done.returncode == status), done.stdout + done.stderr
    return done.stderr


def error_of(printed: str, prog: str) -> str:
    """The one line of error among what a program printed."""
    errors = [line for line in printed.splitlines() if "error:" in line]
    assert len(errors) == 1, printed
    assert errors[0].startswith(f"{prog}: error: ")
    assert "Traceback" not in printed
    return errors[0]


def metrics_in(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights_in(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()
