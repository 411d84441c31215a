"""Messages of fixed size between the watching threads, which never wait for each other."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

STATE_TAG, ORDER_TAG = 1, 2
ORDER = np.dtype([("what", "u1"), ("rank", "<i4"), ("text", "S1000")])
POLL_S = 0.002


def state_format(most_peers: int) -> np.dtype:
    """What a rank tells the judges. `letters` are the states of its machine's processes, empty if it does not
    look; `most_peers` is the largest number of ranks on one machine."""
    return np.dtype(
        [("rank", "<i4"), ("count", "<i8"), ("kind", "u1"), ("age", "<f8"), ("name", "S80"),
         ("letters", "S1", (most_peers,))]
    )  # fmt: skip


class Mailbox:
    """Sends and takes messages through `comm`, which belongs to it. `dead`: ranks whose death MPI has reported."""

    def __init__(self, comm: Any, state: np.dtype):
        self.dead: set[int] = set()
        self._comm = comm
        self._buffers = {STATE_TAG: np.zeros(1, state), ORDER_TAG: np.zeros(1, ORDER)}
        self._states: dict[int, tuple[Any, np.ndarray]] = {}  # what a judge has not taken yet
        self._orders: list[tuple[Any, np.ndarray]] = []

    def tell(self, judge: int, state: np.ndarray) -> bool:
        """Sends a state, unless the judge has not taken the last one. Returns whether it has just taken one."""
        if judge in self.dead:
            return False
        has_taken = False
        try:
            if judge in self._states:
                if not self._states[judge][0].Test():
                    return False
                has_taken = True
            message = state.copy()
            # Synchronous, so that no more than one message waits at a judge that is stopped.
            self._states[judge] = self._comm.Issend(message.view(np.uint8), judge, STATE_TAG), message
        except Exception as error:
            self._states.pop(judge, None)
            self._note_dead(error)
        return has_taken

    def order(self, ranks: Sequence[int], what: int, rank: int = 0, text: str = "") -> None:
        message = np.array([(what, rank, text.encode()[:1000])], ORDER)
        for other in ranks:
            if other in self.dead:
                continue
            try:
                self._orders.append((self._comm.Isend(message.view(np.uint8), other, ORDER_TAG), message))
            except Exception as error:
                self._note_dead(error)

    def taken(self) -> Iterator[tuple[int, Any]]:
        """All messages that have come: their tags and contents, which are valid until the next one."""
        for tag, buffer in self._buffers.items():
            while (message := self._probed(tag)) is not None:
                message.Recv(buffer.view(np.uint8))
                yield tag, buffer[0]

    def has_delivered(self) -> bool:
        """Whether the judges have taken all states."""
        return all([request.Test() for request, _ in self._states.values()])

    def close(self, seconds: float) -> None:
        """Waits, not for long, until every rank is here and no message is left over."""
        give_up, everyone = time.monotonic() + seconds, None
        while time.monotonic() < give_up:
            for _ in self.taken():
                pass
            if everyone is None and self.has_delivered():
                everyone = self._comm.Ibarrier()
            if everyone is not None and everyone.Test():
                self._comm.Free()
                return
            time.sleep(POLL_S)

    def _probed(self, tag: int) -> Any:
        try:
            return self._comm.Improbe(tag=tag)
        except Exception as error:
            self._note_dead(error)
            return None

    def _note_dead(self, error: Exception) -> None:
        """Notes the ranks whose death MPI has reported; raises the error if there is no new one."""
        try:
            self._comm.Ack_failed()
            dead = set(self._comm.Get_failed().Translate_ranks(None, self._comm.Get_group()))
        except Exception:  # this MPI cannot tell
            raise error from None
        if dead <= self.dead:
            raise error
        self.dead |= dead
