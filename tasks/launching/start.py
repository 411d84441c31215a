"""`launch` runs a job on its ranks as bert-launch does, and returns its scores.

The ranks are processes of their own under `bert-launch`. So this process never joins MPI, may be a notebook's, and
may have loaded TensorFlow. What the ranks print is shown here.
"""

import codecs
import os
import re
import shlex
import signal
import site
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import ringbase
from distributed import records
from distributed.environment import SIZE_VARIABLES
from ringbase.errors import InputError, Preempted
from ringbase.json_files import read_object
from tasks.environment import result_file
from tasks.launching.jobs import Job, without_dashes
from tasks.signatures import with_checked_names

ERROR = re.compile(r"(bert-[a-z]+): error(?: on [^ :]+)?: (.*)")
LAUNCHER_FLAGS = {"argument -H/--hosts": "hosts", "-np": "ranks", "-H": "hosts", "-p": "ssh_port"}
LAST_LINES = 20  # of a crashed program, in the message
MOST_LINES = 200  # that are kept


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


@with_checked_names
def launch(
    job: Job,
    ranks: int = 1,
    *,
    hosts: str | Mapping[str, int] | None = None,
    ssh_port: int | None = None,
    restarts: int = 0,
    elastic: bool = False,
    mpi_args: Sequence[str] = (),
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
    check_job(job)
    check_alone()
    command = [
        *python("distributed.launch"),
        *_launcher_arguments(ranks, hosts, ssh_port, restarts, elastic, mpi_args),
        *("--", *python(job.module), *job.argv()),
    ]
    variables = {**os.environ, **(environment or {}), records.PARENT: str(os.getpid())}
    variables[records.TERMINAL] = str(int(progress and (in_notebook() or sys.stderr.isatty())))
    if path := python_path(variables.get("PYTHONPATH", "")):
        variables["PYTHONPATH"] = path
    ended = run(command, variables, is_shown=progress)
    if ended.is_interrupted:
        raise KeyboardInterrupt(f"{job.program} was interrupted; launch it again to continue what it has saved")
    if ended.status:
        raise _error(job, ended)
    return _result(job)


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status (128 + the signal that killed it), the last lines that it printed, and
    whether the user interrupted it."""

    status: int
    lines: Sequence[str]
    is_interrupted: bool


def run(command: Sequence[str], environment: Mapping[str, str], is_shown: bool) -> Ended:
    """Runs a command to its end and shows what it prints: in a notebook on standard output, which is not red.

    KeyboardInterrupt passes SIGINT on and goes on until the process has ended. The process has its own group,
    because a terminal and Jupyter send SIGINT to all of theirs.
    """
    is_interrupted, lines, partial = False, deque[str](maxlen=MOST_LINES), ""
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
                    if is_shown:
                        stream.write(text)
                        stream.flush()
                    *whole, partial = (partial + text).split("\n")
                    lines += [last_text(line) for line in whole]
                status = process.wait()
                break
            except KeyboardInterrupt:
                is_interrupted = True
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
            except BaseException:  # standard error is closed
                process.terminate()
                raise
    lines.append(last_text(partial))
    return Ended(128 - status if status < 0 else status, lines, is_interrupted)


def last_text(line: str) -> str:
    """What is seen of a line whose parts end with a carriage return: each overwrites the one before."""
    parts = [part for part in re.split(r"\r|\x1b\[A", line) if part.strip()]
    return parts[-1].rstrip() if parts else ""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def check_job(job: object) -> None:
    """Raises InputError unless the argument is a job."""
    names = [f"ringbert.{kind.__name__}(…)" for kind in get_args(Job)]
    if isinstance(job, type) and issubclass(job, get_args(Job)):
        raise InputError(
            f"job must be {job.__name__} with its arguments, ringbert.{job.__name__}(…), got the class"
        )
    if not isinstance(job, get_args(Job)):
        raise InputError(f"job must be {', '.join(names[:-1])} or {names[-1]}, got {job!r:.80}")


def check_alone() -> None:
    """Raises InputError if this process is one of several that a launcher has started."""
    for name in SIZE_VARIABLES:
        if os.environ.get(name, "1") not in ("", "1"):
            raise InputError(
                f"{name}={os.environ[name]}: launch starts the ranks itself, so start this script without mpirun "
                "or srun, or start the program by its command under mpirun"
            )


def python(module: str) -> list[str]:
    """The command that runs a module of ours with this Python, whatever lies in the working directory."""
    if not sys.executable:
        raise InputError("launch needs a Python to start, and sys.executable is empty")
    return [sys.executable, "-P", "-m", module]


def python_path(current: str) -> str:
    """PYTHONPATH for the ranks, so that they import the same packages as this process."""
    folder = str(Path(ringbase.__file__).resolve().parent.parent)
    paths = [path for path in current.split(os.pathsep) if path]
    if folder in (*paths, *site.getsitepackages(), site.getusersitepackages()):
        return current
    return os.pathsep.join([folder, *paths])


def _launcher_arguments(
    ranks: int,
    hosts: str | Mapping[str, int] | None,
    ssh_port: int | None,
    restarts: int,
    elastic: bool,
    mpi_args: Sequence[str],
) -> list[str]:
    """bert-launch's flags. Raises InputError."""
    for name, value, least in (("ranks", ranks, 1), ("restarts", restarts, 0), ("ssh_port", ssh_port, 1)):
        if value is not None and (type(value) is not int or value < least):
            raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")
    if isinstance(mpi_args, str):
        raise InputError(f"mpi_args must be a list of arguments, got the text {mpi_args!r}")
    if isinstance(hosts, Mapping):
        hosts = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
    arguments = [f"-np={ranks}", f"--restarts={restarts}"]
    arguments += ["-H", hosts] if hosts is not None else []
    arguments += [f"-p={ssh_port}"] if ssh_port is not None else []
    arguments += ["--elastic"] if elastic else []
    return [*arguments, f"--mpi-args={shlex.join(mpi_args)}"]


def _error(job: Job, ended: Ended) -> Exception:
    """What to raise for a job that failed."""
    errors = [match for line in ended.lines if (match := ERROR.match(line))]
    if errors:
        program, message = errors[-1].groups()
        if program == "bert-launch":
            for flag, name in LAUNCHER_FLAGS.items():
                message = re.sub(rf"(?<![\w-]){flag}\b", name, message)
        return InputError(without_dashes(message, type(job)))
    if ended.status == Preempted.STATUS:
        return RuntimeError(f"{job.program} was saved and stopped by a signal; launch it again to continue")
    last = "\n".join([*ended.lines][-LAST_LINES:])
    return RuntimeError(f"{job.program} failed with exit status {ended.status}; its last lines:\n{last}")


def _result(job: Job) -> Result:
    """The result that a complete job has written. Raises RuntimeError if it is on another machine."""
    folder = Path(job.output_dir).expanduser().resolve()
    path = folder / result_file(job.do_train)
    if not path.exists():
        raise RuntimeError(f"the job is complete, but {path} is not on this machine")
    details = read_object(path, str(path))
    return Result(details["scores"], folder, details["seconds"], details["world_size"], details)
