"""The `mpirun` command of a job, for Open MPI 4 and 5, MPICH and Intel MPI."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from distributed import launcher, network
from distributed.hosts import INTEL_MPI, MPICH, OPEN_MPI, READ_BY_MPIRUN, hosts_named
from ringbase.errors import InputError

VERSIONS = {  # in the output of mpirun --version
    OPEN_MPI: r"\((?:Open MPI|OpenRTE)\) v?(\d+)\.(\d+)",
    INTEL_MPI: r"(?s)Intel\(R\) MPI Library.*?Version (\d+)\.(\d+)",
    MPICH: r"(?s)HYDRA build details:.*?Version:\s*(\d+)\.(\d+)",
}
# variables by which ranks on one host exchange messages in its memory alone, and open no port
MEMORY = {
    OPEN_MPI: {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"},
    INTEL_MPI: {"I_MPI_FABRICS": "shm"},
    # it is built for either library
    MPICH: {"FI_PROVIDER": "shm", "UCX_TLS": "self,sysv,posix,cma"},
}
# by which users choose how ranks exchange messages
TRANSPORTS = ("OMPI_MCA_mtl", *chain(*MEMORY.values()))
SSH_ARGS = {MPICH: "HYDRA_LAUNCHER_EXTRA_ARGS", INTEL_MPI: "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"}
# Names of the variables that ranks on other hosts need; the values stay off the command line.
FORWARDED = re.compile(
    r"PATH|PYTHONPATH|LD_LIBRARY_PATH|VIRTUAL_ENV|(TF|CUDA|NCCL|HF|XLA|KERAS|OMP|RINGBERT|HOROVOD)_.*"
)
HOST_OPTION = re.compile(r"--?(H|f|host|hosts|hostfile|machinefile)")
OUTPUT_OPTION = re.compile(r"--((tag-|timestamp-)?output|stream-buffering)")  # of Open MPI
# Of Open MPI 5.0's collectives han, its choice for several hosts, hides deaths: it returns success
# and a wrong sum (open-mpi/ompi#11794). The other two --with-ft ulfm leaves out itself.
SAFE_SUMS = "^han,hcoll,portals4"
NO_PROGRAM = "{program} cannot be started on {host}: is its name right, and is it installed there?"
FULL = "TMPDIR, the folder for temporary files, is full: set it to one that has some megabytes left"
UNREACHABLE = (
    "ranks on two hosts cannot reach each other at {address}: set RINGBERT_NETWORK to the network"
    " that joins them, such as 10.0.0.0/24"
)
# What Open MPI and Hydra print when they cannot start the ranks, and what that means.
OBSTACLES = {
    r"not enough space for (?P<folder>/\S+)/\S+ \(the shared-memory backing\s+file\)"
    r"[\s\S]+?Local host: +(?P<host>\S+)\s+Space Requested: (?P<needed>\d+) B"
    r"\s+Space Available: (?P<free>\d+)[\s\S]+?unable to reach each other": (
        "{folder} on {host} has {free} bytes left, and each rank needs {needed}: docker run"
        " --shm-size 4g, in Kubernetes an emptyDir of medium Memory"
    ),
    r"unable to create the desired directory:\s+Directory: (?P<folder>\S+)"
    r"\s+Error: +(?P<error>.+)": ("{folder}: {error}: set TMPDIR to a folder that can be written"),
    r"PMIX_ERR_FILE_(WRITE|OPEN)_FAILURE": FULL,
    r"find the specified executable[\s\S]+?Node: +(?P<host>\S+)\s+Executable: (?P<program>\S+)": (
        NO_PROGRAM
    ),
    r"access an executable:\s+Executable: (?P<program>\S+)\s+Node: (?P<host>\S+)": NO_PROGRAM,
    r"Local host: +(?P<host>\S+)\s+Working dir: .+\s+Application name: +(?P<program>\S+)": (
        NO_PROGRAM
    ),
    r"No components were able to be opened in the (?P<framework>\S+) framework": (
        "this Open MPI can open nothing that OMPI_MCA_{framework} (or --mca {framework}) names:"
        " unset OMPI_MCA_{framework}"
    ),
    r"Unable to connect to the peer (?P<address>[\d.]+) on port": UNREACHABLE,
    r"connect\(\) to (?P<address>[\d.]+):\d+ failed": UNREACHABLE,
    r"proxy:\S+@(?P<host>[^\]\s]+)\].*execvp error on file (?P<program>\S+)": NO_PROGRAM,
}


class Mpi(NamedTuple):
    """An installed MPI."""

    implementation: str
    version: tuple[int, int]  # major, minor
    mpirun: str

    def __str__(self) -> str:
        return f"{self.implementation} {self.version[0]}.{self.version[1]} ({self.mpirun})"

    @property
    def is_open_mpi_5(self) -> bool:
        return self.implementation == OPEN_MPI and self.version >= (5, 0)


def find_mpi(mpirun: str | None = None) -> Mpi:
    """The MPI to which an mpirun belongs, by default that of this Python's mpi4py, which looks into
    its virtual environment before PATH. Under another MPI's mpirun each process would be alone.
    Raises InputError."""
    if mpirun is None:
        on_path = shutil.which("mpirun")
        beside = shutil.which("mpirun", path=Path(sys.executable).parent)
        mpirun = (beside or on_path) if sys.prefix != sys.base_prefix else (on_path or beside)
    if mpirun is None:
        raise InputError(
            "no mpirun found: pip install '.[mpi]' in the checkout, or load the cluster's MPI"
            " module"
        )
    command = [mpirun, "--version"]
    text = subprocess.run(command, stdout=-1, stderr=subprocess.STDOUT, text=True).stdout
    for implementation, pattern in VERSIONS.items():
        if match := re.search(pattern, text):
            return Mpi(implementation, (int(match[1]), int(match[2])), mpirun)
    first_line = text.strip().partition("\n")[0]
    raise InputError(
        f"{mpirun} is not Open MPI, MPICH or Intel MPI: its --version says {first_line!r}"
    )


def foreign_transports(mpi: Mpi, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables by which a site chooses how ranks of its own Open MPI exchange messages, and the
    first component that each names and this one lacks: all ranks would end, or warn."""
    info = Path(mpi.mpirun).with_name("ompi_info")
    chosen = {name: environment[name] for name in network.OF_A_SITE if environment.get(name)}
    if not chosen or mpi.implementation != OPEN_MPI or not info.exists():
        return {}
    text = subprocess.run([info, "--parsable"], capture_output=True, text=True).stdout
    found = {}
    for name, value in chosen.items():
        framework = name.removeprefix("OMPI_MCA_")
        present = set(re.findall(rf"^mca:{framework}:([^:]+):", text, re.MULTILINE))
        wanted = [] if value.startswith("^") else value.split(",")  # ^: all others
        lacking = [component for component in wanted if component not in present]
        if present and lacking:
            found[name] = lacking[0]
    return found


