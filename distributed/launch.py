"""``bert-launch``: one command that starts the ranks of a program under whichever MPI is installed.

It does the work of ``horovodrun``: it builds one ``mpirun`` command for Open MPI 4 or 5, MPICH or Intel MPI,
prints it and runs it. What the ranks and mpirun print passes through. Whether the job succeeded is decided by
what the ranks tell (`distributed.records`), and a job that broke off can be started again. ``--dry-run`` only
prints the command, for users who prefer to start ``mpirun`` themselves. One rank here needs no mpirun.
"""

import argparse
import itertools
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from distributed import records
from distributed.launch_hosts import kill_leftovers, on_ready_hosts
from distributed.mpirun import Mpi, Options, build_command, find_mpi_for
from distributed.mpirun_process import MpirunProcess, end_with_parent, say
from ringbase.errors import InputError, one_line

HOST = re.compile(r"(?P<name>[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)(:(?P<slots>[1-9][0-9]*))?")
DESCRIPTION = """\
Start COMMAND on N ranks, here or on several hosts, under the MPI that is installed (Open MPI 4 and 5, MPICH,
Intel MPI). The successor of horovodrun: -np, -H and -p mean the same."""
EXAMPLES = """\
examples:
  bert-launch -np 4 -- bert-squad --do_train --output_dir out
  bert-launch -np 16 -H node1:8,node2:8 -p 2222 --restarts 10 -- bert-pretraining --config large.toml
  bert-launch -np 2 --mpi-args "--tag-output -x MY_VARIABLE" --dry-run -- bert-bench"""
RANKS = "number of ranks"
HOSTS = "hosts and their slots (default: this one; slots: 1)"
RESTARTS = """start a job that broke off again, at most N times, on the hosts of -H that answer (default: 0); a
training continues from its newest checkpoint"""
START_TIMEOUT = "end the job when a rank has waited so long for all others to join (default: 600)"
MPI_ARGS = "further arguments of mpirun, quoted as in a shell"
RESTART_S = 2.0  # between a job that broke off and its next start


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the mpirun command for ``argv`` and runs it. Returns the job's exit status."""
    parent = os.environ.pop(records.PARENT, "")
    if parent:
        end_with_parent()
        if os.getppid() != int(parent):  # it ended first
            return 1
    options = parse_args(sys.argv[1:] if argv is None else argv)
    try:
        mpi = find_mpi_for(options)
        if not parent:  # which would show it to users of Python
            file = sys.stdout if options.is_dry_run else sys.stderr
            print(shlex.join(build_command(mpi, options)), file=file, flush=True)
        return 0 if options.is_dry_run else run(mpi, options)
    except (InputError, OSError) as error:
        print(f"bert-launch: error: {one_line(error)}", file=sys.stderr)
        return 1


def run(mpi: Mpi | None, options: Options) -> int:
    """Runs the job, and up to `restarts` times again when it broke off. Returns the last exit status.

    A job that was refused, has saved and stopped, or was ended by the user did not break off. With `restarts`
    each start uses the hosts that answer then, and what is left of the last one there is killed.
    """
    name, has_saved, fruitless = secrets.token_hex(8), False, 0
    terminal = os.environ.get(records.TERMINAL) or str(int(sys.stderr is not None and sys.stderr.isatty()))
    now = on_ready_hosts(options, name) if options.restarts else options
    for restart in itertools.count(1):
        variables = {records.JOB: name, records.HAS_SAVED: str(int(has_saved)), records.TERMINAL: terminal}
        environment = {**os.environ, **variables}
        process = MpirunProcess(build_command(mpi, now, environment), environment, options.is_elastic)
        status = process.wait()
        if process.was_killed():
            kill_leftovers(options, name)
        if process.signal is not None or restart > options.restarts or not process.broke_off(status):
            return status
        has_saved, fruitless = has_saved or process.has_saved, 0 if process.has_saved else fruitless + 1
        if fruitless == 2:
            say("not started again: two starts in a row saved no further step")
            return status
        say(f"restart {restart} of {options.restarts} in {RESTART_S:.0f} s")
        now = on_ready_hosts(options, name)
        time.sleep(RESTART_S)
        if process.signal is not None:
            return 128 + process.signal
    raise AssertionError("the loop returns")


# -- flags --------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"bert-launch: error: {message}\n")


def parse_args(argv: Sequence[str]) -> Options:
    """Wrong arguments end the process with one line and status 2."""
    parser = Parser(
        prog="bert-launch",
        usage="bert-launch -np N [-H HOST:SLOTS,…] [-p PORT] [--restarts N] [--elastic] [--start-timeout SECONDS] "
        "[--mpi-args ARGS] [--dry-run] -- COMMAND …",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add, natural, positive = parser.add_argument, at_least(0), at_least(1)
    add("-np", "-n", "--num-proc", dest="num_ranks", type=positive, required=True, metavar="N", help=RANKS)
    add("-H", "--hosts", type=hosts_in, default=(), metavar="HOST:SLOTS,…", help=HOSTS)
    add("-p", "--ssh-port", type=positive, metavar="PORT", help="port of the hosts' ssh servers")
    add("--restarts", type=natural, default=0, metavar="N", help=RESTARTS)
    add("--elastic", dest="is_elastic", action="store_true", help="go on without ranks that die (Open MPI 5)")
    add("--start-timeout", dest="start_timeout_s", type=positive, metavar="SECONDS", help=START_TIMEOUT)
    add("--mpi-args", type=shlex.split, default=(), metavar="ARGS", help=MPI_ARGS)
    add("--dry-run", dest="is_dry_run", action="store_true", help="print the mpirun command and do not run it")

    separator = argv.index("--") if "--" in argv else len(argv)
    ours, command = list(argv[:separator]), tuple(argv[separator + 1 :])
    if "--mpi-args" in ours[:-1]:  # argparse accepts a value with a leading dash only after "="
        at = ours.index("--mpi-args")
        ours[at : at + 2] = [f"--mpi-args={ours[at + 1]}"]
    if not command and not {"-h", "--help"} & set(ours):
        parser.error("no -- with a command after it: write bert-launch -np 4 -- bert-squad …")
    options = Options(command, **vars(parser.parse_args(ours)))
    slots = sum(count for _, count in options.hosts)
    if options.hosts and options.num_ranks > slots:
        parser.error(f"-np must be at most the {slots} slots of -H, got {options.num_ranks}")
    return options


def at_least(lowest: int) -> Callable[[str], int]:
    """A function that reads a number of a flag."""

    def number(text: str) -> int:
        if (value := int(text)) < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}, got {value}")
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
