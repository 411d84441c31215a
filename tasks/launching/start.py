"""`launch` runs a job on its ranks as bert-launch does, and returns its scores.

The ranks are processes of their own under `bert-launch`. So this process never joins MPI, may be a notebook's, and
may have loaded TensorFlow. What the ranks print is shown here.
"""

import codecs
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from distributed import records
from distributed.environment import launched_size
from ringbase.errors import InputError, Preempted
from ringbase.json_files import read_object
from tasks.environment import result_file
from tasks.launching.jobs import Job, without_dashes

ERROR = re.compile(r"(bert-[a-z]+): error(?: on [^ :]+)?: (.*)")
ARGUMENTS = {  # of `launch`, by the flags of bert-launch that have other names
    **{"-np": "ranks", "-H": "hosts", "-p": "ssh_port", "--restarts": "restarts"},
    **{"--elastic": "elastic", "--mpi-args": "mpi_args"},
}
PYTHON = (sys.executable, "-P", "-m")  # whatever lies in the working directory
LAST_LINES = 20  # of a crashed program, in the message
MOST_CHARACTERS = 1 << 16  # that are kept of what is printed


@dataclass(frozen=True)
class Result:
    """What a job has found.

    Attributes:
      scores: by their names in eval_results.txt; empty if nothing was scored. Means, if there are several seeds.
      output_dir: the folder of the run; `output_dir / "model"` holds the trained model.
      seconds: how long the job worked, without the time until its ranks had started.
      ranks: the number of ranks at its end.
      details: all of result.json (of predict_result.json if the job did not train): also the standard deviations
        and scores of several seeds.
    """

    scores: dict[str, float]
    output_dir: Path
    seconds: float
    ranks: int
    details: dict[str, Any]

    def __repr__(self) -> str:
        shown = [f"{name} = {value:.4f}" for name, value in self.scores.items()] or ["no scores"]
        count = f"{self.ranks} rank{'s' * (self.ranks != 1)}"
        return "\n".join([*shown, f"({self.seconds:.0f} s on {count}, {self.output_dir})"])


def launch(
    job: Job,
    ranks: int = 1,
    *,
    hosts: str | Mapping[str, int] | None = None,
    ssh_port: int | None = None,
    restarts: int = 0,
    elastic: bool = False,
    mpi_args: str | Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    progress: bool = True,
) -> Result:
    """Runs a job on its ranks, shows what they print, and returns the scores when it is complete.

    A job that was interrupted continues from its newest checkpoint when it is launched again; one that is complete
    is not trained again. Interrupting (Ctrl-C, or a notebook's stop button) saves a training and ends the ranks,
    then raises KeyboardInterrupt; a second interrupt ends them at once. The ranks also end with this process.

    Args:
      job: `ringbert.Squad(…)`, `ringbert.Classification(…)` or `ringbert.Pretraining(…)`. Its paths are relative
        to this process's working directory.
      ranks: the number of processes. One needs no MPI.
      hosts: "node1:4,node2:4" or {"node1": 4, "node2": 4}, hosts and how many ranks they take; None for this one.
      ssh_port: the port of the hosts' ssh servers.
      restarts: how often a job that broke off is started again.
      elastic: go on without ranks that die (Open MPI 5).
      mpi_args: further arguments of mpirun.
      environment: variables for the ranks, besides this process's.
      progress: False shows nothing.
    Raises:
      InputError: the job, its files or these arguments cannot be used; the message is the program's.
      RuntimeError: the job failed otherwise; the message has the last lines that it printed.
    """
    _check(job)
    if isinstance(hosts, Mapping):
        hosts = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
    words = mpi_args if isinstance(mpi_args, str) else shlex.join(mpi_args)
    flags = {"-np": ranks, "--restarts": restarts, "-H": hosts, "-p": ssh_port, "--mpi-args": words}
    given = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    given += ["--elastic"] * elastic
    command = [*PYTHON, "distributed.launch", *given, "--", *PYTHON, job.module, *job.argv()]
    variables = {**os.environ, **(environment or {}), records.PARENT: str(os.getpid())}
    variables[records.TERMINAL] = str(int(progress and (in_notebook() or sys.stderr.isatty())))
    status, printed, is_interrupted = run(command, variables, is_shown=progress)
    if is_interrupted:
        raise KeyboardInterrupt(f"{job.program} was interrupted; launch it again to continue what it has saved")
    if status:
        raise _error(job, status, printed)
    return _result(job)


def run(command: Sequence[str], environment: Mapping[str, str], is_shown: bool) -> tuple[int, str, bool]:
    """Runs a command to its end and shows what it prints: in a notebook on standard output, which is not red.

    Returns the exit status, the last characters that were printed, and whether the user interrupted it.

    KeyboardInterrupt passes SIGINT on and goes on until the process has ended. The process has its own group,
    because a terminal and Jupyter send SIGINT to all of theirs.
    """
    printed, is_interrupted = "", False
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    stream = sys.stdout if in_notebook() else sys.stderr
    with subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    ) as process:
        assert process.stdout is not None
        while True:
            try:
                while data := os.read(process.stdout.fileno(), 65536):
                    text = decoder.decode(data)
                    printed = (printed + text)[-MOST_CHARACTERS:]
                    if is_shown:
                        stream.write(text)
                        stream.flush()
                return process.wait(), printed, is_interrupted
            except KeyboardInterrupt:
                is_interrupted = True
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
            except BaseException:  # standard error is closed
                process.terminate()
                raise


def _check(job: object) -> None:
    """Raises InputError unless this is a job, and this process is not one of several of a launcher."""
    if not isinstance(job, get_args(Job)):
        kinds = ", ".join(f"ringbert.{kind.__name__}(…)" for kind in get_args(Job))
        raise InputError(f"job must be one of {kinds}, got {job!r:.80}")
    variable, size = launched_size()
    if size > 1:
        raise InputError(
            f"{variable}={size}: launch starts the ranks itself, so start this script without mpirun or srun, or "
            "start the program by its command under mpirun"
        )


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def _error(job: Job, status: int, printed: str) -> Exception:
    """What to raise for a job that failed."""
    # Of a line with a progress bar, whose states begin with a carriage return, the last state.
    lines = [line.rpartition("\r")[2] for line in printed.rstrip().split("\n")]
    errors = [match for line in lines if (match := ERROR.match(line))]
    if errors:
        program, message = errors[-1].groups()
        if program == "bert-launch":
            message = re.sub(r"^argument (-[\w-]+)\S*:", r"\1", message)  # as argparse begins it
            for flag, name in ARGUMENTS.items():
                message = re.sub(rf"(?<![\w-]){flag}\b", name, message)
        return InputError(without_dashes(message, type(job)))
    if status == Preempted.STATUS:
        return RuntimeError(f"{job.program} was saved and stopped by a signal; launch it again to continue")
    last = "\n".join(lines[-LAST_LINES:])
    return RuntimeError(f"{job.program} failed with exit status {status}; its last lines:\n{last}")


def _result(job: Job) -> Result:
    """The result that a complete job has written. Raises RuntimeError if it is on another machine."""
    folder = Path(job.output_dir).expanduser().resolve()
    path = folder / result_file(job.do_train)
    if not path.exists():
        raise RuntimeError(f"the job is complete, but {path} is not on this machine")
    details = read_object(path, str(path))
    return Result(details["scores"], folder, details["seconds"], details["world_size"], details)
