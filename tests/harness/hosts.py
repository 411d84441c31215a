"""Several hosts on one machine, for tests of what needs more than one: no containers, no ssh server.

A host is a network namespace and a UTS namespace (its host name); each has a veth link to a bridge in a namespace
of its own, so that MPI between them is TCP over links of their own. They share the file system and the cores.

The namespaces are bind-mounted onto files of a temporary folder inside a private mount namespace, so nothing
on the machine bears their names and any number of sets can exist at once. A holder process keeps them until
its standard input closes; when it and all that runs in the hosts are gone, the kernel drops them. After a
SIGKILL of the test run itself only the folder remains.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distributed.mpirun import OPEN_MPI, LaunchError, Options, build_command, find_mpi, num_cores

NETWORK = "10.99.0"  # host N has the address N in it
ADDRESSES = (f"{NETWORK}.1", f"{NETWORK}.2")  # of two hosts

# Run with the folder as $1 and the number of hosts as $2 in a mount namespace of its own; says "ready" and waits
# for the end of its input.
HOLDER = f"""
set -e
cd "$1"
echo '127.0.0.1 localhost' > hosts
mount --bind hosts /etc/hosts
mount -t tmpfs tmpfs /dev/shm
touch switch.net
unshare --net=switch.net sh -c 'ip link add bridge type bridge; ip link set bridge up'
for number in $(seq $2); do
  host=host$number
  echo "{NETWORK}.$number $host" >> hosts
  touch $host.net $host.uts
  unshare --net=$host.net --uts=$host.uts sh -c "hostname $host; ip link set lo up"
  nsenter --net=$host.net ip link add eth0 type veth peer name port$number
  nsenter --net=$host.net ip link set port$number netns "$1/switch.net"
  nsenter --net=switch.net sh -c "ip link set port$number master bridge; ip link set port$number up"
  nsenter --net=$host.net sh -c "ip address add {NETWORK}.$number/24 dev eth0; ip link set eth0 up"
done
echo ready
exec cat
"""

# Called by mpirun as ssh would be, AGENT [options] address command…, and as silent about our variables.
AGENT = f"""#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in {NETWORK}.*) host=host${{1#{NETWORK}.}}; break ;; esac
  shift
done
shift
if [ -e FOLDER/$host.lost ]; then echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; fi
exec nsenter --net=FOLDER/$host.net --uts=FOLDER/$host.uts \\
  env -i HOME="$HOME" PATH=/usr/local/bin:/usr/bin:/bin TMPDIR="$TMPDIR" sh -c "$*"
