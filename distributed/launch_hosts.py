"""The hosts of a job: which of them answer, and the end of what an earlier start has left on them.

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
from distributed.mpirun import Options, local_names

ANSWER_S = 10.0
SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=8")
READY, LEFT = "ringbert: ready", "ringbert: left"
AGENTS = ("plm_ssh_agent", "plm_rsh_agent", "-bootstrap-exec", "-launcher-exec")  # arguments of mpirun
AGENT_VARIABLES = (
    *(f"{prefix}_MCA_{name}" for name in AGENTS[:2] for prefix in ("PRTE", "OMPI")),
    *("I_MPI_HYDRA_BOOTSTRAP_EXEC", "HYDRA_LAUNCHER_EXEC"),
)

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


def ready_hosts(options: Options, job: str) -> dict[str, str]:
    """Kills what is left of a job, on all hosts at the same time. Returns why each host that is not ready is not.

    A host is ready when it answers in time and no process of the job runs on it any more.
    """
    hosts, shell = [name for name, _ in options.hosts] or ["localhost"], remote_shell(options, os.environ)
    sweep = ["sh", "-c", SWEEP, job]

    def reason(host: str) -> str:
        return _reason(sweep if is_local(host) else [*shell, host, shlex.join(sweep)])

    with ThreadPoolExecutor(max_workers=64) as pool:
        return {host: why for host, why in zip(hosts, pool.map(reason, hosts), strict=True) if why}


def _reason(argv: Sequence[str]) -> str:
    """Why a host is not ready; empty if it is."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {ANSWER_S:.0f} s"
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    if READY in done.stdout:
        return ""
    if LEFT in done.stdout:
        return f"processes {done.stdout.partition(LEFT)[2].strip()} of the last start cannot be killed"
    return (done.stderr.strip().splitlines() or [f"{argv[0]} ended with status {done.returncode}"])[-1]


def is_local(host: str) -> bool:
    """Whether a host is this machine: by its name, or because the address is one of ours."""
    if host in local_names():
        return True
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)  # is refused for the addresses of other machines
                return True
    return False


def remote_shell(options: Options, environment: Mapping[str, str]) -> list[str]:
    """The command that mpirun puts before ``host command…`` to run a command on another host."""
    named = dict(pairwise(options.mpi_args))
    values = [*map(named.get, AGENTS), *map(environment.get, AGENT_VARIABLES), "ssh"]
    words = shlex.split(next(filter(None, values)).partition(":")[0])  # of several, the first one
    if os.path.basename(words[0]) == "ssh":
        words += SSH_OPTIONS
    return words if options.ssh_port is None else [*words, "-p", str(options.ssh_port)]
