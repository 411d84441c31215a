"""Finds the installed MPI and builds the ``mpirun`` command for Open MPI 4 or 5, MPICH or Intel MPI."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from distributed import records
from distributed.launcher.options import LaunchError, Options

OPEN_MPI, MPICH, INTEL_MPI = "Open MPI", "MPICH", "Intel MPI"
NO_MPI = "no MPI"  # for one rank on this machine

FORWARDED_NAMES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
FORWARDED_PREFIXES = ("TF_", "CUDA_", "NCCL_", "HF_", "XLA_", "KERAS_", "OMP_", "RINGBERT_")

# Variables that Slurm, PBS, LSF and Grid Engine set in a job; mpirun then gets hosts and slots from them.
ALLOCATION_VARIABLES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE")
HOST_OPTIONS = {"H", "f", "host", "hosts", "hostfile", "machinefile"}  # of mpirun, after one dash or two
OUTPUT_OPTIONS = {"--output", "--tag-output", "--timestamp-output", "--stream-buffering"}  # of Open MPI's mpirun

# What users set to choose how ranks exchange messages, and what restricts ranks of one host to its memory.
TRANSPORT_OPTION = re.compile(r"(btl|pml|mtl)|((I_MPI_FABRICS|FI_PROVIDER|UCX_TLS)(=.*)?)")
TRANSPORT_VARIABLES = (
    *(f"OMPI_MCA_{name}" for name in ("btl", "pml", "mtl")),
    *("I_MPI_FABRICS", "FI_PROVIDER", "UCX_TLS", "MPIR_CVAR_CH4_NETMOD"),
)
INTEL_SHARED_MEMORY = {"I_MPI_FABRICS": "shm"}
MPICH_SHARED_MEMORY = {"FI_PROVIDER": "shm", "UCX_TLS": "self,sysv,posix,cma"}  # as it is built for either library

VERSION_PATTERNS = (
    (OPEN_MPI, re.compile(r"\((?:Open MPI|OpenRTE)\) v?(\d+)\.(\d+)")),
    (INTEL_MPI, re.compile(r"Intel\(R\) MPI Library.*?Version (\d+)\.(\d+)", re.DOTALL)),
    (MPICH, re.compile(r"HYDRA build details:.*?Version:\s*(\d+)\.(\d+)", re.DOTALL)),
)


@dataclass(frozen=True)
class Mpi:
    """An installed MPI: its implementation (one of the constants above), (major, minor), mpirun's path.

    `can_pass_parts`: this mpirun has an option to pass on a line before it ends, as progress bars need it.
    """

    implementation: str
    version: tuple[int, int]
    mpirun: str
    can_pass_parts: bool = False


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
    if mpi.implementation == NO_MPI:
        return Command(options.command, {})
    environment = {**environment, **options.variables()}
    is_here = not options.hosts and not names_hosts(options, environment)
    keeps_to_memory = stays_here(options, environment, local_names) and not chooses_transport(options, environment)
    if mpi.implementation != OPEN_MPI:
        return build_hydra_command(mpi, options, environment, keeps_to_memory)

    named_slots = sum(slots for name, slots in options.hosts if name in local_names)
    local_ranks = options.num_ranks if is_here else named_slots
    argv = [mpi.mpirun, "-np", str(options.num_ranks)]
    if is_root:
        argv += ["--allow-run-as-root"]
    if not {"--bind-to", "-bind-to"} & set(options.mpi_args):  # Open MPI 5 refuses a second one
        argv += ["--bind-to", "none"]
    moves_bars = mpi.can_pass_parts and environment.get(records.TERMINAL) == "1"
    if moves_bars and not OUTPUT_OPTIONS & set(options.mpi_args):
        argv += ["--output", ":raw"]
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
    if options.is_elastic:
        argv += ["--with-ft", "ulfm"]
    if keeps_to_memory:  # ranks that could use the network would listen on all of this host's addresses
        argv += ["--mca", "pml", "ob1", "--mca", "btl", "self,sm" if mpi.version >= (5, 0) else "self,vader"]
    # Skip variables that the user exports: given one twice, Open MPI 5 takes the first and 4.1 the last.
    exported = {arg.partition("=")[0] for flag, arg in pairwise(options.mpi_args) if flag == "-x"}
    for name in forwarded_variables(environment):
        if name not in exported:
            argv += ["-x", name]
    return Command((*argv, *options.mpi_args, *options.command), options.variables())


def build_hydra_command(
    mpi: Mpi, options: Options, environment: Mapping[str, str], keeps_to_memory: bool
) -> Command:
    """The command for MPICH and Intel MPI, whose launcher Hydra accepts root and more ranks than cores."""
    is_intel = mpi.implementation == INTEL_MPI
    argv = [mpi.mpirun]
    if is_intel:
        argv += ["-genv", "I_MPI_PIN", "0"]
    elif "-bind-to" not in options.mpi_args:
        argv += ["-bind-to", "none"]
    if options.hosts:
        argv += ["-hosts", ",".join(f"{name}:{slots}" for name, slots in options.hosts)]
    if keeps_to_memory:
        for name, value in (INTEL_SHARED_MEMORY if is_intel else MPICH_SHARED_MEMORY).items():
            argv += ["-genv", name, value]
    if names := forwarded_variables(environment):
        argv += ["-genvlist", ",".join(names)]
    argv += [*options.mpi_args, "-np", str(options.num_ranks)]  # -np ends Hydra's global options
    additions = options.variables()
    if options.ssh_port is not None:
        name = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS" if is_intel else "HYDRA_LAUNCHER_EXTRA_ARGS"
        additions[name] = f"-p {options.ssh_port}"
    return Command((*argv, *options.command), additions)


def forwarded_variables(environment: Mapping[str, str]) -> list[str]:
    """Sorted names of the variables that ranks on other hosts need; their values stay off the command line."""
    return sorted(n for n in environment if n in FORWARDED_NAMES or n.startswith(FORWARDED_PREFIXES))


def stays_here(options: Options, environment: Mapping[str, str], local_names: Collection[str]) -> bool:
    """Whether the job runs on this host alone."""
    if options.hosts:
        return all(name in local_names for name, _ in options.hosts)
    return not names_hosts(options, environment)


def chooses_transport(options: Options, environment: Mapping[str, str]) -> bool:
    """Whether the user says by which transport the ranks exchange messages."""
    return any(TRANSPORT_OPTION.fullmatch(arg) for arg in options.mpi_args) or any(
        environment.get(name) for name in TRANSPORT_VARIABLES
    )


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
    return Mpi(*implementation, mpirun, can_pass_parts=_can_pass_parts(mpirun))


def _can_pass_parts(mpirun: str) -> bool:
    """Whether Open MPI 5 says in its help that output can be raw; its first releases do not know the word."""
    try:
        text = (Path(mpirun).resolve().parent.parent / "share/prte/help-prterun.txt").read_text(errors="replace")
    except OSError:
        return False
    return '"RAW"' in text


def find_mpi_for(options: Options, environment: Mapping[str, str]) -> Mpi:
    """The MPI for a job; `NO_MPI` for one rank on this machine, which is started itself. Raises as `find_mpi`."""
    needs_mpi = options.num_ranks > 1 or options.is_elastic or options.hosts or options.mpi_args
    return find_mpi() if needs_mpi or names_hosts(options, environment) else Mpi(NO_MPI, (0, 0), "")


def check_elastic(mpi: Mpi) -> None:
    """Raises LaunchError unless ranks can go on after one has died."""
    if mpi.implementation != OPEN_MPI or mpi.version < (5, 0):
        found = f"{mpi.implementation} {mpi.version[0]}.{mpi.version[1]}"
        raise LaunchError(
            f"--elastic needs Open MPI 5 or newer, found {found} ({mpi.mpirun}); --restarts works with every MPI",
            1,
        )


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


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
