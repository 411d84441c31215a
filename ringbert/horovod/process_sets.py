"""Sets of ranks that work together without the others (`hvd.ProcessSet`)."""

from collections.abc import Sequence

import tensorflow as tf
from tensorflow import Tensor

from distributed.joining import started
from distributed.ranks import Ranks
from ringbase.errors import InputError
from ringbert.horovod.session import (
    PAGE,
    Call,
    Session,
    WrongValue,
    as_written,
    current,
    with_part,
)


class ProcessSet:
    """Some of the ranks. All ranks add it, by `add_process_set` or `init(process_sets=…)`; calls
    with `process_set=` are then for its own ranks only."""

    process_set_id: int | None = None  # while it is added
    session: Session | None = None  # while it is added, on its own ranks

    def __init__(self, ranks: Sequence[int]):
        """`ranks` may be an mpi4py communicator, too."""
        if hasattr(ranks, "allgather"):
            ranks = ranks.allgather(current().world.rank)
        self._ranks = sorted(ranks)

    def __repr__(self) -> str:
        return f"hvd.ProcessSet({self.ranks})"

    @property
    def ranks(self) -> list[int]:
        return self._ranks

    def included(self) -> bool:
        """Whether this rank is one of them."""
        return current().world.rank in self.ranks

    def size(self) -> int:
        """How many ranks they are."""
        return len(self.ranks)

    def rank(self) -> int:
        """The number of this rank among them."""
        return session_of(self).world.rank


class AllRanks(ProcessSet):
    """All ranks, whichever they are."""

    process_set_id = 0

    def __init__(self):
        super().__init__([])

    @property
    def ranks(self) -> list[int]:
        return [*range(current().world.size)]


global_process_set = AllRanks()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Lets some of the ranks work together without the others. All ranks call it, with the same
    ranks. Returns the set."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    whole, ranks = current(), process_set.ranks
    size = whole.world.size
    if not ranks or len(set(ranks)) < len(ranks) or not set(ranks) <= {*range(size)}:
        raise WrongValue(f"{process_set} needs different ranks from 0 to {size - 1}")
    for other in (global_process_set, *whole.process_sets.values()):
        if other.ranks == ranks:
            raise InputError(f"{process_set} has the ranks of a set that is there: use that one")
    with whole.meeting(Call("hvd.add_process_set", str(process_set))):
        own = _ranks_of(process_set)
    if process_set.included():
        process_set.session = with_part(own, f" in {process_set}")
    process_set.process_set_id = max(whole.process_sets, default=0) + 1
    whole.process_sets[process_set.process_set_id] = process_set
    return process_set


def _ranks_of(process_set: ProcessSet) -> Ranks:
    world = current().world
    comm = world.comm.Split(0 if process_set.included() else started().UNDEFINED)
    return Ranks.of(comm) if process_set.included() and process_set.size() > 1 else Ranks()


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a set; all ranks call it. Returns whether it was there."""
    sets = current().process_sets
    if process_set not in sets.values():
        return False
    with current().meeting(Call("hvd.remove_process_set", str(process_set))):
        pass
    if session := process_set.session:
        session.world.release()
    del sets[process_set.process_set_id or 0]
    process_set.process_set_id = None
    process_set.session = None
    return True


def session_of(process_set: ProcessSet | None = None) -> Session:
    """The session of a set's ranks; of all ranks for None. Raises InputError on ranks that are not
    in the set."""
    whole = current()
    if process_set is None or process_set is global_process_set:
        return whole
    if not isinstance(process_set, ProcessSet):
        raise InputError(f"process_set must be a hvd.ProcessSet, got {process_set!r:.100} ({PAGE})")
    if process_set not in whole.process_sets.values():
        raise InputError(
            f"{process_set} is not added: call hvd.add_process_set on all ranks, after hvd.init(),"
            " or hvd.init(process_sets=[…])"
        )
    if session := process_set.session:
        return session
    raise InputError(f"rank {whole.world.rank} is not in {process_set}")


def root_in(process_set: ProcessSet | None, rank: int) -> int:
    """The number in a set of a rank, which Horovod names by its number among all. Raises WrongValue
    for any other."""
    ranks = (process_set or global_process_set).ranks
    if rank not in ranks:
        wanted = f"from 0 to {len(ranks) - 1}"
        if process_set not in (None, global_process_set):
            wanted = f"a rank of {process_set}"
        raise WrongValue(f"root_rank must be {wanted}, got {rank}")
    return ranks.index(rank)


def by_number(process_set_id: int) -> ProcessSet:
    """The set of this number, which is 0 for all ranks."""
    sets = {0: global_process_set, **current().process_sets}
    if process_set_id not in sets:
        raise WrongValue(f"there is no process set {process_set_id}: the sets are {[*sets]}")
    return sets[process_set_id]


@as_written
def size_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """How many ranks a set has, as a tensor."""
    return tf.constant(by_number(process_set_id).size())


@as_written
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """Whether this rank is in a set, as a tensor: 1 or 0."""
    return tf.constant(int(by_number(process_set_id).included()))
