"""What `distributed` uses of mpi4py, for the processes of a simulation.

After a death (User Level Failure Mitigation, Bland et al. 2013) each survivor hears of it at its
own time. In a collective in which somebody died it gets the result, if all had come, or an error,
each for itself, until somebody revokes the communicator. `Shrink` works without the dead, and gives
all the same ranks, perhaps one too many: one that died in it. With `garbage` a sum that a death cut
short can be that of some ranks only, and a message one that cannot be unpickled.
"""

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from harness.simulation.scheduler import Fault, Process, Scheduler, current_process
from numpy import ndarray

# what can be garbage: a message that Python cannot read, or a result of some ranks only
PICKLED, PARTIAL = ("bcast", "gather", "allgather"), ("barrier", "Allreduce", "Bcast")
GARBAGE, GARBAGE_SHARE = 77, 0.8
LONGEST_REVOKE_S = 0.01  # until another process hears of it


class MpiError(Exception):
    """MPI's exception."""


@dataclass(eq=False)
class Group:
    members: list[Process]

    @property
    def size(self) -> int:
        return len(self.members)

    def Free(self) -> None:
        pass

    @staticmethod
    def Translate_ranks(group: "Group", ranks: Iterable[int], other: "Group") -> list[int]:
        return [other.members.index(group.members[rank]) for rank in ranks]


@dataclass(eq=False)
class Call:
    """One collective operation: what its ranks have brought."""

    name: str
    values: dict[int, Any] = field(default_factory=dict)
    waiters: list = field(default_factory=list)
    comms: dict[Any, "Shared"] = field(default_factory=dict)  # that it makes


@dataclass(eq=False)
class Shared:
    """What all ranks of a communicator have in common."""

    members: list[Process]
    calls: dict[tuple[bool, int], Call] = field(default_factory=dict)


class Mpi:
    """The module mpi4py.MPI of one job. `before_call(process, name)` is called before each
    operation of a process."""

    Exception, Group = MpiError, Group
    ERR_PROC_FAILED, COMM_TYPE_SHARED, THREAD_MULTIPLE = 75, 1, 3
    IN_PLACE, SUM, MAX = object(), sum, partial(np.max, axis=0)

    def __init__(self, scheduler: Scheduler, garbage: bool = False):
        self.scheduler, self.garbage = scheduler, garbage
        self.before_call: Callable[[Process, str], None] = lambda process, name: None
        self.status: int | None = None  # of the whole job, once a rank aborts it

    def world_of(self, processes: list[Process]) -> list["Comm"]:
        """COMM_WORLD, as each of the processes has it."""
        shared = Shared(processes)
        return [Comm(self, shared, rank) for rank in range(len(processes))]

    def Query_thread(self) -> int:
        return self.THREAD_MULTIPLE

    def Get_processor_name(self) -> str:
        return f"machine-{current_process().machine}"


class Request:
    """A collective that has begun."""

    def __init__(self, end: Callable[[], object]):
        self._end = end

    def Test(self) -> bool:
        """Waits until it has ended: whoever asks again and again would hide that nobody can go
        on."""
        self._end()
        return True


