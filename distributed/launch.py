"""``bert-launch``: one command that starts the ranks of a program under whichever MPI is installed.

It does the work of ``horovodrun``: it builds one ``mpirun`` command for Open MPI 4 or 5, MPICH or Intel MPI,
prints it and runs it; output and exit status are mpirun's own. ``--dry-run`` only prints the command, for users
who prefer to start ``mpirun`` themselves.
"""

import argparse
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from distributed.supervisor import supervise

OPEN_MPI, MPICH, INTEL_MPI = "Open MPI", "MPICH", "Intel MPI"

FORWARDED_NAMES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
FORWARDED_PREFIXES = ("TF_", "CUDA_", "NCCL_", "HF_", "XLA_", "KERAS_", "OMP_", "RINGBERT_")

# Variables that Slurm, PBS, LSF and Grid Engine set in a job; mpirun then gets hosts and slots from them.
ALLOCATION_VARIABLES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE")
HOST_OPTIONS = {"H", "f", "host", "hosts", "hostfile", "machinefile"}  # of mpirun, after one dash or two

VERSION_PATTERNS = (
    (OPEN_MPI, re.compile(r"\((?:Open MPI|OpenRTE)\) v?(\d+)\.(\d+)")),
    (INTEL_MPI, re.compile(r"Intel\(R\) MPI Library.*?Version (\d+)\.(\d+)", re.DOTALL)),
    (MPICH, re.compile(r"HYDRA build details:.*?Version:\s*(\d+)\.(\d+)", re.DOTALL)),
)
HOST_PATTERN = re.compile(r"(?P<name>[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)(:(?P<slots>[1-9][0-9]*))?")

DESCRIPTION = """\
Start COMMAND on N ranks, here or on several hosts, under the MPI that is installed (Open MPI 4 and 5, MPICH,
Intel MPI). The successor of horovodrun: -np, -H and -p mean the same."""
EXAMPLES = """\
examples:
  bert-launch -np 4 -- bert-squad --do_train --output_dir out
  bert-launch -np 16 -H node1:8,node2:8 -p 2222 -- bert-pretraining --config large.toml
  bert-launch -np 2 --mpi-args "--tag-output -x MY_VARIABLE" --dry-run -- bert-bench"""


class LaunchError(Exception):
    """A mistake that the user can correct, shown as one line; ``status`` is the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Mpi:
    """An installed MPI: its implementation (one of the three constants), (major, minor), mpirun's path."""

    implementation: str
    version: tuple[int, int]
    mpirun: str


@dataclass(frozen=True)
class Options:
    """What to start, and on which ``hosts`` (name, slots); by default on this machine or the batch job's hosts."""

    command: tuple[str, ...]
    num_ranks: int
    hosts: tuple[tuple[str, int], ...] = ()
    ssh_port: int | None = None
    mpi_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        slots = sum(count for _, count in self.hosts)
        if not self.command:
            raise LaunchError("no command after --: write bert-launch -np 4 -- bert-squad …", 2)
        if self.num_ranks < 1:
            raise LaunchError(f"-np must be at least 1, got {self.num_ranks}", 2)
        if self.hosts and self.num_ranks > slots:
            raise LaunchError(f"-np must be at most the {slots} slots of -H, got {self.num_ranks}", 2)
        if self.ssh_port is not None and not 1 <= self.ssh_port <= 65535:
            raise LaunchError(f"-p must be between 1 and 65535, got {self.ssh_port}", 2)


@dataclass(frozen=True)
class Command:
    """An argument vector and the environment variables to set for it."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        """The command as a line that a POSIX shell understands."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*assignments, shlex.join(self.argv)])


