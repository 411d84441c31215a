"""A comparison with other people's programs: its flags and folder, and the programs that it runs on
CPUs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.timing import last_error
from ringbase.errors import InputError
from tasks import SITE

TIME_LIMIT_S = 20 * 60  # for one contender in one turn


class Absent(Exception):
    """A contender cannot run here. The message is the reason."""


@dataclass(frozen=True)
class Contest:
    """The flags, a temporary folder, and the function that prints."""

    config: Any  # benchmarks.compare.CompareConfig
    folder: Path
    say: Callable[[str], None]
    num_cores: int
    num_ranks: int

    def run_rival(
        self,
        file: Path,
        package: str,
        settings: dict[str, Any],
        variables: Mapping[str, str] | None = None,
    ) -> Any:
        """Runs a file with the rivals' Python, with these environment variables, and returns its
        report. Raises Absent: not installed, failed, or too slow."""
        if run_on_cpus([self.config.rival_python, "-c", f"import {package}"]).returncode:
            raise Absent(f"{self.config.rival_python} has no {package} (--rival_python)")
        described, report = self.folder / "settings.json", self.folder / "report.json"
        described.write_text(json.dumps(settings | {"num_threads": self.num_cores}))
        report.unlink(missing_ok=True)
        command = [self.config.rival_python, str(file), str(described), str(report)]
        done = run_on_cpus(command, variables)
        if done.returncode or not report.is_file():
            raise Absent(f"it failed: {last_error(done)}")
        return json.loads(report.read_text())

    def run_ours(self, *program: str, variables: Mapping[str, str] | None = None) -> None:
        """Runs one of our modules on the ranks, with these environment variables. Raises
        InputError: it failed."""
        python = [sys.executable, "-m"]
        launch = [*python, "distributed.launch", f"-np={self.num_ranks}", "--"]
        done = run_on_cpus([*launch, *python, *program], variables)
        if done.returncode:
            raise InputError(f"{program[0]} failed: {last_error(done)}")


def run_on_cpus(
    command: list[str], variables: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Runs a program. Whatever it started is killed with it. Raises Absent: it takes too long."""
    environment = os.environ | {
        "PYTHONPATH": str(SITE),
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "",
    }
    environment |= variables or {}
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Absent(f"it took more than {TIME_LIMIT_S / 60:.0f} minutes") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, err)
