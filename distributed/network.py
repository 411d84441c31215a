"""The network over which the ranks of several machines reach each other, as MPI is told it.

RINGBERT_NETWORK names it. Without it Open MPI takes every network on which both machines have an
address, also one that each machine has for itself: that of Docker, virtual machines or Kubernetes.
"""

import ipaddress
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from ringbase.errors import InputError

VARIABLE = "RINGBERT_NETWORK"
# Interfaces that a machine has for its own containers and virtual machines; Open MPI passes over
# those that a machine has not, and excludes the first two by default.
OF_ONE_MACHINE = (
    *("127.0.0.1/8", "sppp"),
    *("docker0", "podman0", "cni0", "cni-podman0", "lxcbr0", "lxdbr0", "virbr0", "flannel.1"),
)
# by which a site chooses how ranks of its own Open MPI exchange messages
OF_A_SITE = "OMPI_MCA_btl", "OMPI_MCA_mtl", "OMPI_MCA_pml"
INCLUDE, EXCLUDE = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"
# of the daemons that Open MPI 5 and 4 start on each host
OF_DAEMONS = ("PRTE_MCA_prte_if_include", "OMPI_MCA_oob_tcp_if_include")


def network(environment: Mapping[str, str] = os.environ) -> ipaddress.IPv4Network | None:
    """The one that RINGBERT_NETWORK names. Raises InputError: it is none."""
    wanted = environment.get(VARIABLE)
    if not wanted:
        return None
    try:
        return ipaddress.IPv4Network(wanted, strict=False)
    except ValueError as error:
        raise InputError(
            f"{VARIABLE}={wanted} is not a network such as 10.0.0.0/24 ({error})"
        ) from None


def variables_of_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """By which Open MPI's ranks take this network; none if the user has chosen one."""
    wanted = network(environment)
    if not wanted or environment.get(INCLUDE) or environment.get(EXCLUDE):
        return {}
    return {INCLUDE: str(wanted)}


def without_own_networks(environment: Mapping[str, str], prefix: Path) -> dict[str, str]:
    """By which Open MPI's ranks pass over networks that each machine has for itself; none where
    anybody has chosen, also in a file of the Open MPI in the folder `prefix`: it refuses both."""
    files = (
        Path(environment.get("HOME", "/")) / ".openmpi/mca-params.conf",
        prefix / "etc/openmpi-mca-params.conf",
    )
    texts = [path.read_text(errors="replace") for path in files if os.access(path, os.R_OK)]
    is_chosen = environment.get(INCLUDE) or environment.get(EXCLUDE)
    if is_chosen or network(environment) or any("btl_tcp_if_" in text for text in texts):
        return {}
    return {EXCLUDE: ",".join(OF_ONE_MACHINE)}


def variables_of_daemons(environment: Mapping[str, str]) -> dict[str, str]:
    """By which mpirun and its daemons take this network."""
    wanted = network(environment)
    if not wanted:
        return {}
    return {name: str(wanted) for name in OF_DAEMONS if not environment.get(name)}


def tell_mpi(environment: MutableMapping[str, str] = os.environ) -> None:
    """Tells the MPI library that this process is about to start."""
    environment.update(variables_of_ranks(environment))