class Comm:
    """A communicator, as one of its ranks has it. It has no `allreduce`: mpi4py makes one of its
    own for that, which nobody can revoke after a death."""

    def __init__(self, mpi: Mpi, shared: Shared, rank: int):
        self._mpi, self._shared, self.rank = mpi, shared, rank
        self._scheduler, self._process = mpi.scheduler, shared.members[rank]
        self._num_calls = {False: 0, True: 0}  # those that a death ends, and those that it does not

    @property
    def size(self) -> int:
        return len(self._shared.members)

    @property
    def group(self) -> Group:
        return Group(self._shared.members)

    # -- collectives -------------------------------------------------------------------------------

    def Ibarrier(self) -> Request:
        call = self._begin("barrier", None)
        return Request(lambda: self._end(call))

    def bcast(self, value, root: int = 0):
        return self._meet("bcast", value, root)[root]

    def gather(self, value) -> list | None:
        if self.rank > 0:
            self._begin("gather", value)
            return None
        return self._in_order(self._meet("gather", value))

    def allgather(self, value) -> list:
        return self._in_order(self._meet("allgather", value))

    def Allreduce(self, send, receive: ndarray, operation: Callable = sum) -> None:
        own = receive if send is self._mpi.IN_PLACE else send
        call = self._begin("Allreduce", own.copy())
        values = self._in_order(self._end(call))
        receive[...] = operation(values)

    def Bcast(self, values: ndarray, root: int = 0) -> None:
        own = values.copy() if self.rank == root else None
        sent = self._meet("Bcast", own, root)
        if self.rank != root:
            values[...] = sent.get(root, GARBAGE)

    def Split(self, color: int, key: int = 0) -> "Comm":
        call = self._begin("Split", (color, key))
        colors = self._in_order(self._end(call))
        mine = [rank for rank in range(self.size) if colors[rank][0] == color]
        mine.sort(key=lambda rank: colors[rank][1])
        return self._made(call, color, [self._shared.members[rank] for rank in mine])

    def Split_type(self, kind: int, key: int = 0) -> "Comm":
        return self.Split(self._process.machine, key)

    def _made(self, call: Call, name, members: list[Process]) -> "Comm":
        shared = call.comms.setdefault(name, Shared(members))
        return Comm(self._mpi, shared, shared.members.index(self._process))

    def _in_order(self, values: dict) -> list:
        return [values[rank] for rank in sorted(values)]

    def _meet(self, name: str, value, root: int | None = None) -> dict[int, Any]:
        return self._end(self._begin(name, value, root), root)

    def _begin(self, name: str, value, root: int | None = None, survives: bool = False) -> Call:
        """Brings a value to the next operation of this communicator."""
        self._mpi.before_call(self._process, name)
        self._scheduler.pause(name)
        if not survives:
            self._refuse_revoked()
        number = survives, self._num_calls[survives]
        self._num_calls[survives] += 1
        call = self._shared.calls.setdefault(number, Call(name))
        if call.name != name:
            here = self._scheduler.operations()
            raise Fault(f"{self._process.name} is at {name}, others at {call.name}: {here}")
        call.values[self.rank] = value
        num_living = sum(not member.has_died for member in self._shared.members)
        if self.rank == root or len(call.values) >= num_living:
            self._scheduler.wake(call.waiters)
        return call

    def _end(self, call: Call, root: int | None = None) -> dict[int, Any]:
        """What the ranks have brought, once the `root`, or all of them, have come."""
        members, chance = self._shared.members, self._scheduler.chance
        needed = range(self.size) if root is None else [root]
        while missing := [rank for rank in needed if rank not in call.values]:
            self._refuse_revoked()
            if any(members[rank] in self._process.knows_dead for rank in missing):
                is_garbage = self._mpi.garbage and chance.random() < GARBAGE_SHARE
                if is_garbage and call.name in PICKLED:
                    raise pickle.UnpicklingError("garbage of a message that a death cut short")
                if is_garbage and call.name in PARTIAL:
                    return call.values
                raise MpiError(self._mpi.ERR_PROC_FAILED)
            self._scheduler.wait(call.waiters, call.name)
        dead = [member for member in members if member.has_died]
        if dead and chance.random() < 0.5:
            self._process.knows_dead |= dict.fromkeys(dead)
            raise MpiError(self._mpi.ERR_PROC_FAILED)
        return call.values

    def _refuse_revoked(self) -> None:
        if self._shared in self._process.revoked:
            raise MpiError("revoked")

    # -- after a death -----------------------------------------------------------------------------

    def Get_failed(self) -> Group:
        known = self._process.knows_dead
        return Group([member for member in self._shared.members if member in known])

    def Is_revoked(self) -> bool:
        return self._shared in self._process.revoked

    def Revoke(self) -> None:
        self._scheduler.pause("Revoke")
        for member in self._shared.members:
            if self._shared in member.revoked:
                continue
            seconds = self._scheduler.chance.uniform(0, LONGEST_REVOKE_S)
            learns = partial(self._scheduler.learn, member.revoked, self._shared, member)
            self._scheduler.after(seconds, learns)
        self._process.revoked[self._shared] = None

    def Shrink(self) -> "Comm":
        call = self._begin("Shrink", None, survives=True)
        members = self._shared.members
        while not call.comms and any(
            not member.has_died and rank not in call.values for rank, member in enumerate(members)
        ):
            self._scheduler.wait(call.waiters, "Shrink")
        late = self._scheduler.chance.random() < 0.5  # those that died in it are still there
        there = [members[rank] for rank in sorted(call.values)]
        return self._made(call, None, [each for each in there if late or not each.has_died])

    def Abort(self, status: int) -> None:
        """Ends the job."""
        self._scheduler.pause("Abort")
        if self._mpi.status is None:
            self._mpi.status = status
        for process in self._scheduler.processes:
            self._scheduler.kill(process)
        self._scheduler.pause("Abort")
