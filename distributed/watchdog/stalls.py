"""Which operation among all ranks the job waits in, and who keeps the others waiting.

Every rank performs the same operations in the same order, so an operation is known by its number. A judge
(watchdog.py) collects what each rank does; the functions here find stalls in that, and put them into words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from ringbase.errors import shortened
from ringbase.settings import Settings, setting

STOPPED = {"T": "stopped", "t": "stopped by a debugger"}  # states in /proc/PID/stat
DISK_WAIT = "D"
MOST_FACTS = 4  # about so many groups of ranks a message says something


@dataclass(frozen=True, kw_only=True)
class StallSettings(Settings):
    """When ranks that wait for others report it, and when they give up."""

    stall_warning: float = setting(
        30.0, "seconds that ranks wait for others before a warning names those; 0 for never", "machine", at_least=0
    )
    stall_timeout: float = setting(
        600.0,
        "seconds that ranks wait for others before the job ends with all stacks in files; 0 for never",
        "machine",
        at_least=0,
    )


class Kind(IntEnum):
    """What a rank does."""

    OUTSIDE = 0  # it computes, between two operations
    WAITING = 1  # it is in an operation
    WORKING = 2  # it does work for which the others may wait as long as it takes
    LEFT = 3  # it has left the program


@dataclass
class Seen:
    """What a judge knows of a rank.

    Attributes:
      pid, host, node: its process, and the name and number of its machine.
      count, name: the number and name of the operation that it entered last.
      age: seconds since it entered or left that operation, when it was heard last.
      heard: when that was, by the judge's clock.
      letter: the state of its process, as in /proc/PID/stat; empty if it is unknown.
      is_dead: MPI has reported its death.
    """

    rank: int
    pid: int
    host: str
    node: int = 0
    count: int = 0
    name: str = ""
    kind: Kind = Kind.OUTSIDE
    age: float = 0.0
    heard: float = 0.0
    letter: str = ""
    is_dead: bool = False

    def is_silent(self, clock: float, silent_s: float) -> bool:
        return self.letter in STOPPED or clock - self.heard > silent_s


@dataclass(frozen=True)
class Stall:
    """An operation in which ranks wait.

    Attributes:
      count, name: its number and its name.
      waiting: the ranks that wait in it and show life.
      missing: the ranks that have not entered it.
      silent: the ranks that are stopped or show no sign of life.
    """

    count: int
    name: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    silent: tuple[int, ...]


def find_stall(ranks: Sequence[Seen], clock: float, silent_s: float) -> Stall | None:
    """The first operation in which living ranks wait; None if there is none, or if a living rank works for the
    others."""
    ranks = [seen for seen in ranks if not seen.is_dead]
    alive = [seen for seen in ranks if not seen.is_silent(clock, silent_s)]
    waiting = [seen for seen in alive if seen.kind is Kind.WAITING]
    if not waiting:
        return None
    first = min(waiting, key=lambda seen: seen.count)
    if any(seen.kind is Kind.WORKING and seen.count <= first.count for seen in alive):
        return None
    return Stall(
        first.count,
        first.name,
        tuple(seen.rank for seen in waiting if seen.count == first.count),
        tuple(seen.rank for seen in ranks if seen.count < first.count),
        tuple(seen.rank for seen in ranks if seen.is_silent(clock, silent_s)),
    )


def find_mismatch(ranks: Sequence[Seen]) -> str | None:
    """Says which ranks do different things in the same place, so that none of them can go on; None if none do."""
    names: dict[int, dict[str, list[int]]] = {}
    for seen in ranks:
        names.setdefault(seen.count, {}).setdefault(seen.name, []).append(seen.rank)
    for of_count in names.values():
        if len(of_count) > 1:
            places = (f"{_named(at)} {_is(at)} at {name}" for name, at in of_count.items())
            return f"the ranks do different things: {', but '.join(places)}"
    for left in ranks:
        waiting = [seen for seen in ranks if seen.kind is Kind.WAITING and seen.count > left.count]
        if left.kind is Kind.LEFT and waiting:
            at = [seen.rank for seen in waiting]
            return f"rank {left.rank} has left the program, but {_named(at)} {_is(at)} at {waiting[0].name}"
    return None


def describe(stall: Stall, ranks: Sequence[Seen], stalled_s: float, clock: float, silent_s: float) -> str:
    """A stall in one line: who has not arrived, where the others have waited for how long, what is known."""
    waited, missing = f"{stalled_s:.0f} s", list(stall.missing)
    if missing:
        have = "has" if len(missing) == 1 else "have"
        wait = "has waited" if len(stall.waiting) == 1 else "have waited"
        text = f"{_named(missing)} {have} not arrived at {stall.name}"
        text += f", where {_named(stall.waiting)} {wait} for {waited}"
    elif stall.silent:
        text = f"all ranks have arrived at {stall.name}, but it has not ended for {waited}"
    else:
        hosts = shortened(dict.fromkeys(seen.host for seen in ranks))
        return (
            f"all ranks have arrived at {stall.name}, but it has not ended for {waited}; all are alive, so the "
            f"network or the library that sums is the suspect (hosts: {hosts})"
        )
    facts: dict[str, list[int]] = {}
    for rank in sorted({*missing, *stall.silent}):
        facts.setdefault(_fact(ranks[rank], ranks, clock, silent_s), []).append(rank)
    known = [f"{_named(of)}: {fact}" for fact, of in facts.items()]
    more = [f"and {len(known) - MOST_FACTS} more"] if len(known) > MOST_FACTS else []
    return "; ".join([text, *known[:MOST_FACTS], *more])


def _fact(seen: Seen, ranks: Sequence[Seen], clock: float, silent_s: float) -> str:
    """What is known of a rank that others wait for."""
    process = f"process {seen.pid} on {seen.host}"
    work = f" (it was working for the others: {seen.name})" if seen.kind is Kind.WORKING else ""
    if seen.letter in STOPPED:
        return f"{process} is {STOPPED[seen.letter]}{work}; kill -CONT {seen.pid} there lets it go on"
    if seen.is_silent(clock, silent_s):
        if all(other.is_silent(clock, silent_s) for other in ranks if other.node == seen.node):
            return f"no sign of life from {seen.host} for {clock - seen.heard:.0f} s{work}"
        disk = ", and it waits for a disk or a file server" if seen.letter == DISK_WAIT else ""
        return f"no sign of life from {process} for {clock - seen.heard:.0f} s{disk}{work}"
    for_s = f"{seen.age + clock - seen.heard:.0f} s"
    if seen.kind is Kind.WAITING:
        return f"{process} is alive, but has been at {seen.name} for {for_s}, which the others have left"
    if not seen.count:
        return f"{process} is alive, but has taken part in nothing yet"
    return f"{process} is alive; {for_s} ago it was at {seen.name}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {shortened(map(str, ranks))}"


def _is(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"