"""


TCP_ONLY = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self")

# Kills the processes in the network namespace of file $0 that have variable $1 in their environment.
KILL = """
for process in /proc/[0-9]*; do
  [ "$(stat -Lc %i $process/ns/net)" = "$(stat -Lc %i $0)" ] && grep -qaz "^$1" $process/environ \\
    && kill -9 ${process#/proc/}
done 2> /dev/null"""


def available() -> str | None:
    """Why this machine cannot have two hosts, or None if it can."""
    if not sys.platform.startswith("linux"):
        return f"several hosts need Linux's namespaces, this is {sys.platform}"
    if os.geteuid() != 0:
        return "several hosts need root, to make network namespaces"
    for tool, package in {"ip": "iproute2", "nsenter": "util-linux", "hostname": "hostname"}.items():
        if shutil.which(tool) is None:
            return f"several hosts need the command {tool}: apt-get install {package}"
    probe = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "true"]
    refused = subprocess.run(probe, capture_output=True, text=True, timeout=30)
    if refused.returncode != 0:
        return f"several hosts need namespaces, which are refused here: {refused.stderr.strip()}"
    try:
        mpi = find_mpi()
    except LaunchError as error:
        return f"several hosts need Open MPI 5: {error}"
    if mpi.implementation != OPEN_MPI or mpi.version < (5, 0):
        return f"several hosts need Open MPI 5, {mpi.mpirun} is {mpi.implementation} {mpi.version}"
    return None


@dataclass(frozen=True)
class Hosts:
    """What `simulated_hosts` yields: the folder of the namespaces' files and the process that keeps them."""

    folder: Path
    holder_pid: int
    number: int

    @property
    def names(self) -> list[str]:
        return [f"host{number}" for number in range(1, self.number + 1)]

    @property
    def addresses(self) -> list[str]:
        return [f"{NETWORK}.{number}" for number in range(1, self.number + 1)]

    def run(
        self,
        host: int,
        command: Sequence[str],
        timeout: float,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``command`` on a host, from 0, in this folder, with ``env`` added to our environment.

        After ``timeout`` seconds it, and every process that it started on any host, is killed and
        subprocess.TimeoutExpired raised. On its own end, too, what it left behind on the hosts is killed.
        """
        name = self.names[host]
        # The daemons name their folders by process id, which is the same small number in every run.
        temporary = tempfile.mkdtemp(dir=self.folder)
        enter_folder = ["nsenter", *self._enter_mounts, f"--wdns={Path.cwd()}"]
        own_processes = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        enter_host = ["nsenter", f"--net={self.folder}/{name}.net", f"--uts={self.folder}/{name}.uts"]
        return subprocess.run(
            ["setpriv", "--pdeathsig", "KILL", *enter_folder, *own_processes, *enter_host, *command],
            env={**os.environ, "TMPDIR": temporary, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def lose(self, host: int, is_cut: bool) -> None:
        """The host answers no more: everything on it is killed, or the link to it is cut (`is_cut`)."""
        name = self.names[host]
        (self.folder / f"{name}.lost").touch()
        if is_cut:
            down = ["ip", "link", "set", "eth0", "down"]
            enter = ["nsenter", *self._enter_mounts, "nsenter", f"--net={self.folder}/{name}.net"]
            subprocess.run([*enter, *down], check=True)
        else:
            self.kill(host)

    def kill(self, host: int, variable: str = "") -> None:
        """Kills the processes of a host, or those that have a variable in their environment."""
        namespace = f"{self.folder}/{self.names[host]}.net"
        subprocess.run(["nsenter", *self._enter_mounts, "sh", "-c", KILL, namespace, variable])

    @property
    def _enter_mounts(self) -> list[str]:
        return [f"--mount=/proc/{self.holder_pid}/ns/mnt"]

    @property
    def agent(self) -> list[str]:
        """The arguments of mpirun by which it starts daemons on the hosts."""
        return ["--prtemca", "plm_ssh_agent", str(self.folder / "agent")]

    def mpirun(
        self,
        np_per_host: int,
        command: Sequence[str],
        timeout: float,
        env: Mapping[str, str] | None = None,
        mpi_args: Sequence[str] = (),
        num_hosts: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``command`` on ``np_per_host`` ranks of each host, over TCP, as bert-launch would; see ``run``.

        With ``num_hosts`` only the first ones take part. ``mpi_args`` are further arguments of mpirun, which runs
        on host 0.
        """
        addresses = self.addresses[:num_hosts]
        num_ranks = np_per_host * len(addresses)
        yielding = ["--mca", "mpi_yield_when_idle", "1"] if num_ranks > num_cores() else []
        options = Options(
            command=tuple(command),
            num_ranks=num_ranks,
            hosts=tuple((address, np_per_host) for address in addresses),
            mpi_args=(*TCP_ONLY, *self.agent, *yielding, *mpi_args),
        )
        built = build_command(find_mpi(), options, {**os.environ, **(env or {})})
        return self.run(0, built.argv, timeout, {**(env or {}), **built.variables})


@contextlib.contextmanager
def simulated_hosts(number: int) -> Iterator[Hosts]:
    """Make hosts; at the end remove them and all that runs on them. Needs ``available()`` to be None."""
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    holder = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", HOLDER, "sh", str(folder), str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    mount_namespace = None
    try:
        agent = folder / "agent"
        agent.write_text(AGENT.replace("FOLDER", shlex.quote(str(folder))))
        agent.chmod(0o755)
        line = holder.stdout.readline().strip()
        if line != "ready":
            raise RuntimeError(f"the hosts cannot be made: {line} {holder.communicate(timeout=10)[0]}".strip())
        mount_namespace = os.readlink(f"/proc/{holder.pid}/ns/mnt")
        yield Hosts(folder, holder.pid, number)
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.kill()
        holder.wait()
        if mount_namespace is not None:
            kill_all_in(mount_namespace)
        shutil.rmtree(folder)


def two_hosts() -> contextlib.AbstractContextManager[Hosts]:
    return simulated_hosts(2)


def kill_all_in(mount_namespace: str, timeout: float = 10) -> None:
    """Kill every process of a mount namespace and wait until none is left."""
    give_up = time.monotonic() + timeout
    while pids := processes_in(mount_namespace):
        assert time.monotonic() < give_up, f"processes {pids} survive SIGKILL"
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def processes_in(mount_namespace: str) -> list[int]:
    """The ids of the processes in a mount namespace, which is named as in /proc/PID/ns/mnt."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(folder / "ns/mnt") == mount_namespace:
                pids.append(int(folder.name))
    return pids
