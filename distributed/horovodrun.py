"""The flags of horovodrun 0.28, as bert-launch answers them: each is taken, has no effect here and
says so in a line, or is refused with what to do instead."""

import argparse
import functools
import importlib.metadata
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from distributed.hosts import hosts_of_file

# What `import horovod` finds in scripts that bert-launch --horovod starts. It is a package of the
# front door, which nothing here imports.
FOLDER = Path(__file__).parents[1] / "ringbert" / "horovod" / "path"
ALWAYS = "RINGBERT_HOROVOD"  # "always": the folder comes before a Horovod that is installed
STALL_WARNING = "HOROVOD_STALL_CHECK_TIME_SECONDS"
STALL_END = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
ONE_SUM = "a step has one sum, in which nothing is set"
RESTARTS = "use --restarts N, which starts again on the hosts of -H that answer"


class Answer(NamedTuple):
    """What becomes of flags that horovodrun has."""

    flags: str
    text: str  # why there is no effect, or what to do instead
    values: int = 1  # that follow it
    program: str = "horovodrun"


WITHOUT_EFFECT = (
    Answer("--fusion-threshold-mb --cycle-time-ms --cache-capacity", ONE_SUM),
    Answer("--hierarchical-allreduce --no-hierarchical-allreduce", ONE_SUM, 0),
    Answer("--hierarchical-allgather --no-hierarchical-allgather", ONE_SUM, 0),
    Answer("--autotune --no-autotune", ONE_SUM, 0),
    Answer("--autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample", ONE_SUM),
    Answer("--autotune-bayes-opt-max-samples --autotune-gaussian-process-noise", ONE_SUM),
    Answer("--disable-cache", "no check is cached", 0),
    Answer("--verbose", "the command of mpirun is always printed", 0),
    Answer("--timeline-mark-cycles --no-timeline-mark-cycles", "there is no timeline of sums", 0),
    Answer("--mpi-threads-disable --no-mpi-threads-disable", "MPI's threads stay as they are", 0),
    Answer("--num-nccl-streams", "TensorFlow chooses the streams of NCCL"),
    Answer("--thread-affinity", "there is no thread in the background; hvd.init() divides cores"),
    Answer("--gloo", "the ranks always start by MPI", 0),
    Answer("--gloo-timeout-seconds", "the ranks always start by MPI; --start-timeout is its limit"),
    Answer("--log-level", "messages have one level"),
    Answer("--log-with-timestamp --log-without-timestamp", "messages have no times", 0),
    Answer("--log-hide-timestamp --no-log-hide-timestamp", "messages have no times", 0),
    Answer(
        "-prefix-timestamp --prefix-output-with-timestamp",
        "mpirun does that: --mpi-args '--timestamp-output' (Open MPI 4), '--output timestamp' (5)",
        0,
    ),
)
REFUSED = (
    Answer("--min-np --min-num-proc --max-np --max-num-proc --host-discovery-script", RESTARTS),
    Answer("--slots-per-host --elastic-timeout --reset-limit", RESTARTS),
    Answer("--blacklist-cooldown-range", RESTARTS, 2),
    Answer("--timeline-filename", "use keras.callbacks.TensorBoard in the script"),
    Answer(
        "--output-filename",
        "use mpirun's: --mpi-args '--output-filename FOLDER' (Open MPI 4), '--output file=FILE'"
        " (5)",
    ),
    Answer(
        "--network-interfaces --network-interface",
        "use the variable RINGBERT_NETWORK, such as 10.0.0.0/24",
    ),
    Answer("--config-file", "write what the file sets as flags"),
    Answer(
        "-i --ssh-identity-file",
        "name the file in ~/.ssh/config, by IdentityFile",
    ),
    Answer("--tcp", "use --mpi-args '--mca pml ob1 --mca btl tcp,self' (Open MPI)", 0),
    Answer("--jsrun", "use jsrun itself: jsrun -n 4 python train.py", 0),
    Answer("-cb --check-build", "use bert-doctor", 0),
    Answer("-x", "use --mpi-args '-x NAME'", program="mpirun"),
)


class Note(argparse.Action):
    """Keeps what is to be said of a flag without effect."""

    def __call__(self, parser, namespace, values, option_string=None):
        namespace.notes.append(f"note: {option_string} has no effect: {self.const}")


class SetVariable(argparse.Action):
    """Sets the variable of the ranks that `metavar` names."""

    def __call__(self, parser, namespace, values, option_string=None):
        namespace.variables[self.metavar] = str(self.const if self.nargs == 0 else values)


class Horovod(argparse.Action):
    """Lets the ranks find the name `horovod`."""

    def __call__(self, parser, namespace, values, option_string=None):
        namespace.variables["PYTHONPATH"] = python_path()
        if values:
            namespace.variables[ALWAYS] = values


class Version(argparse.Action):
    """Prints the version, and ends."""

    def __call__(self, parser, namespace, values, option_string=None):
        print(f"bert-launch {importlib.metadata.version('ringbert')}, for horovodrun 0.28")
        parser.exit(0)


def add_alias(parser: argparse.ArgumentParser) -> None:
    """The flag by which `horovod` is `ringbert.horovod`; it needs `variables`, a dict, in the
    namespace."""
    text = """let scripts import horovod unchanged: it is ringbert.horovod then; where Horovod is
installed too, only with always"""
    parser.add_argument(
        "--horovod", action=Horovod, nargs="?", choices=["always"], metavar="always", help=text
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of horovodrun that bert-launch takes beside its own, and those without effect. They
    need `notes`, a list, and `variables`, a dict, in the namespace."""
    add = functools.partial(parser.add_argument, help=argparse.SUPPRESS)
    add("-hostfile", "--hostfile", type=hosts_of_file, dest="hosts", default={})
    add("--binding-args", type=shlex.split, default=[])
    add("--mpi", action="store_true")  # it always does
    add("-v", "--version", action=Version, nargs=0)
    seconds = functools.partial(add, action=SetVariable, type=int)
    seconds("--stall-check-warning-time-seconds", metavar=STALL_WARNING)
    seconds("--stall-check-shutdown-time-seconds", metavar=STALL_END)
    add("--no-stall-check", action=SetVariable, nargs=0, const=0, metavar=STALL_WARNING)
    add("--stall-check", action=SetVariable, nargs=0, const=60, metavar=STALL_WARNING)
    for answer in WITHOUT_EFFECT:
        nargs = answer.values if answer.values != 1 else None
        add(*answer.flags.split(), action=Note, nargs=nargs, const=answer.text)


def refusal(words: Iterable[str]) -> str | None:
    """What to say of the first of these words that is a flag to be replaced."""
    answers = {flag: answer for answer in REFUSED for flag in answer.flags.split()}
    for flag in (word.partition("=")[0] for word in words):
        if answer := answers.get(flag):
            return f"{flag} is a flag of {answer.program}: {answer.text}"
    return None


def python_path() -> str:
    """PYTHONPATH with the folder of the name `horovod` first."""
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(
        [str(FOLDER), *(path for path in others if path not in ("", str(FOLDER)))]
    )
