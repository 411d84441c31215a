"""Sums of the buckets of a gradient by a thread, while the backward pass computes the others.

TensorFlow's graph hands each bucket over and goes on; its last operation waits for the sums. The thread waits
asleep: the backward pass needs the core.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

POLL_S = 0.0005  # 1 Gbit/s brings 62 KB in that time, which the buffers of a socket hold


class BackgroundSums:
    """Adds up vectors one after the other, in the order in which they come: the same on every rank.

    Args:
      add: (vector, whether its numbers travel as bfloat16) -> the sum over ranks; called by one thread alone.
    """

    def __init__(self, add: Callable[[tf.Tensor, bool], tf.Tensor]):
        self._add = add
        self._given: queue.SimpleQueue[tuple[np.ndarray, bool] | None] = queue.SimpleQueue()
        self._sums: queue.SimpleQueue[np.ndarray | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="sums", daemon=True)
        self._thread.start()

    def start(self, flat: tf.Tensor, number: int, compresses: bool) -> tf.Tensor:
        def give(vector: np.ndarray) -> np.int32:
            self._given.put((vector, compresses))
            return np.int32(number)

        return tf.numpy_function(give, [flat], tf.int32)

    def finish(self, started: Sequence[tf.Tensor], dtype: str) -> list[tf.Tensor]:
        return tf.numpy_function(self._take, started, [tf.as_dtype(dtype)] * len(started))

    def close(self) -> None:
        self._given.put(None)
        self._thread.join()

    def _take(self, *numbers: np.ndarray) -> list[np.ndarray]:
        sums = []
        for _ in numbers:
            found = self._sums.get()
            if isinstance(found, BaseException):
                raise found
            sums.append(found)
        return sums

    def _work(self) -> None:
        while (given := self._given.get()) is not None:
            vector, compresses = given
            try:
                self._sums.put(np.array(self._add(tf.constant(vector), compresses)))
            except Exception as error:  # the main thread raises it
                self._sums.put(error)


class PatientComm:
    """The calls of an MPI communicator that sums need, waiting asleep instead of spinning."""

    def __init__(self, comm):
        self._comm, self.rank, self.size = comm, comm.rank, comm.size
        self.bcast, self.allgather = comm.bcast, comm.allgather

    def Split(self, color: int) -> "PatientComm":
        return PatientComm(self._comm.Split(color))

    def Barrier(self) -> None:
        _wait(self._comm.Ibarrier())

    def Bcast(self, buffer) -> None:
        _wait(self._comm.Ibcast(buffer))

    def Allreduce(self, sent, received) -> None:
        _wait(self._comm.Iallreduce(sent, received))

    def Alltoall(self, sent, received) -> None:
        _wait(self._comm.Ialltoall(sent, received))

    def Allgather(self, sent, received) -> None:
        _wait(self._comm.Iallgather(sent, received))


def _wait(request) -> None:
    while not request.Test():
        time.sleep(POLL_S)
