"""The shares of a search's slots: as many trials run at the same time as there are shares."""

from collections.abc import Mapping
from dataclasses import dataclass

from distributed.cores import SLOTS, Slots
from ringbase.errors import InputError


@dataclass(frozen=True)
class Share:
    """Where one trial at a time runs."""

    hosts: tuple[tuple[str, int], ...]  # with its slots on each; none for this machine
    slots: Slots | None = None  # on its host; None where the trial has its hosts for itself

    def __str__(self) -> str:
        places = ", ".join(host for host, _ in self.hosts) or "this machine"
        return f"slots {self.slots} of {places}" if self.slots else places

    @property
    def hosts_flag(self) -> str | None:
        """The value of bert-launch's -H."""
        return ",".join(f"{host}:{slots}" for host, slots in self.hosts) or None

    @property
    def variables(self) -> dict[str, str]:
        return {SLOTS: str(self.slots)} if self.slots else {}


def shares_of(hosts: Mapping[str, int], num_slots: int, ranks: int) -> list[Share]:
    """The shares with `ranks` slots of these hosts, or without any of this machine's. A share is on
    one host, or has whole hosts. Raises InputError: there are not so many slots."""
    if not hosts:
        return _of_host((), num_slots, ranks) or _refuse(num_slots, ranks)
    shares = []
    gathered: dict[str, int] = {}  # hosts that have fewer slots than a trial has ranks
    for host, slots in hosts.items():
        if slots >= ranks:
            shares += _of_host(((host, ranks),), slots, ranks)
            continue
        gathered[host] = min(slots, ranks - sum(gathered.values()))
        if sum(gathered.values()) == ranks:
            shares.append(Share(tuple(gathered.items())))
            gathered = {}
    return shares or _refuse(sum(hosts.values()), ranks)


def _of_host(hosts, num_slots, ranks):
    """Those on one host; the whole of it if there is one alone."""
    if num_slots // ranks == 1:
        return [Share(hosts)]
    starts = range(0, num_slots - ranks + 1, ranks)
    return [Share(hosts, Slots(start, ranks, num_slots)) for start in starts]


def _refuse(num_slots, ranks):
    raise InputError(f"--ranks_per_trial {ranks}: there are {num_slots} slots (-np, or -H)")
