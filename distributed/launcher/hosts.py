"""The hosts of a job: which of them answer, and whether processes of an earlier job still run on them.

mpirun starts its daemons on other hosts through a remote shell, ssh unless the user says otherwise. The same shell
is used here, because a host that it does not reach can have no ranks.
"""

import contextlib
import os
import shlex
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from distributed import records
from distributed.launcher.mpirun import INTEL_MPI, OPEN_MPI, Mpi
from distributed.launcher.options import Options

ANSWER_S = 10.0
SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=8")
READY, LEFT = "ringbert: ready", "ringbert: left"

# Ends all processes whose environment names the job, and prints READY, or LEFT with those that cannot be killed.
SWEEP = f"""\
pids() {{ grep -lazx "{records.JOB}=$0" /proc/[0-9]*/environ 2> /dev/null | cut -d/ -f3; }}
for wait in 0 0.2 0.5 1 2; do
  left=$(pids)
  [ -z "$left" ] && echo "{READY}" && exit
  kill -9 $left 2> /dev/null
  sleep $wait
done
echo "{LEFT}" $left"""


def local_host_names() -> frozenset[str]:
    """The names that a user may give this machine in -H."""
    name = socket.gethostname()
    return frozenset({"localhost", "127.0.0.1", name, name.partition(".")[0]})


def is_local(name: str) -> bool:
    """Whether a host is this machine: by its name, or because the address is one of ours."""
    if name in local_host_names():
        return True
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)  # is refused for the addresses of other machines
                return True
    return False


def remote_shell(mpi: Mpi, options: Options, environment: Mapping[str, str]) -> list[str]:
    """The command that mpirun puts before ``host command…`` to run a command on another host."""
    if mpi.implementation == OPEN_MPI:
        names = ("plm_ssh_agent", "plm_rsh_agent")
        variables = [f"{prefix}{name}" for name in names for prefix in ("PRTE_MCA_", "OMPI_MCA_")]
        after = {name: value for name, value in pairwise(options.mpi_args) if name in names}
        agent = next(iter(after.values()), "") or _first(environment, variables)
        agent = agent.partition(":")[0].strip()  # of several, the first that is installed is used
    else:
        intel = mpi.implementation == INTEL_MPI
        own = ("-bootstrap-exec", "-launcher-exec")
        after = {name: value for name, value in pairwise(options.mpi_args) if name in own}
        variables = ["I_MPI_HYDRA_BOOTSTRAP_EXEC"] if intel else ["HYDRA_LAUNCHER_EXEC"]
        agent = next(iter(after.values()), "") or _first(environment, variables)
    words = shlex.split(agent) or ["ssh"]
    if os.path.basename(words[0]) == "ssh":
        words += SSH_OPTIONS
    if options.ssh_port is not None:
        words += ["-p", str(options.ssh_port)]
    return words


def _first(environment: Mapping[str, str], names: Sequence[str]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def ready_hosts(shell: Sequence[str], hosts: Sequence[str], job: str, timeout: float = ANSWER_S) -> dict[str, str]:
    """Asks all hosts at the same time; returns why each that is not ready is not: host -> reason.

    A host is ready when it answers in time and no process of `job` runs on it any more. Those that do are killed.
    """

    def reason(host: str) -> str:
        sweep = ["sh", "-c", SWEEP, job]
        argv = sweep if is_local(host) else [*shell, host, shlex.join(sweep)]
        return _reason(argv, timeout)

    with ThreadPoolExecutor(max_workers=64) as pool:
        reasons = dict(zip(hosts, pool.map(reason, hosts), strict=True))
    return {host: why for host, why in reasons.items() if why}


def _reason(argv: Sequence[str], timeout: float) -> str:
    """Why a host is not ready; empty if it is."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout:.0f} s"
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    if READY in done.stdout:
        return ""
    if LEFT in done.stdout:
        numbers = done.stdout.partition(LEFT)[2].split()
        return f"processes {','.join(numbers)} of the last start cannot be killed"
    lines = done.stderr.strip().splitlines() or [f"{argv[0]} ended with status {done.returncode}"]
    return lines[-1]
