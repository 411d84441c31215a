"""``bert-launch``: one command that starts the ranks of a program under whichever MPI is installed.

It does the work of ``horovodrun``: it builds one ``mpirun`` command for Open MPI 4 or 5, MPICH or Intel MPI,
prints it and runs it. What the ranks and mpirun print passes through. Whether the job succeeded is decided by
what the ranks tell (`distributed.records`), and a job that broke off can be started again. ``--dry-run`` only
prints the command, for users who prefer to start ``mpirun`` themselves. One rank here needs no mpirun.
"""

import argparse
import math
import os
import re
import secrets
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from distributed import records
from distributed.launch_hosts import ready_hosts
from distributed.mpirun import LaunchError, Mpi, Options, build_command, find_mpi_for
from distributed.mpirun_process import MpirunProcess, Signals, end_with_parent, say

HOST = re.compile(r"(?P<name>[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)(:(?P<slots>[1-9][0-9]*))?")
DESCRIPTION = """\
Start COMMAND on N ranks, here or on several hosts, under the MPI that is installed (Open MPI 4 and 5, MPICH,
Intel MPI). The successor of horovodrun: -np, -H and -p mean the same."""
EXAMPLES = """\
examples:
  bert-launch -np 4 -- bert-squad --do_train --output_dir out
  bert-launch -np 16 -H node1:8,node2:8 -p 2222 --restarts 10 -- bert-pretraining --config large.toml
  bert-launch -np 2 --mpi-args "--tag-output -x MY_VARIABLE" --dry-run -- bert-bench"""
RESTART_S = 2.0  # between a job that broke off and its next start


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the mpirun command for ``argv`` and runs it. Returns the job's exit status."""
    parent = os.environ.pop(records.PARENT, "")
    if parent:
        end_with_parent()
        if os.getppid() != int(parent):  # it ended first
            return 1
    try:
        options, restarts, is_dry = parse_args(sys.argv[1:] if argv is None else argv)
        mpi = find_mpi_for(options)
    except LaunchError as error:
        print(f"bert-launch: error: {error}", file=sys.stderr)
        return error.status
    if not parent:  # which would show it to users of Python
        environment = {name: value for name, value in os.environ.items() if name != records.TERMINAL}
        print(build_command(mpi, options, environment), file=sys.stdout if is_dry else sys.stderr, flush=True)
    return 0 if is_dry else run(mpi, options, restarts)


def run(mpi: Mpi, options: Options, restarts: int) -> int:
    """Runs the job, and up to `restarts` times again when it broke off. Returns the last exit status.

    A job that was refused, has saved and stopped, or was ended by the user did not break off. With `restarts`
    each start uses the hosts that answer then, and kills what is left of the last one there.
    """
    signals, name, has_saved, fruitless, status = Signals(), secrets.token_hex(8), False, 0, 1
    terminal = os.environ.get(records.TERMINAL) or str(int(sys.stderr is not None and sys.stderr.isatty()))
    for restart in range(1, restarts + 2):
        try:
            now = on_ready_hosts(options, name) if restarts else options
        except LaunchError as error:
            say(str(error))
            return status
        variables = {records.JOB: name, records.HAS_SAVED: str(int(has_saved)), records.TERMINAL: terminal}
        environment = {**os.environ, **variables}
        if signals.number is not None:
            return 128 + signals.number
        process = signals.process = MpirunProcess(
            build_command(mpi, now, environment), environment, options.is_elastic
        )
        process.wait()
        signals.process, status = None, process.status
        if process.was_killed:
            ready_hosts(options, name)
        if signals.number is not None or restart > restarts or not process.broke_off():
            return status
        has_saved, fruitless = has_saved or process.has_saved, 0 if process.has_saved else fruitless + 1
        if fruitless == 2:
            say("not started again: two starts in a row saved no further step")
            return status
        say(f"restart {restart} of {restarts} in {RESTART_S:.0f} s")
        signals.wait(RESTART_S)
    raise AssertionError("the loop returns")


