"""Several hosts on one machine, without containers or an ssh server.

A host is a network namespace and a UTS namespace (its host name) with a veth link to a bridge, so
that MPI between them is TCP. They share files and cores. The namespaces are bind-mounted onto files
of a temporary folder in a private mount namespace; the kernel drops them with the holder process.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.jobs import Done, launch
from harness.mpi import ENVIRONMENT, HANGS_S

from distributed.mpirun import find_mpi

NETWORK = "10.99.0"  # host N has the address N in it
VARIABLES = {**ENVIRONMENT, "RINGBERT_NETWORK": f"{NETWORK}.0/24"}

# Run with the folder as $1 and the number of hosts as $2 in a mount namespace of its own; says
# "ready" and waits for the end of its input.
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

# Called by mpirun as ssh would be, AGENT [options] address command…, and as silent about our
# variables.
AGENT = f"""#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in {NETWORK}.*) host=host${{1#{NETWORK}.}}; break ;; esac
  shift
done
shift
if [ -e FOLDER/$host.lost ]; then
  echo "ssh: connect to host $host port 22: No route to host" >&2
  exit 255
fi
exec nsenter --net=FOLDER/$host.net --uts=FOLDER/$host.uts \\
  env -i HOME="$HOME" PATH=/usr/local/bin:/usr/bin:/bin TMPDIR="$TMPDIR" sh -c "$*"
"""

# More ranks than cores share them, whichever host they are on.
TCP_ONLY = "--mca pml ob1 --mca btl tcp,self --mca mpi_yield_when_idle 1"

# Kills the processes in the network namespace of file $0 that have variable $1 in their
# environment.
KILL = """
for process in /proc/[0-9]*; do
  [ "$(stat -Lc %i $process/ns/net)" = "$(stat -Lc %i $0)" ] && grep -qaz "^$1" $process/environ \\
    && kill -9 ${process#/proc/}
done 2> /dev/null"""


def available():
    """Why this machine cannot have several hosts, or None if it can."""
    if not (shutil.which("ip") and shutil.which("hostname")):
        return "several hosts need the commands ip and hostname: apt-get install iproute2 hostname"
    probe = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "true"]
    if subprocess.run(probe, timeout=HANGS_S).returncode != 0:
        return "several hosts need namespaces, for which one must be root"
    return None if find_mpi().is_open_mpi_5 else "several hosts need Open MPI 5"


@dataclass(frozen=True)
class Hosts:
    """The folder of the namespaces' files and the process that keeps them."""

    folder: Path
    holder_pid: int
    number: int

    @property
    def addresses(self):
        return [f"{NETWORK}.{number}" for number in range(1, self.number + 1)]

    def run(self, host, command, timeout=HANGS_S, env=VARIABLES):
        """Runs a command on a host, from 0, in this folder. What it starts on any host is killed
        with its end."""
        # The daemons name their folders by process id, which is the same small number in every run.
        temporary = tempfile.mkdtemp(dir=self.folder)
        own_processes = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        enter = [*self._enter(), f"--wdns={Path.cwd()}", *own_processes, *self._enter(host)]
        done = subprocess.run(
            ["setpriv", "--pdeathsig", "KILL", *enter, *command],
            env={**os.environ, "TMPDIR": temporary, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def launch(self, np_per_host, *command, flags=(), num_hosts=None):
        """The command line of bert-launch with so many ranks on each host, or on each of the first
        `num_hosts`."""
        hosts = [f"{address}:{np_per_host}" for address in self.addresses[:num_hosts]]
        mpi_args = f"--mpi-args={TCP_ONLY} --prtemca plm_ssh_agent {self.folder}/agent"
        return launch(
            np_per_host * len(hosts), *command, flags=("-H", ",".join(hosts), mpi_args, *flags)
        )

    def lose(self, host, is_cut):
        """The host answers no more: everything on it is killed, or the link to it is cut
        (`is_cut`)."""
        (self.folder / f"host{host + 1}.lost").touch()
        if is_cut:
            down = ["ip", "link", "set", "eth0", "down"]
            subprocess.run([*self._enter(), *self._enter(host), *down], check=True)
        else:
            self.kill(host)

    def kill(self, host, variable=""):
        """Kills the processes of a host, or those that have a variable in their environment."""
        subprocess.run(
            [*self._enter(), "sh", "-c", KILL, f"{self.folder}/host{host + 1}.net", variable]
        )

    def _enter(self, host=None):
        """The command that enters a host, or the hosts' common mount namespace."""
        if host is None:
            return ["nsenter", f"--mount=/proc/{self.holder_pid}/ns/mnt"]
        name = f"{self.folder}/host{host + 1}"
        return ["nsenter", f"--net={name}.net", f"--uts={name}.uts"]


@contextlib.contextmanager
def simulated_hosts(number):
    """Makes hosts; at the end removes them. Needs `available()` to be None."""
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    agent = folder / "agent"
    agent.write_text(AGENT.replace("FOLDER", shlex.quote(str(folder))))
    agent.chmod(0o755)
    holder = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", HOLDER, "sh", str(folder), str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with holder:
        try:
            assert holder.stdout is not None
            line = holder.stdout.readline().strip()
            assert line == "ready", f"the hosts cannot be made: {line}"
            yield Hosts(folder, holder.pid, number)
        finally:
            holder.kill()
    shutil.rmtree(folder)