def names_hosts(mpi_args: Sequence[str]) -> bool:
    """Whether arguments of mpirun name hosts."""
    return any(map(HOST_OPTION.fullmatch, mpi_args))


def with_hosts(mpi: Mpi, options: Namespace, environment: Mapping[str, str]) -> Namespace:
    """bert-launch's options with the hosts that variables name, if the user names none. Raises
    InputError as `hosts_named`, and if there are fewer slots than ranks."""
    if options.hosts or names_hosts(options.mpi_args):
        return options
    named = hosts_named(mpi.implementation, environment)
    slots = sum(named.hosts.values())
    if named.hosts and options.num_proc > slots:
        raise InputError(
            f"-np {options.num_proc}: the batch system has given this job {slots} slots, on"
            f" {', '.join(named.hosts)}: lower -np, or name hosts by -H"
        )
    given = {"hosts": dict(named.hosts), "mpi_args": [*named.mpi_args, *options.mpi_args]}
    return Namespace(**vars(options) | given)


def build_command(
    mpi: Mpi | None, options: Namespace, environment: Mapping[str, str] = os.environ
) -> list[str]:
    """The command of a job with bert-launch's options in this environment; without an MPI the
    program alone."""
    variables = dict(options.variables)
    if options.elastic:
        variables[launcher.ELASTIC] = "1"
    if options.start_timeout is not None:
        variables[launcher.START_TIMEOUT] = str(options.start_timeout)
    argv: list[str] = []
    if mpi is not None:
        names = sorted(filter(FORWARDED.fullmatch, {**environment, **variables}))
        hosts = options.hosts
        are_named = names_hosts(options.mpi_args) or any(map(environment.get, READ_BY_MPIRUN))
        if not (hosts or are_named):
            hosts = {"localhost": options.num_proc}
        local_slots = sum(slots for name, slots in hosts.items() if is_local(name))
        if mpi.implementation == OPEN_MPI:
            is_terminal = environment.get(launcher.TERMINAL, "0") != "0"
            argv = _open_mpi(mpi, options, names, is_terminal, local_slots)
        else:
            argv = _hydra(mpi, options, names)
            if options.ssh_port is not None:
                variables[SSH_ARGS[mpi.implementation]] = f"-p {options.ssh_port}"
        is_one_host = 0 < local_slots == sum(hosts.values())
        if mpi.implementation == OPEN_MPI and not is_one_host:
            chosen = " ".join(options.mpi_args)
            variables |= network.variables_of_daemons(environment)
            if "btl_tcp_if_" not in chosen:
                variables |= network.variables_of_ranks(environment)
                prefix = Path(mpi.mpirun).resolve().parents[1]
                variables |= network.without_own_networks(environment, prefix)
        if is_one_host and not any(map(environment.get, TRANSPORTS)):
            variables |= MEMORY[mpi.implementation]
            if mpi.implementation == OPEN_MPI and not mpi.is_open_mpi_5:
                variables["OMPI_MCA_btl"] = "self,vader"
    env = ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
    return [*env, *argv, *options.command]