def on_ready_hosts(options: Options, job: str) -> Options:
    """The options with the hosts that answer, and at most as many ranks as they have slots.

    What is left of the job on them is killed first. Raises LaunchError if no host can be used.
    """
    reasons = ready_hosts(options, job)
    if not reasons:
        return options
    listed = ", ".join(f"{host} ({reason})" for host, reason in reasons.items())
    hosts = tuple((name, slots) for name, slots in options.hosts if name not in reasons)
    if not hosts:
        raise LaunchError(f"not started: no host can be used: {listed}", 1)
    ranks = min(options.num_ranks, sum(slots for _, slots in hosts))
    names = ", ".join(name for name, _ in hosts)
    say(f"without {listed}: {ranks} rank{'s' * (ranks != 1)} on {names}")
    return replace(options, hosts=hosts, num_ranks=ranks)


# -- flags --------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(message, 2)


def parse_args(argv: Sequence[str]) -> tuple[Options, int, bool]:
    """The options, --restarts and --dry-run. Raises LaunchError with status 2 if they are wrong."""
    parser = Parser(
        prog="bert-launch",
        usage="bert-launch -np N [-H HOST:SLOTS,…] [-p PORT] [--restarts N] [--elastic] [--start-timeout SECONDS] "
        "[--mpi-args ARGS] [--dry-run] -- COMMAND …",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add, at_least_1 = parser.add_argument, in_range(1)
    add("-np", "-n", "--num-proc", type=at_least_1, required=True, metavar="N", help="number of ranks")
    slots = "hosts and their slots (default: this one; slots: 1)"
    add("-H", "--hosts", type=hosts_in, default=(), metavar="HOST:SLOTS,…", help=slots)
    add("-p", "--ssh-port", type=in_range(1, 65535), metavar="PORT", help="port of the hosts' ssh servers")
    again = "start a job that broke off again, at most N times, on the hosts of -H that answer (default: 0); a "
    again += "training continues from its newest checkpoint"
    add("--restarts", type=in_range(0), default=0, metavar="N", help=again)
    add("--elastic", action="store_true", help="go on without ranks that die (Open MPI 5)")
    timeout = "end the job when a rank has waited so long for all others to join (default: 600)"
    add("--start-timeout", type=at_least_1, metavar="SECONDS", help=timeout)
    words = "further arguments of mpirun, quoted as in a shell"
    add("--mpi-args", type=shlex.split, default=[], metavar="ARGS", help=words)
    add("--dry-run", action="store_true", help="print the mpirun command and do not run it")

    separator = argv.index("--") if "--" in argv else len(argv)
    ours, command = list(argv[:separator]), tuple(argv[separator + 1 :])
    if "--mpi-args" in ours[:-1]:  # argparse accepts a value with a leading dash only after "="
        at = ours.index("--mpi-args")
        ours[at : at + 2] = [f"--mpi-args={ours[at + 1]}"]
    if not command and not {"-h", "--help"} & set(ours):
        raise LaunchError("no -- with a command after it: write bert-launch -np 4 -- bert-squad …", 2)
    flags = parser.parse_args(ours)
    most = sum(count for _, count in flags.hosts)
    if flags.hosts and flags.num_proc > most:
        raise LaunchError(f"-np must be at most the {most} slots of -H, got {flags.num_proc}", 2)
    options = Options(
        command,
        flags.num_proc,
        flags.hosts,
        flags.ssh_port,
        tuple(flags.mpi_args),
        flags.elastic,
        flags.start_timeout,
    )
    return options, flags.restarts, flags.dry_run


def in_range(lowest: int, highest: float = math.inf) -> Callable[[str], int]:
    """A function that reads a number of a flag."""

    def number(text: str) -> int:
        if not lowest <= (value := int(text)) <= highest:
            limits = f"at least {lowest}" if highest == math.inf else f"between {lowest} and {highest}"
            raise argparse.ArgumentTypeError(f"must be {limits}, got {value}")
        return value

    return number


def hosts_in(text: str) -> tuple[tuple[str, int], ...]:
    """``"a:4,b"`` as (("a", 4), ("b", 1))."""
    hosts: dict[str, int] = {}
    for part in text.split(","):
        match = HOST.fullmatch(part)
        if match is None:
            raise argparse.ArgumentTypeError(f"{part!r} is not host:slots, for example node1:4,node2:4")
        if match["name"] in hosts:
            raise argparse.ArgumentTypeError(f"host {match['name']} is named twice; add up its slots")
        hosts[match["name"]] = int(match["slots"] or 1)
    return tuple(hosts.items())


if __name__ == "__main__":
    sys.exit(main())
