"""The `mpirun` command of a job, for Open MPI 4 and 5, MPICH and Intel MPI."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from distributed import records
from ringbase.errors import InputError

OPEN_MPI, MPICH, INTEL_MPI = "Open MPI", "MPICH", "Intel MPI"
VERSIONS = (  # in the output of mpirun --version
    (OPEN_MPI, re.compile(r"\((?:Open MPI|OpenRTE)\) v?(\d+)\.(\d+)")),
    (INTEL_MPI, re.compile(r"Intel\(R\) MPI Library.*?Version (\d+)\.(\d+)", re.DOTALL)),
    (MPICH, re.compile(r"HYDRA build details:.*?Version:\s*(\d+)\.(\d+)", re.DOTALL)),
)

# Names of the variables that ranks on other hosts need; the values stay off the command line.
FORWARDED = re.compile(r"PATH|PYTHONPATH|LD_LIBRARY_PATH|VIRTUAL_ENV|(TF|CUDA|NCCL|HF|XLA|KERAS|OMP|RINGBERT)_.*")

# Variables that Slurm, PBS, LSF and Grid Engine set in a job; mpirun then gets hosts and slots from them.
ALLOCATIONS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE")
HOST_OPTION = re.compile(r"--?(H|f|host|hosts|hostfile|machinefile)")
OUTPUT_OPTIONS = {"--output", "--tag-output", "--timestamp-output", "--stream-buffering"}  # of Open MPI

# Variables by which users choose how ranks exchange messages.
TRANSPORTS = (
    *("OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_mtl"),
    *("I_MPI_FABRICS", "FI_PROVIDER", "UCX_TLS", "MPIR_CVAR_CH4_NETMOD"),
)
HYDRA_SSH_ARGS = ("HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS")  # MPICH's, Intel MPI's


@dataclass(frozen=True)
class Options:
    """bert-launch's flags and the command that it starts.

    ``hosts`` are (name, slots); without them the ranks run on this machine or on the batch job's hosts.
    """

    command: tuple[str, ...]
    num_ranks: int
    hosts: tuple[tuple[str, int], ...] = ()
    ssh_port: int | None = None
    restarts: int = 0
    is_elastic: bool = False
    start_timeout_s: int | None = None
    mpi_args: tuple[str, ...] = ()
    is_dry_run: bool = False

    def local_ranks(self, environment: Mapping[str, str]) -> int:
        """How many ranks run on this machine; 0 if a batch job or ``--mpi-args`` names the hosts."""
        if self.hosts:
            return sum(slots for name, slots in self.hosts if name in local_names())
        in_batch_job = any(map(environment.get, ALLOCATIONS))
        return 0 if in_batch_job or any(map(HOST_OPTION.fullmatch, self.mpi_args)) else self.num_ranks


@dataclass(frozen=True)
class Mpi:
    """An installed MPI: its implementation (one of the constants above), (major, minor), mpirun's path."""

    implementation: str
    version: tuple[int, int]
    mpirun: str

    @property
    def is_open_mpi_5(self) -> bool:
        return self.implementation == OPEN_MPI and self.version >= (5, 0)


def find_mpi(mpirun: str | None = None) -> Mpi:
    """The MPI to which an mpirun belongs, by default the one that this Python's mpi4py will use.

    mpi4py looks into its virtual environment first, so an mpirun there takes precedence over the one on PATH.
    Under another MPI's mpirun every process would be alone, with one rank. Raises InputError.
    """
    if mpirun is None:
        beside = shutil.which("mpirun", path=str(Path(sys.executable).parent))
        on_path = shutil.which("mpirun")
        mpirun = (beside or on_path) if sys.prefix != sys.base_prefix else (on_path or beside)
    if mpirun is None:
        advice = "pip install '.[mpi]' in ringbert's checkout or load the cluster's MPI module"
        raise InputError(f"no mpirun found: {advice}")
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{mpirun} --version does not run: {error}") from error
    text = done.stdout + done.stderr
    for implementation, pattern in VERSIONS:
        if match := pattern.search(text):
            return Mpi(implementation, (int(match[1]), int(match[2])), mpirun)
    first_line = text.strip().partition("\n")[0] or "nothing"
    raise InputError(f"{mpirun} is not Open MPI, MPICH or Intel MPI: its --version says {first_line!r}")


def find_mpi_for(options: Options) -> Mpi | None:
    """The MPI for a job; None for one rank on this machine, which needs none. Raises InputError."""
    if options.num_ranks == 1 and not (options.is_elastic or options.mpi_args or options.hosts):
        return None
    mpi = find_mpi()
    if options.is_elastic and not mpi.is_open_mpi_5:
        shown = f"{mpi.implementation} {'.'.join(map(str, mpi.version))} ({mpi.mpirun})"
        raise InputError(f"--elastic needs Open MPI 5 or newer, found {shown}; --restarts works with all")
    return mpi