def _open_mpi(
    mpi: Mpi, options: Namespace, names: list[str], is_terminal: bool, local_slots: int
) -> list[str]:
    argv = [mpi.mpirun, "-np", str(options.num_proc)]
    if os.geteuid() == 0:
        argv += ["--allow-run-as-root"]
    if not {"--bind-to", "-bind-to"} & set(options.mpi_args):  # Open MPI 5 refuses a second one
        argv += ["--bind-to", "none"]  # else all of TensorFlow's threads would share one core
    if is_terminal and not any(map(OUTPUT_OPTION.fullmatch, options.mpi_args)):
        # Bars need parts of lines, which the first releases of Open MPI 5 cannot pass on.
        help_text = Path(mpi.mpirun).resolve().parents[1] / "share/prte/help-prterun.txt"
        if help_text.exists() and '"RAW"' in help_text.read_text():
            argv += ["--output", ":raw"]
    if options.hosts:
        argv += ["-H", ",".join(f"{name}:{slots}" for name, slots in options.hosts.items())]
    elif local_slots:
        argv += ["--oversubscribe"]
    if local_slots > len(os.sched_getaffinity(0)):
        # A waiting rank spins: unless it yields, it takes the core from the rank that it waits for.
        argv += ["--mca", "mpi_yield_when_idle", "1"]
    if options.ssh_port is not None:
        argv += ["--prtemca", "plm_ssh_args"] if mpi.is_open_mpi_5 else ["--mca", "plm_rsh_args"]
        argv += [f"-p {options.ssh_port}"]
    if options.elastic:
        argv += ["--with-ft", "ulfm"]
        if "coll" not in options.mpi_args:
            argv += ["--mca", "coll", SAFE_SUMS]
    # Skip variables that the user exports: given one twice, Open MPI 5 takes the first and 4.1 the
    # last.
    exported = {arg.partition("=")[0] for flag, arg in pairwise(options.mpi_args) if flag == "-x"}
    exports = [word for name in names if name not in exported for word in ("-x", name)]
    return [*argv, *exports, *options.mpi_args]


def _hydra(mpi: Mpi, options: Namespace, names: list[str]) -> list[str]:
    """For MPICH and Intel MPI, whose launcher Hydra accepts root and more ranks than cores."""
    argv = [mpi.mpirun, "-genvlist", ",".join(names)]
    if mpi.implementation == INTEL_MPI:
        argv += ["-genv", "I_MPI_PIN", "0"]
    elif "-bind-to" not in options.mpi_args:
        argv += ["-bind-to", "none"]
    if options.hosts:
        hosts = [f"{name}:{slots}" for name, slots in options.hosts.items()]
        argv += ["-hosts", ",".join(hosts)]
    # -np ends Hydra's global options
    return [*argv, *options.mpi_args, "-np", str(options.num_proc)]


def obstacle(text: str) -> str | None:
    """What kept MPI from starting the ranks and what to do, by what it printed; None if unknown."""
    for pattern, meaning in OBSTACLES.items():
        if match := re.search(pattern, text):
            return meaning.format(**match.groupdict())
    return None


def is_local(host: str) -> bool:
    """Whether a name or an address is one of this machine's."""
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))  # is refused for the addresses of other machines
        return True
    return host == socket.gethostname()
