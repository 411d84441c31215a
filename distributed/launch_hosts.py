"""The hosts of a job: which of them answer, and the end of what an earlier start has left on them.

mpirun starts its daemons on other hosts through a remote shell: ssh, unless --mpi-args names another. The same one
is used here, because a host that it does not reach can have no ranks.
"""

import contextlib
import re
import shlex
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

from distributed import records
from distributed.mpirun import Options, local_names
from distributed.mpirun_process import say
from ringbase.errors import InputError

ANSWER_S = 10.0
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=8")
AGENT = re.compile(r"plm_[rs]sh_agent|-(bootstrap|launcher)-exec")  # arguments of mpirun
READY = "ringbert: ready"
# Ends all processes whose environment names the job.
SWEEP = f'kill -9 $(grep -lazx "{records.JOB}=$0" /proc/[0-9]*/environ | cut -d/ -f3); echo "{READY}"'


def on_ready_hosts(options: Options, job: str) -> Options:
    """The options with the hosts that answer, and at most as many ranks as they have slots.

    What is left of the job on them is killed first. Raises InputError if no host can be used.
    """
    reasons = kill_leftovers(options, job)
    if not reasons:
        return options
    listed = ", ".join(f"{host} ({reason})" for host, reason in reasons.items())
    hosts = tuple((name, slots) for name, slots in options.hosts if name not in reasons)
    if not hosts:
        raise InputError(f"not started: no host can be used: {listed}")
    ranks = min(options.num_ranks, sum(slots for _, slots in hosts))
    names = ", ".join(name for name, _ in hosts)
    say(f"without {listed}: {ranks} rank{'s' * (ranks != 1)} on {names}")
    return replace(options, hosts=hosts, num_ranks=ranks)


def kill_leftovers(options: Options, job: str) -> dict[str, str]:
    """Kills what is left of a job, on all hosts at the same time. Returns why hosts did not answer."""
    sweep, shell = ["sh", "-c", SWEEP, job], _remote_shell(options)
    hosts = [name for name, _ in options.hosts] or ["localhost"]
    commands = [sweep if _is_local(host) else [*shell, host, shlex.join(sweep)] for host in hosts]
    with ThreadPoolExecutor(max_workers=64) as pool:
        return {host: why for host, why in zip(hosts, pool.map(_failure, commands), strict=True) if why}


def _failure(argv: list[str]) -> str:
    """Why a sweep failed; empty if it did not."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {ANSWER_S:.0f} s"
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    if READY in done.stdout:
        return ""
    return (done.stderr.strip().splitlines() or [f"{argv[0]} ended with status {done.returncode}"])[-1]


def _is_local(host: str) -> bool:
    """Whether a host is this machine: by its name, or because the address is one of ours."""
    if host in local_names():
        return True
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))  # is refused for the addresses of other machines
        return True
    return False


def _remote_shell(options: Options) -> list[str]:
    """The command that mpirun puts before ``host command…`` to run a command on another host."""
    agents = [value for name, value in pairwise(options.mpi_args) if AGENT.fullmatch(name)]
    words = shlex.split(agents[0]) if agents else list(SSH)
    return words if options.ssh_port is None else [*words, "-p", str(options.ssh_port)]
