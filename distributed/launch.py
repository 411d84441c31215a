"""``bert-launch``: starts the ranks of a program under whichever MPI is installed, as ``horovodrun`` did.

It builds one ``mpirun`` command, prints it and runs it. Whether the job succeeded is decided by what the ranks
tell (`distributed.launcher`), and a job that broke off can be started again.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import compress, pairwise
from typing import NoReturn

from distributed import launcher
from distributed.mpirun import Mpi, build_command, find_mpi, is_local
from distributed.mpirun_process import MpirunProcess, end_with_parent, say
from ringbase.errors import InputError, one_line

DESCRIPTION = """\
Start COMMAND on N ranks, here or on several hosts, under the MPI that is installed (Open MPI 4 and 5, MPICH,
Intel MPI). The successor of horovodrun: -np, -H and -p mean the same."""
EXAMPLES = """\
examples:
  bert-launch -np 4 -- bert-squad --do_train --output_dir out
  bert-launch -np 16 -H node1:8,node2:8 -p 2222 --restarts 10 -- bert-pretraining --config large.toml
  bert-launch -np 2 --mpi-args "--tag-output -x MY_VARIABLE" --dry-run -- bert-bench"""
RESTARTS = """start a job that broke off again, at most N times, on the hosts of -H that answer (default: 0); a
training continues from its newest checkpoint"""
START_TIMEOUT = "end the job when a rank has waited so long for all others to join (default: 600)"
HOST = re.compile(r"([A-Za-z0-9][\w.-]*)(?::([1-9][0-9]*))?")  # name and slots
RESTART_S, ANSWER_S = 2.0, "10"  # between a job that broke off and its next start; for the answer of a host
# mpirun starts its daemons on other hosts through a remote shell: ssh, unless --mpi-args names another.
SSH, AGENT = "ssh -o BatchMode=yes", re.compile(r"plm_[rs]sh_agent|-(bootstrap|launcher)-exec")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the mpirun command for ``argv`` and runs it. Returns the job's exit status."""
    options = parse_args(sys.argv[1:] if argv is None else argv)
    try:
        needs_mpi = options.num_proc > 1 or options.elastic or options.mpi_args or options.hosts
        mpi = find_mpi() if needs_mpi else None  # one rank on this machine needs none
        if mpi and options.elastic and not mpi.is_open_mpi_5:
            raise InputError(f"--elastic needs Open MPI 5 or newer, found {mpi}; --restarts works with all")
        if launcher.TERMINAL in os.environ:  # this is a part of a program such as `ringbert.launch`
            end_with_parent()
        else:
            file = sys.stdout if options.dry_run else sys.stderr
            print(shlex.join(build_command(mpi, options)), file=file, flush=True)
        return 0 if options.dry_run else run(mpi, options)
    except (InputError, OSError) as error:
        print(f"bert-launch: error: {one_line(error)}", file=sys.stderr)
        return 1


def run(mpi: Mpi | None, options: Namespace) -> int:
    """Runs the job, and up to `restarts` times again when it broke off. Returns the last exit status.

    A job that was refused, has saved and stopped, or was ended by the user did not break off.
    """
    has_saved, restarts = False, 0
    terminal = os.environ.get(launcher.TERMINAL) or str(int(os.isatty(2)))
    now = on_ready_hosts(options) if options.restarts else options
    while True:
        variables = {launcher.JOB: "1", launcher.HAS_SAVED: str(int(has_saved)), launcher.TERMINAL: terminal}
        environment = {**os.environ, **variables}
        process = MpirunProcess(build_command(mpi, now, environment), environment, options.elastic)
        status = process.wait()
        if process.signal is not None or restarts == options.restarts or not process.broke_off(status):
            return status
        has_saved, restarts = has_saved or "saved" in process.told, restarts + 1
        say(f"restart {restarts} of {options.restarts} in {RESTART_S:.0f} s")
        now = on_ready_hosts(options)
        time.sleep(RESTART_S)
        if process.signal is not None:
            return 128 + process.signal


