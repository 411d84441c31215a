"""Which hosts a job has, where `-H` does not name them: what MPI's launchers and batch systems say
in variables.

A job whose variables name other hosts never starts all its ranks on this one: their lists are
taken, left to the mpirun that reads them, or refused with the line that gives them as `-H`.
"""

import argparse
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ringbase.errors import InputError

Environment = Mapping[str, str]
HOST = re.compile(r"([A-Za-z0-9][\w.-]*)(?::([1-9][0-9]*))?")  # name and slots
OPEN_MPI, MPICH, INTEL_MPI = "Open MPI", "MPICH", "Intel MPI"
# Variables with the path of a host file, as Kubernetes' operators set them, and the MPI whose
# launcher reads them.
HOST_FILES = {
    "OMPI_MCA_orte_default_hostfile": OPEN_MPI,
    "OMPI_MCA_prte_default_hostfile": OPEN_MPI,
    "PRTE_MCA_prte_default_hostfile": OPEN_MPI,
    "HYDRA_HOST_FILE": MPICH,
    "I_MPI_HYDRA_HOST_FILE": INTEL_MPI,
}
HOST_FILE_FLAG = {OPEN_MPI: "--hostfile", MPICH: "-f", INTEL_MPI: "-f"}
# by which mpirun itself finds its hosts: Slurm's and PBS'
READ_BY_MPIRUN = ("SLURM_JOB_NODELIST", "PBS_NODEFILE")
COUNTED = '-H $(sort {file} | uniq -c | awk \'{{printf "%s%s:%s", s, $2, $1; s=","}}\')'


class Batch(NamedTuple):
    """A batch system whose list of hosts mpirun does not read."""

    name: str
    variable: str  # that is set in a job of several hosts
    advice: str


# By pip's Open MPI at least; what another one was built for nobody can tell beforehand.
REFUSED = (
    Batch(
        "Grid Engine",
        "PE_HOSTFILE",
        '-H $(awk \'{printf "%s%s:%s", s, $1, $2; s=","}\' $PE_HOSTFILE)',
    ),
    Batch("OAR", "OAR_NODEFILE", COUNTED.format(file="$OAR_NODEFILE")),
    Batch("Cobalt", "COBALT_NODEFILE", COUNTED.format(file="$COBALT_NODEFILE")),
    Batch("LoadLeveler", "LOADL_HOSTFILE", COUNTED.format(file="$LOADL_HOSTFILE")),
    Batch("Flux", "FLUX_URI", "-H HOST:SLOTS,…, or start it by flux run -n N"),
)


class Named(NamedTuple):
    """What variables say of a job's hosts."""

    hosts: Mapping[str, int] = {}  # with their slots, as of -H
    mpi_args: tuple[str, ...] = ()  # that tell mpirun


def hosts_named(implementation: str, environment: Environment = os.environ) -> Named:
    """The hosts of a job for which the user names none; nothing where that is this machine alone,
    or where mpirun finds them itself. Raises InputError: a list that this MPI does not read, or
    that cannot be read."""
    for variable, reader in HOST_FILES.items():
        if path := environment.get(variable):
            return _host_file(variable, path, reader, implementation)
    if any(map(environment.get, READ_BY_MPIRUN)):
        return Named()
    if environment.get("LSB_JOBID") or environment.get("LSB_HOSTS"):
        return Named(hosts=_of_lsf(environment))
    for batch in REFUSED:
        if environment.get(batch.variable):
            raise InputError(
                f"a job of {batch.name} ({batch.variable} is set), whose hosts mpirun does not"
                f" find: name them: {batch.advice}; for this machine alone -H localhost:N"
            )
    return Named()


def _host_file(variable: str, path: str, reader: str, implementation: str) -> Named:
    if reader != implementation:
        raise InputError(
            f"{variable} names the hosts for {reader}, and this is {implementation}: give"
            f" --mpi-args '{HOST_FILE_FLAG[implementation]} FILE' with a file in its format, or -H"
        )
    if not os.access(path, os.R_OK):
        raise InputError(f"{variable}: the host file {path} cannot be read")
    return Named(mpi_args=(HOST_FILE_FLAG[reader], path))


def _of_lsf(environment: Environment) -> dict[str, int]:
    """The hosts of a job of LSF, which leaves LSB_HOSTS empty if the list is longer than 4,096
    bytes. Raises InputError: there is none."""
    readings: tuple[tuple[str, Callable[[str], Counter]], ...] = (
        ("LSB_MCPU_HOSTS", _pairs),
        ("LSB_HOSTS", lambda text: Counter(text.split())),
        ("LSB_DJOB_HOSTFILE", lambda path: Counter(Path(path).read_text().split())),
    )
    for variable, read in readings:
        text = environment.get(variable, "")
        if not text.strip():
            continue
        try:
            hosts = read(text)
        except (OSError, ValueError) as error:
            raise InputError(f"{variable}, the hosts of this job of LSF: {error}") from None
        if hosts:
            return dict(hosts)
    raise InputError(
        "a job of LSF (LSB_JOBID is set) that names no hosts in LSB_MCPU_HOSTS, LSB_HOSTS or"
        " LSB_DJOB_HOSTFILE: give -H HOST:SLOTS,…"
    )


def _pairs(text: str) -> Counter:
    """Of "node1 2 node2 2"."""
    words = text.split()
    if len(words) % 2 or not all(re.fullmatch("[1-9][0-9]*", word) for word in words[1::2]):
        raise ValueError(f"needs hosts, each with its number of slots, got {text[:80]!r}")
    hosts: Counter = Counter()
    for host, slots in zip(words[::2], words[1::2], strict=True):
        hosts[host] += int(slots)
    return hosts


def hosts_in(text: str) -> dict[str, int]:
    """``"a:4,b"`` as {"a": 4, "b": 1}."""
    matches = [HOST.fullmatch(part) for part in text.split(",")]
    if "::" in text or "[" in text:
        raise argparse.ArgumentTypeError(
            f"addresses of IPv6 need a name, which /etc/hosts can give them: mpirun reads {text!r}"
            " as names and slots"
        )
    hosts = {match[1]: int(match[2] or 1) for match in matches if match}
    if len(hosts) < len(matches):
        raise argparse.ArgumentTypeError(
            f"needs each host once, for example node1:4,node2:4, got {text!r}"
        )
    return hosts


def hosts_of_file(path: str) -> dict[str, int]:
    """The hosts of a file with lines such as `node1 slots=4`."""
    try:
        lines = [line.partition("#")[0].split() for line in Path(path).read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {error}") from None
    pairs = []
    for host, *others in filter(None, lines):
        slots = others[0].removeprefix("slots=") if others else "1"
        pairs.append(f"{host}:{slots}")
    return hosts_in(",".join(pairs))