def build_command(
    mpi: Mpi,
    options: Options,
    environment: Mapping[str, str],
    *,
    cores: int,
    is_root: bool,
    local_names: Collection[str] = ("localhost",),
) -> Command:
    """The mpirun command for these options: a pure function of its arguments.

    ``cores`` is the number of this machine's cores, ``local_names`` its possible names in ``options.hosts``. Ranks
    are not bound to cores, because all of TensorFlow's threads would then share one core.
    """
    if mpi.implementation != OPEN_MPI:
        return build_hydra_command(mpi, options, environment)

    is_here = not options.hosts and not names_hosts(options, environment)
    named_slots = sum(slots for name, slots in options.hosts if name in local_names)
    local_ranks = options.num_ranks if is_here else named_slots
    argv = [mpi.mpirun, "-np", str(options.num_ranks)]
    if is_root:
        argv += ["--allow-run-as-root"]
    if not {"--bind-to", "-bind-to"} & set(options.mpi_args):  # Open MPI 5 refuses a second one
        argv += ["--bind-to", "none"]
    if options.hosts:
        argv += ["-H", ",".join(f"{name}:{slots}" for name, slots in options.hosts)]
    if is_here and local_ranks > cores:
        argv += ["--oversubscribe"]
    if local_ranks > cores:
        # A waiting rank spins. Unless it yields, it takes the core from the rank that it waits for.
        argv += ["--mca", "mpi_yield_when_idle", "1"]
    if options.ssh_port is not None:
        ssh_args = ("--prtemca", "plm_ssh_args") if mpi.version >= (5, 0) else ("--mca", "plm_rsh_args")
        argv += [*ssh_args, f"-p {options.ssh_port}"]
    # Skip variables that the user exports: given one twice, Open MPI 5 takes the first and 4.1 the last.
    exported = {arg.partition("=")[0] for flag, arg in pairwise(options.mpi_args) if flag == "-x"}
    for name in forwarded_variables(environment):
        if name not in exported:
            argv += ["-x", name]
    return Command((*argv, *options.mpi_args, *options.command), {})


def build_hydra_command(mpi: Mpi, options: Options, environment: Mapping[str, str]) -> Command:
    """The command for MPICH and Intel MPI, whose launcher Hydra accepts root and more ranks than cores."""
    is_intel = mpi.implementation == INTEL_MPI
    argv = [mpi.mpirun]
    if is_intel:
        argv += ["-genv", "I_MPI_PIN", "0"]
    elif "-bind-to" not in options.mpi_args:
        argv += ["-bind-to", "none"]
    if options.hosts:
        argv += ["-hosts", ",".join(f"{name}:{slots}" for name, slots in options.hosts)]
    if names := forwarded_variables(environment):
        argv += ["-genvlist", ",".join(names)]
    argv += [*options.mpi_args, "-np", str(options.num_ranks)]  # -np ends Hydra's global options
    additions = {}
    if options.ssh_port is not None:
        name = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS" if is_intel else "HYDRA_LAUNCHER_EXTRA_ARGS"
        additions[name] = f"-p {options.ssh_port}"
    return Command((*argv, *options.command), additions)


def forwarded_variables(environment: Mapping[str, str]) -> list[str]:
    """Sorted names of the variables that ranks on other hosts need; their values stay off the command line."""
    return sorted(n for n in environment if n in FORWARDED_NAMES or n.startswith(FORWARDED_PREFIXES))


def names_hosts(options: Options, environment: Mapping[str, str]) -> bool:
    """Whether a batch job or ``--mpi-args`` names the hosts, so that this machine's cores do not matter."""
    in_batch_job = any(environment.get(name) for name in ALLOCATION_VARIABLES)
    return in_batch_job or any(a.startswith("-") and a.lstrip("-") in HOST_OPTIONS for a in options.mpi_args)


def parse_version(text: str) -> tuple[str, tuple[int, int]] | None:
    """Implementation and (major, minor) from the output of ``mpirun --version``, or None."""
    for implementation, pattern in VERSION_PATTERNS:
        if match := pattern.search(text):
            return implementation, (int(match[1]), int(match[2]))
    return None


def find_mpi() -> Mpi:
    """The MPI that this Python's mpi4py will use. Raises LaunchError if there is none, or an unknown one.

    mpi4py looks into its virtual environment first, so an mpirun there takes precedence over the one on PATH.
    Under another MPI's mpirun every process would be alone, with one rank.
    """
    beside = shutil.which("mpirun", path=str(Path(sys.executable).parent))
    on_path = shutil.which("mpirun")
    in_environment = sys.prefix != sys.base_prefix
    mpirun = (beside or on_path) if in_environment else (on_path or beside)
    if mpirun is None:
        raise LaunchError(
            "no mpirun found: pip install '.[mpi]' in ringbert's checkout or load the cluster's MPI module", 1
        )
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{mpirun} --version does not run: {error}", 1) from error
    implementation = parse_version(text := done.stdout + done.stderr)
    if implementation is None:
        first_line = text.strip().partition("\n")[0] or "nothing"
        raise LaunchError(f"{mpirun} is not Open MPI, MPICH or Intel MPI: its --version says {first_line!r}", 1)
    return Mpi(*implementation, mpirun)


