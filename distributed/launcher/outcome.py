"""How a job ended, by what its ranks told, what mpirun said about them, and mpirun's status."""

from dataclasses import dataclass, field, replace

from distributed.launcher.banners import EXIT_CODE_OF_SIGNAL, Death, cause
from ringbase.errors import Preempted


@dataclass
class Outcome:
    """What is known of a job.

    Attributes:
      is_hydra: it runs under MPICH or Intel MPI.
      is_remote: some of its ranks are on other hosts.
      kinds: which kinds of records its ranks told; see `distributed.records`.
      saved: the position of the newest checkpoint of each folder.
      starting: the ranks that wait for all others to join, or have waited.
      places: host and process id of each rank.
      left: the ranks that have left the job, as they said or others said of them.
      deaths: in the order in which mpirun told of them.
      ended_by: the reason, if bert-launch itself ended the ranks.
    """

    num_ranks: int
    is_elastic: bool = False
    is_hydra: bool = False
    is_remote: bool = False
    kinds: set[str] = field(default_factory=set)
    saved: dict[str, int] = field(default_factory=dict)
    starting: set[int] = field(default_factory=set)
    places: dict[int, tuple[str, int]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    deaths: list[Death] = field(default_factory=list)
    ended_by: str = ""
    mpirun_status: int = 0

    def add(self, record: dict) -> None:
        """Takes in a record of a rank."""
        kind, place = record["kind"], (record["host"], record["process"])
        if kind == "starting":
            self.starting.add(record["rank"])
        elif kind == "joined":
            self.places[record["rank"]] = place
        elif kind == "saved":
            self.saved[record["folder"]] = record["position"]
        if kind == "completed" and place not in self.places.values():
            return  # the part of the program before it has joined
        if kind in ("completed", "preempted"):
            self.left.update(rank for rank, at in self.places.items() if at == place)  # by their first numbers
        if kind != "completed" or record["rank"] == 0:
            self.kinds.add(kind)

    def unaccounted(self, host: str) -> dict[int, int]:
        """The process ids of the ranks on a host that should be running, by rank."""
        return {
            rank: process for rank, (at, process) in self.places.items() if at == host and rank not in self.left
        }

    @property
    def has_joined(self) -> bool:
        """Whether all ranks have, so that they know what to do with signals."""
        return len(self.places) >= self.num_ranks

    def not_joined(self, seconds: float) -> Death:
        """What is told when not all ranks have joined after this time, as when one ended early on another host."""
        missing = [str(rank) for rank in range(self.num_ranks) if rank not in self.starting]
        named = f"rank{'s' * (len(missing) != 1)} {', '.join(missing)} did not start"
        unnamed = "not all ranks joined MPI, because one ended early or hosts cannot reach each other"
        return Death(reason=f"{named if missing else unnamed} (waited {seconds:g} s: --start-timeout)")

    @property
    def is_over(self) -> bool:
        """Whether all ranks should end soon."""
        if self.is_elastic:
            return bool(self.kinds & {"refused", "preempted", "completed"}) or any(
                death.is_lost_host for death in self.deaths
            )
        return bool(self.kinds & {"refused", "preempted"} or self.deaths)

    @property
    def is_complete(self) -> bool:
        return "completed" in self.kinds and (self.mpirun_status == 0 or self.is_elastic)

    @property
    def status(self) -> int:
        """The exit status: mpirun's, unless the program's own records say more."""
        if self.is_complete:
            return 0
        if "preempted" in self.kinds:
            return Preempted.STATUS
        return self.mpirun_status or int("joined" in self.kinds or self.is_elastic)

    @property
    def broke_off(self) -> bool:
        """Whether it failed for a reason that need not come back when it is started again."""
        if self.status == 0 or self.ended_by or self.kinds & {"completed", "refused", "preempted"}:
            return False
        death = self.cause()
        if "joined" in self.kinds:
            return True
        # A program that ends by itself before it joins does not like its flags; a host may not have answered.
        return self.is_remote if death is None else death.status is None

    def reason(self) -> str:
        """Why the job failed; empty if the program said it, or if only mpirun knows and has printed it."""
        if self.is_complete or "preempted" in self.kinds:
            return ""
        if self.ended_by:
            return self.ended_by
        if death := self.cause():
            is_told = death.signal is None and bool(self.kinds & {"refused", "completed"})
            is_told |= death.is_abort and "joined" in self.kinds  # the rank has printed the reason
            after = " after the program had completed" if "completed" in self.kinds else ""
            return "" if is_told else f"{death}{after}"
        if self.mpirun_status == 0 and self.status != 0 and "refused" not in self.kinds:
            lost = ": was a host lost?" if self.is_remote else ""
            return f"the ranks ended before the program was complete{lost}"
        return ""

    @property
    def is_unexplained(self) -> bool:
        """Whether it failed although no rank did: it was ended from outside, maybe because it hung."""
        death = self.cause()
        return bool(self.reason()) and (bool(self.ended_by) or death is None or death.is_lost_host)

    def cause(self) -> Death | None:
        """The death that ended the job, with its rank and host as far as the ranks have told them."""
        death = cause(self.deaths, self.num_ranks)
        is_silent = self.is_hydra or self.num_ranks == 1  # about exits, mpirun prints nothing
        number = self.mpirun_status - EXIT_CODE_OF_SIGNAL
        if death is None and self.num_ranks == 1 and number > 0:
            death = Death(rank=0, signal=number)
        elif death is None and is_silent and self.mpirun_status and "joined" in self.kinds:
            death = Death(rank=0 if self.num_ranks == 1 else None, status=self.mpirun_status)
        return self.placed(death) if death else None

    def placed(self, death: Death) -> Death:
        if death.rank is None and death.process is not None:
            found = [rank for rank, place in self.places.items() if place == (death.host, death.process)]
            return replace(death, rank=found[0]) if len(found) == 1 else death
        if death.rank in self.places and not death.host:
            return replace(death, host=self.places[death.rank][0])
        return death