def build_command(mpi: Mpi | None, options: Options, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The command that starts mpirun with these options in this environment; without an MPI the command alone.

    Ranks are not bound to cores, because all of TensorFlow's threads would then share one core.
    """
    variables = {"RINGBERT_ELASTIC": "1"} if options.is_elastic else {}
    if options.start_timeout_s is not None:
        variables[records.START_TIMEOUT] = str(options.start_timeout_s)
    argv: list[str] = []
    if mpi is not None:
        arguments = _open_mpi if mpi.implementation == OPEN_MPI else _hydra
        argv = [mpi.mpirun, *arguments(mpi, options, {**environment, **variables})]
        variables |= _variables(mpi, options, environment)
    env = ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
    return [*env, *argv, *options.command]


def _variables(mpi: Mpi, options: Options, environment: Mapping[str, str]) -> dict[str, str]:
    """Hydra's port of ssh; and for ranks on this host alone, what restricts them to its memory: they would else
    listen on all of its addresses. Options in --mpi-args are stronger than variables."""
    variables: dict[str, str] = {}
    if options.ssh_port is not None and mpi.implementation != OPEN_MPI:
        variables |= dict.fromkeys(HYDRA_SSH_ARGS, f"-p {options.ssh_port}")
    slots = sum(number for _, number in options.hosts) or options.num_ranks
    if options.local_ranks(environment) < slots or any(map(environment.get, TRANSPORTS)):
        return variables
    if mpi.implementation == OPEN_MPI:
        memory = "self,sm" if mpi.is_open_mpi_5 else "self,vader"
        return {**variables, "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": memory}
    if mpi.implementation == INTEL_MPI:
        return {**variables, "I_MPI_FABRICS": "shm"}
    return {
        **variables,
        "FI_PROVIDER": "shm",
        "UCX_TLS": "self,sysv,posix,cma",
    }  # MPICH is built for either library


def _open_mpi(mpi: Mpi, options: Options, environment: Mapping[str, str]) -> list[str]:
    local_ranks = options.local_ranks(environment)
    argv = ["-np", str(options.num_ranks)]
    if os.geteuid() == 0:
        argv += ["--allow-run-as-root"]
    if not {"--bind-to", "-bind-to"} & set(options.mpi_args):  # Open MPI 5 refuses a second one
        argv += ["--bind-to", "none"]
    moves_bars = environment.get(records.TERMINAL) == "1" and _passes_parts(mpi)
    if moves_bars and not OUTPUT_OPTIONS & set(options.mpi_args):
        argv += ["--output", ":raw"]
    if options.hosts:
        argv += ["-H", ",".join(f"{name}:{slots}" for name, slots in options.hosts)]
    elif local_ranks:
        argv += ["--oversubscribe"]
    if local_ranks > len(os.sched_getaffinity(0)):
        # A waiting rank spins: unless it yields, it takes the core from the rank that it waits for.
        argv += ["--mca", "mpi_yield_when_idle", "1"]
    if options.ssh_port is not None:
        argv += ["--prtemca", "plm_ssh_args"] if mpi.is_open_mpi_5 else ["--mca", "plm_rsh_args"]
        argv += [f"-p {options.ssh_port}"]
    if options.is_elastic:
        argv += ["--with-ft", "ulfm"]
    # Skip variables that the user exports: given one twice, Open MPI 5 takes the first and 4.1 the last.
    exported = {arg.partition("=")[0] for flag, arg in pairwise(options.mpi_args) if flag == "-x"}
    for name in forwarded_variables(environment):
        argv += ["-x", name] * (name not in exported)
    return [*argv, *options.mpi_args]


def _passes_parts(mpi: Mpi) -> bool:
    """Whether this mpirun can pass on a line before it ends, as progress bars need it: Open MPI 5 says so in its
    help, but its first releases do not."""
    try:
        return '"RAW"' in (Path(mpi.mpirun).resolve().parents[1] / "share/prte/help-prterun.txt").read_text()
    except OSError:
        return False


def _hydra(mpi: Mpi, options: Options, environment: Mapping[str, str]) -> list[str]:
    """For MPICH and Intel MPI, whose launcher Hydra accepts root and more ranks than cores."""
    argv = []
    if mpi.implementation == INTEL_MPI:
        argv += ["-genv", "I_MPI_PIN", "0"]
    elif "-bind-to" not in options.mpi_args:
        argv += ["-bind-to", "none"]
    if options.hosts:
        argv += ["-hosts", ",".join(f"{name}:{slots}" for name, slots in options.hosts)]
    if names := forwarded_variables(environment):
        argv += ["-genvlist", ",".join(names)]
    return [*argv, *options.mpi_args, "-np", str(options.num_ranks)]  # -np ends Hydra's global options


def forwarded_variables(environment: Mapping[str, str]) -> list[str]:
    return sorted(name for name in environment if FORWARDED.fullmatch(name))


def local_names() -> frozenset[str]:
    """The names that a user may give this machine in -H."""
    name = socket.gethostname()
    return frozenset({"localhost", "127.0.0.1", name, name.partition(".")[0]})