def num_cores() -> int:
    """Physical cores that this process may use, as Open MPI counts slots; not hardware threads."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cpus = os.sched_getaffinity(0)
    siblings = [Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus]
    try:
        return len({path.read_text() for path in siblings})
    except OSError:
        return len(cpus)


def parse_hosts(text: str) -> tuple[tuple[str, int], ...]:
    """``"a:4,b"`` as (("a", 4), ("b", 1)); raises LaunchError if it is malformed or names a host twice."""
    hosts: dict[str, int] = {}
    for part in text.split(","):
        match = HOST_PATTERN.fullmatch(part)
        if match is None:
            raise LaunchError(f"-H {text}: {part!r} is not host:slots, for example node1:4,node2:4", 2)
        if match["name"] in hosts:
            raise LaunchError(f"-H {text}: host {match['name']} is named twice; add up its slots", 2)
        hosts[match["name"]] = int(match["slots"] or 1)
    return tuple(hosts.items())


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(message, 2)


def parse_args(argv: Sequence[str]) -> tuple[Options, bool]:
    """The options, and whether --dry-run is among them. Raises LaunchError with status 2 if they are wrong."""
    parser = Parser(
        prog="bert-launch",
        usage="bert-launch -np N [-H HOST:SLOTS,…] [-p PORT] [--mpi-args ARGS] [--dry-run] -- COMMAND …",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-np", "-n", "--num-proc", type=int, required=True, metavar="N", help="number of ranks")
    add("-H", "--hosts", metavar="HOST:SLOTS,…", help="hosts and their slots (default: this one; slots: 1)")
    add("-p", "--ssh-port", type=int, metavar="PORT", help="port of the hosts' ssh servers")
    add("--mpi-args", default="", metavar="ARGS", help="further arguments of mpirun, quoted as in a shell")
    add("--dry-run", action="store_true", help="print the mpirun command and do not run it")

    separator = argv.index("--") if "--" in argv else len(argv)
    ours, command = list(argv[:separator]), tuple(argv[separator + 1 :])
    if "--mpi-args" in ours[:-1]:  # argparse accepts a value with a leading dash only after "="
        at = ours.index("--mpi-args")
        ours[at : at + 2] = [f"--mpi-args={ours[at + 1]}"]
    if separator == len(argv) and not {"-h", "--help"} & set(ours):
        raise LaunchError("no -- before the command: write bert-launch -np 4 -- bert-squad …", 2)
    parsed = parser.parse_args(ours)
    try:
        mpi_args = tuple(shlex.split(parsed.mpi_args))
    except ValueError as error:
        raise LaunchError(f"--mpi-args {parsed.mpi_args}: {error}", 2) from error
    hosts = parse_hosts(parsed.hosts) if parsed.hosts is not None else ()
    return Options(command, parsed.num_proc, hosts, parsed.ssh_port, mpi_args), parsed.dry_run


def local_host_names() -> frozenset[str]:
    """The names that a user may give this machine in -H."""
    name = socket.gethostname()
    return frozenset({"localhost", "127.0.0.1", name, name.partition(".")[0]})


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the mpirun command for ``argv`` and runs it. Returns its exit status."""
    try:
        options, dry_run = parse_args(sys.argv[1:] if argv is None else argv)
        command = build_command(
            find_mpi(),
            options,
            os.environ,
            cores=num_cores(),
            is_root=hasattr(os, "geteuid") and os.geteuid() == 0,
            local_names=local_host_names(),
        )
    except LaunchError as error:
        print(f"bert-launch: error: {error}", file=sys.stderr)
        return error.status
    print(command, file=sys.stdout if dry_run else sys.stderr, flush=True)
    return 0 if dry_run else supervise(command.argv, command.environment)


if __name__ == "__main__":
    sys.exit(main())