def on_ready_hosts(options: Namespace) -> Namespace:
    """The options with the hosts that answer, and at most as many ranks as they have slots. Raises InputError if
    there are none."""
    agents = [value for name, value in pairwise(options.mpi_args) if AGENT.fullmatch(name)]
    shell = shlex.split([*agents, SSH][0]) + (["-p", str(options.ssh_port)] if options.ssh_port else [])

    def answers(host: str) -> bool:
        """Whether a command comes through; ssh says why not."""
        argv = ["timeout", ANSWER_S, *shell, host, "true"]
        return is_local(host) or subprocess.run(argv, stdin=subprocess.DEVNULL).returncode == 0

    with ThreadPoolExecutor(max_workers=64) as pool:
        hosts = {host: options.hosts[host] for host in compress(options.hosts, pool.map(answers, options.hosts))}
    if hosts == options.hosts:
        return options
    if not hosts:
        raise InputError("not started: no host of -H answers")
    ranks, lost = min(options.num_proc, sum(hosts.values())), sorted(options.hosts.keys() - hosts)
    say(f"{', '.join(lost)} gives no answer: {ranks} rank{'s' * (ranks != 1)} on {', '.join(hosts)}")
    return Namespace(**vars(options) | {"hosts": hosts, "num_proc": ranks})


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"bert-launch: error: {message}\n")


def parse_args(argv: Sequence[str]) -> Namespace:
    """The flags and the `command` that is started. Wrong arguments end the process with one line and status 2."""
    parser = Parser(
        prog="bert-launch",
        usage="bert-launch -np N [options] -- COMMAND …",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-np", "-n", "--num-proc", type=positive, required=True, metavar="N", help="number of ranks")
    hosts = "hosts and their slots (default: this one; slots: 1)"
    add("-H", "--hosts", type=hosts_in, default={}, metavar="HOST:SLOTS,…", help=hosts)
    add("-p", "--ssh-port", type=positive, metavar="PORT", help="port of the hosts' ssh servers")
    add("--restarts", type=int, default=0, metavar="N", help=RESTARTS)
    add("--elastic", action="store_true", help="go on without ranks that die (Open MPI 5)")
    add("--start-timeout", type=positive, metavar="SECONDS", help=START_TIMEOUT)
    mpi_args = "further arguments of mpirun, quoted as in a shell"
    add("--mpi-args", type=shlex.split, default=[], metavar="ARGS", help=mpi_args)
    add("--dry-run", action="store_true", help="print the mpirun command and do not run it")

    separator = argv.index("--") if "--" in argv else len(argv)
    ours, command = list(argv[:separator]), list(argv[separator + 1 :])
    if "--mpi-args" in ours[:-1]:  # argparse accepts a value with a leading dash only after "="
        at = ours.index("--mpi-args")
        ours[at : at + 2] = [f"--mpi-args={ours[at + 1]}"]
    if not command and not {"-h", "--help"} & set(ours):
        parser.error("no -- with a command after it: write bert-launch -np 4 -- bert-squad …")
    options = parser.parse_args(ours, Namespace(command=command))
    slots = sum(options.hosts.values())
    if options.hosts and options.num_proc > slots:
        parser.error(f"-np must be at most the {slots} slots of -H, got {options.num_proc}")
    return options


def positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


def hosts_in(text: str) -> dict[str, int]:
    """``"a:4,b"`` as {"a": 4, "b": 1}."""
    matches = [HOST.fullmatch(part) for part in text.split(",")]
    hosts = {match[1]: int(match[2] or 1) for match in matches if match}
    if len(hosts) < len(matches):
        raise argparse.ArgumentTypeError(f"needs each host once, for example node1:4,node2:4, got {text!r}")
    return hosts


if __name__ == "__main__":
    sys.exit(main())
