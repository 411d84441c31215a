"""The flags of ``bert-launch``."""

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

HOST_PATTERN = re.compile(r"(?P<name>[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)(:(?P<slots>[1-9][0-9]*))?")

DESCRIPTION = """\
Start COMMAND on N ranks, here or on several hosts, under the MPI that is installed (Open MPI 4 and 5, MPICH,
Intel MPI). The successor of horovodrun: -np, -H and -p mean the same."""
EXAMPLES = """\
examples:
  bert-launch -np 4 -- bert-squad --do_train --output_dir out
  bert-launch -np 16 -H node1:8,node2:8 -p 2222 --restarts 10 -- bert-pretraining --config large.toml
  bert-launch -np 2 --mpi-args "--tag-output -x MY_VARIABLE" --dry-run -- bert-bench"""


START_TIMEOUT_S = 600.0


class LaunchError(Exception):
    """A mistake that the user can correct, shown as one line; ``status`` is the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Options:
    """What to start, and on which ``hosts`` (name, slots); by default on this machine or the batch job's hosts."""

    command: tuple[str, ...]
    num_ranks: int
    hosts: tuple[tuple[str, int], ...] = ()
    ssh_port: int | None = None
    mpi_args: tuple[str, ...] = ()
    restarts: int = 0
    is_elastic: bool = False
    start_timeout_s: float = START_TIMEOUT_S

    def __post_init__(self) -> None:
        slots = sum(count for _, count in self.hosts)
        if not self.command:
            raise LaunchError("no command after --: write bert-launch -np 4 -- bert-squad …", 2)
        if self.num_ranks < 1:
            raise LaunchError(f"-np must be at least 1, got {self.num_ranks}", 2)
        if self.hosts and self.num_ranks > slots:
            raise LaunchError(f"-np must be at most the {slots} slots of -H, got {self.num_ranks}", 2)
        if self.ssh_port is not None and not 1 <= self.ssh_port <= 65535:
            raise LaunchError(f"-p must be between 1 and 65535, got {self.ssh_port}", 2)
        if self.restarts < 0:
            raise LaunchError(f"--restarts must be at least 0, got {self.restarts}", 2)

        if not self.start_timeout_s > 0:
            raise LaunchError(f"--start-timeout must be more than 0 seconds, got {self.start_timeout_s:g}", 2)

    def variables(self) -> dict[str, str]:
        """What the ranks must find in their environment."""
        return {"RINGBERT_ELASTIC": "1"} if self.is_elastic else {}


def parse_hosts(text: str) -> tuple[tuple[str, int], ...]:
    """``"a:4,b"`` as (("a", 4), ("b", 1)); raises LaunchError if it is malformed or names a host twice."""
    hosts: dict[str, int] = {}
    for part in text.split(","):
        match = HOST_PATTERN.fullmatch(part)
        if match is None:
            raise LaunchError(f"-H {text}: {part!r} is not host:slots, for example node1:4,node2:4", 2)
        if match["name"] in hosts:
            raise LaunchError(f"-H {text}: host {match['name']} is named twice; add up its slots", 2)
        hosts[match["name"]] = int(match["slots"] or 1)
    return tuple(hosts.items())


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(message, 2)


def parse_args(argv: Sequence[str]) -> tuple[Options, bool]:
    """The options, and whether --dry-run is among them. Raises LaunchError with status 2 if they are wrong."""
    parser = Parser(
        prog="bert-launch",
        usage="bert-launch -np N [-H HOST:SLOTS,…] [-p PORT] [--restarts N] [--elastic] [--start-timeout SECONDS] "
        "[--mpi-args ARGS] [--dry-run] -- COMMAND …",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-np", "-n", "--num-proc", type=int, required=True, metavar="N", help="number of ranks")
    add("-H", "--hosts", metavar="HOST:SLOTS,…", help="hosts and their slots (default: this one; slots: 1)")
    add("-p", "--ssh-port", type=int, metavar="PORT", help="port of the hosts' ssh servers")
    add(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="start a job that broke off again, at most N times, on the hosts of -H that answer (default: 0); a "
        "training continues from its newest checkpoint",
    )
    add("--elastic", action="store_true", help="go on without ranks that die (Open MPI 5)")
    add(
        "--start-timeout",
        type=float,
        default=START_TIMEOUT_S,
        metavar="SECONDS",
        help="end a job whose ranks have not all joined this long after the first one (default: 600)",
    )
    add("--mpi-args", default="", metavar="ARGS", help="further arguments of mpirun, quoted as in a shell")
    add("--dry-run", action="store_true", help="print the mpirun command and do not run it")

    separator = argv.index("--") if "--" in argv else len(argv)
    ours, command = list(argv[:separator]), tuple(argv[separator + 1 :])
    if "--mpi-args" in ours[:-1]:  # argparse accepts a value with a leading dash only after "="
        at = ours.index("--mpi-args")
        ours[at : at + 2] = [f"--mpi-args={ours[at + 1]}"]
    if separator == len(argv) and not {"-h", "--help"} & set(ours):
        raise LaunchError("no -- before the command: write bert-launch -np 4 -- bert-squad …", 2)
    parsed = parser.parse_args(ours)
    try:
        mpi_args = tuple(shlex.split(parsed.mpi_args))
    except ValueError as error:
        raise LaunchError(f"--mpi-args {parsed.mpi_args}: {error}", 2) from error
    options = Options(
        command=command,
        num_ranks=parsed.num_proc,
        hosts=parse_hosts(parsed.hosts) if parsed.hosts is not None else (),
        ssh_port=parsed.ssh_port,
        mpi_args=mpi_args,
        restarts=parsed.restarts,
        is_elastic=parsed.elastic,
        start_timeout_s=parsed.start_timeout,
    )
    return options, parsed.dry_run
