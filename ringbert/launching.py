"""The programs from Python and from notebooks: `launch(Squad(…), ranks=2)`.

The ranks are processes of their own under `bert-launch`. So this process never joins MPI, may be a
notebook's, and may have loaded TensorFlow. What the ranks print is shown here.
"""

import codecs
import html
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from distributed.launcher import COMMAND, TERMINAL, columns, launched_size
from distributed.records import CALLER, name_of_pipe
from ringbase.errors import InputError, as_arguments
from ringbase.files import read_object
from ringbert.job import PYTHON, LaunchedJob
from tasks.runs.environment import result_file
from tasks.runs.remote import local_folder

LAST_LINES = 20  # of a crashed program, in the message
MOST_CHARACTERS = 1 << 16  # that are kept of what is printed


@dataclass(frozen=True)
class Result:
    """What a job has found.

    >>> Result({"f1": 0.88}, Path("run"), 12.0, 2, {})
    f1 = 0.8800
    (12 s on 2 ranks, run)
    """

    # those of eval_results.txt, means over several seeds; empty if nothing was scored
    scores: dict[str, float]
    output_dir: Path  # of the run; its "model" is the trained model
    seconds: float  # without the time until the ranks had started
    ranks: int  # at the end
    details: dict[str, Any]  # all of result.json, or of predict_result.json without training

    def __repr__(self) -> str:
        shown = [f"{name} = {value:.4f}" for name, value in self.scores.items()] or ["no scores"]
        count = f"{self.ranks} rank{'s' * (self.ranks != 1)}"
        return "\n".join([*shown, f"({self.seconds:.0f} s on {count}, {self.output_dir})"])

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks, with a link to the report."""
        rows = "".join(f"<tr><th>{name}<td>{value:.4f}" for name, value in self.scores.items())
        summary = html.escape(repr(self).splitlines()[-1])
        report = self.output_dir / "report.html"
        link = ""
        if report.is_file():
            link = f' <a href="{html.escape(report.as_uri())}" target="_blank">report</a>'
        return f"<table>{rows}</table>{summary}{link}"


def launch(
    job: LaunchedJob,
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

    A job that was interrupted continues from its newest checkpoint when it is launched again; one
    that is complete is not trained again. Interrupting (Ctrl-C, or a notebook's stop button) saves
    a training and ends the ranks, then raises KeyboardInterrupt; a second interrupt ends them at
    once. The ranks also end with this process.

    The arguments are the options of bert-launch. `hosts` may be {"node1": 4, "node2": 4},
    `environment` are variables for the ranks besides this process's, and without `progress` nothing
    is shown.

    Raises InputError, with the program's message, if the job, its files or these arguments cannot
    be used, and RuntimeError, with the last lines that were printed, if the job ends otherwise.

    >>> from ringbert import Squad
    >>> job = Squad(output_dir="run", model="minilm", train_file="none.json", max_seq_length=128)
    >>> launch(job, progress=False)
    Traceback (most recent call last):
        ...
    ringbase.errors.InputError: train_file none.json: No such file or directory
    """
    if not isinstance(job, LaunchedJob):
        raise InputError(
            "job must be ringbert.Squad(…), Classification(…), Tagging(…), Embedding(…),"
            f" Pretraining(…) or Script(…), got {job!r:.80}"
        )
    setting, size = launched_size()
    if size > 1:
        advice = "start this script without mpirun or srun"
        raise InputError(f"{setting}: launch starts the ranks itself: {advice}")
    if isinstance(hosts, Mapping):
        hosts = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
    if not isinstance(mpi_args, str):
        mpi_args = shlex.join(mpi_args)
    options = {"--restarts": restarts, "-H": hosts, "-p": ssh_port, "--mpi-args": mpi_args}
    command = launch_command(job.command, ranks, options, elastic)
    own = {name: str(value) for name, value in (environment or {}).items()}
    variables = {**os.environ, **own}
    variables[COMMAND] = f"ringbert.launch({job.call}, ranks={ranks})"
    ended = run(command, variables, progress)
    if ended.is_interrupted:
        raise KeyboardInterrupt(
            f"{job.program} was interrupted; launch it again to continue what it has saved"
        )
    if ended.status:
        message = ended.error
        if message:
            for file in job.files:
                message = message.replace(file, "(data in memory)")
            raise InputError(as_arguments(message))
        last = "\n".join(ended.printed.splitlines()[-LAST_LINES:])
        raise RuntimeError(
            f"{job.program} ended with exit status {ended.status}; its last lines:\n{last}"
        )
    folder = local_folder(job.output_dir).resolve()
    details = read_object(folder / result_file(job.do_train))
    return Result(details["scores"], folder, details["seconds"], details["world_size"], details)


def launch_command(
    job: Sequence[str], ranks: int, options: Mapping[str, object], elastic: bool = False
) -> list[str]:
    """bert-launch with those of its options that are not None."""
    given = {"-np": ranks, **options}
    argv = [f"{flag}={value}" for flag, value in given.items() if value is not None]
    if elastic:
        argv.append("--elastic")
    return [*PYTHON, "distributed.launch", *argv, "--", *job]


class Ended(NamedTuple):
    """How bert-launch has ended."""

    status: int
    error: str  # that it, or the program, told; "" if none
    printed: str  # the last characters
    is_interrupted: bool  # by the user, which sends SIGINT


def run(command: Sequence[str], environment: dict[str, str], is_shown: bool) -> Ended:
    """Runs bert-launch and shows what is printed: in a notebook on standard output, which is not
    red."""
    in_notebook = "ipykernel" in sys.modules
    stream = sys.stdout if in_notebook else sys.stderr
    width = 0
    if is_shown and in_notebook:
        width = 1
    elif is_shown and stream.isatty():
        width = columns(stream.fileno())
    environment[TERMINAL] = str(width)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    printed, is_interrupted = "", False
    launched = Launched(command, environment, subprocess.PIPE)
    process = launched.process
    with process:
        assert process.stdout is not None
        while True:
            try:
                while data := os.read(process.stdout.fileno(), 65536):
                    text = decoder.decode(data)
                    printed = (printed + text)[-MOST_CHARACTERS:]
                    if is_shown:
                        stream.write(text)
                        stream.flush()
                status = process.wait()
                break
            except KeyboardInterrupt:
                is_interrupted = True
                process.send_signal(signal.SIGINT)
    return Ended(status, launched.error(), printed, is_interrupted)


class Launched:
    """bert-launch as a process of its own, with which its ranks end, and which ends with this
    thread."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: Any):
        """`environment` has TERMINAL; `output` is where all that is printed goes."""
        self._errors, self._end_of_launcher = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # in a group of its own: a terminal and Jupyter send SIGINT to all of theirs
        self.process = subprocess.Popen(
            command,
            env={**environment, CALLER: name_of_pipe(self._end_of_launcher)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )

    def error(self) -> str:
        """What it, or the program, has told of why the job failed; "" if nothing. Asked once, after
        its end."""
        os.close(self._end_of_launcher)
        with os.fdopen(self._errors, "rb") as file:
            return (file.read() or b"").decode()
