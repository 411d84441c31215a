"""What the ranks of a job tell each other, always over MPI, whichever backend sums the
gradients."""

import contextlib
import itertools
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from distributed.joining import started
from distributed.ranks import Ranks
from distributed.watchdog import Watchdog, by_value
from ringbase.errors import InputError
from ringbase.secrets import masked

T = TypeVar("T")
PAUSE_S = 0.001  # of a rank that waits in a barrier
MESSAGE_BYTES = 1 << 28  # at most, of a message of pickled values, those of all ranks together


class FirstRankError(Exception):
    """`Messages.on_first` failed on rank 0, which reports it and ends the job."""


class Messages:
    """The ranks that there are, and what they exchange."""

    def __init__(self, ranks: Ranks, watchdog: Watchdog):
        self.ranks = ranks
        self.watchdog = watchdog
        self._derived: list[Any] = []  # communicators made from that of the ranks

    # What changes with the ranks is asked for where it is needed.

    @property
    def rank(self) -> int:
        return self.ranks.rank

    @property
    def size(self) -> int:
        return self.ranks.size

    @property
    def local_rank(self) -> int:
        return self.ranks.local_rank

    @property
    def node(self) -> int:
        return self.ranks.node

    @property
    def comm(self) -> Any:
        return self.ranks.comm

    @property
    def place(self) -> str:
        """Which rank this is, for messages."""
        return f"rank {self.rank} of {self.size}"

    @property
    def share(self) -> tuple[int, int]:
        """This rank's part of work that all ranks share, and the number of parts."""
        return self.rank, self.size

    def operation(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A `with` block that waits for all ranks, which all enter it; `name` is for messages."""
        return self.watchdog.operation(name)

    def barrier(self) -> None:
        """Waits for all ranks without keeping a core busy."""
        if self.comm is None:
            return
        with self.operation("a barrier"):
            request = self.comm.Ibarrier()
            while not request.Test():
                time.sleep(PAUSE_S)

    def broadcast(self, value: T) -> T:
        """Rank 0's value on every rank (pickled)."""
        if self.comm is None:
            return value
        parts = self._exchanged("bcast", value if self.rank == 0 else None)
        return pickle.loads(b"".join(parts))

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value on rank 0, in order of rank; None elsewhere (pickled)."""
        if self.comm is None:
            return [value]
        parts = self._exchanged("gather", value)
        return _of_each_rank(parts) if self.rank == 0 else None

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value on every rank, in order of rank (pickled)."""
        return [value] if self.comm is None else _of_each_rank(self._exchanged("allgather", value))

    def _exchanged(self, method: str, value) -> list[Any]:
        """What a method of MPI returns for the pickled value, piece by piece: MPI counts the bytes
        of a message, of all ranks together, in 32 bits."""
        raw = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        piece_bytes = MESSAGE_BYTES // self.size
        with self.operation(f"an MPI {method}"):
            self.barrier()
            exchange = getattr(self.comm, method)
            longest = np.array([len(raw)])
            try:
                # Not `allreduce`, for which mpi4py makes a communicator that nobody could revoke.
                self.comm.Allreduce(started().IN_PLACE, longest, started().MAX)
                starts = range(0, int(longest[0]), piece_bytes)
                return [exchange(raw[start : start + piece_bytes]) for start in starts]
            finally:
                self.ranks.refuse_after_death()

    def all_reduce_sum(self, values: ArrayLike, name: str = "a sum") -> np.ndarray:
        """The sum over ranks of a small float64 array; `name` is for messages."""
        total = np.array(values, np.float64)
        if self.comm is not None:
            with self.operation(name):
                self.comm.Allreduce(started().IN_PLACE, total)
            self.ranks.refuse_after_death()
        return total

    def on_first(self, function: Callable[..., T], *args) -> T:
        """Calls `function(*args)` on rank 0 only. Every rank returns its result, or raises if it
        failed."""
        result: Any = None
        failure, reason = None, ""
        with self.operation(f"the work of rank 0 ({getattr(function, '__name__', '')})"):
            if self.rank == 0:
                try:
                    with self.watchdog.working():
                        result = function(*args)
                except BaseException as error:
                    failure, reason = error, f"{type(error).__name__}: {error}"
            result, reason = self.broadcast((result, reason))
        if reason:
            raise failure or FirstRankError(reason)
        return result

    def first_here_first(self, function: Callable[[], None]) -> None:
        """Calls a function on every rank: on the first one of each machine, then on its others,
        which find what that has left in a cache."""
        with self.operation("the work of each machine's first rank, then of its others"):
            for is_first in (True, False):
                if (self.local_rank == 0) == is_first:
                    with self.watchdog.working():
                        function()
                self.barrier()

    def on_each_machine(self, function: Callable[..., T], *args) -> T:
        """Calls `function` on rank 0, then on the first rank of every other machine, which on a
        shared file system finds the files already written. Returns the result of the first rank
        here."""
        work = getattr(function, "__name__", "")
        with self.operation(f"the work of each machine's first rank ({work})"):
            result = self.on_first(function, *args)
            if self.local_rank == 0 and self.rank > 0:
                with self.watchdog.working():
                    result = function(*args)
            return self.on_node(result)[0]

    def on_node(self, value: T) -> list[T]:
        """The values of this machine's ranks, in order of local rank."""
        return [other for node, other in self.all_gather((self.node, value)) if node == self.node]

    def agree(self, facts: Mapping[str, object]) -> None:
        """Raises InputError on every rank unless all have the same facts: name -> anything with a
        stable `str`."""
        own = {name: str(value) for name, value in facts.items()}
        with self.operation("a comparison of the ranks"):
            everyone = self.all_gather(own)
        for name in dict.fromkeys(itertools.chain(*everyone)):
            values = [facts_of_rank.get(name, "nothing") for facts_of_rank in everyone]
            if len(set(values)) > 1:
                by_rank = dict(enumerate(values))
                raise InputError(f"the ranks disagree about {name}: {by_value(by_rank)}")

    def split(self, *colors: int) -> list[Any]:
        """For each color a communicator of the ranks that give the same one; all ranks call it
        alike. A death ends what waits in them too."""
        parts = []
        for color in colors:
            parts.append(self.comm.Split(color))
            self._derived.append(parts[-1])
        # Until all have them: whoever could not make one, because of a death, cannot revoke it.
        self.barrier()
        self.ranks.refuse_after_death()
        return parts

    def revoke(self) -> None:
        """Ends whatever waits for these ranks, on all of them."""
        for communicator in (*self._derived, self.comm):
            communicator.Revoke()
        self._derived.clear()

    def release(self) -> None:
        """Gives back the communicators, which nothing uses any more; all ranks call it."""
        for communicator in filter(None, (*self._derived, self.comm)):
            communicator.Free()
        self._derived.clear()

    def say(self, text: str, file: TextIO | None = None) -> None:
        """Prints a line to a file, or to standard error, once for the whole job."""
        if self.rank == 0:
            print(masked(text), file=file or sys.stderr, flush=True)


def _of_each_rank(pieces):
    """The values of the ranks, from all pieces of their pickles."""
    return [pickle.loads(b"".join(of_rank)) for of_rank in zip(*pieces, strict=True)]
