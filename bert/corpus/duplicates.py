"""Documents that repeat an earlier one, character by character, found in bounded memory.

A unit writes the digests of its documents in sorted runs, each of which says once what it holds
several times. A slice of all digests, those of one range, is then compared at once; there are as
many slices as keep one small. Two different documents have the same digest of 128 bits once in 10²⁰
corpora of a billion documents.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ringbase.files import replacing
from ringbase.ragged import Array

DIGEST_BYTES = 16
MOST_IN_RUN = 1 << 20  # documents
MOST_AT_ONCE = 1 << 22  # digests of a slice: about 200 MB while they are compared
# A digest by its first and its second half, and the number of the document within its unit.
DOCUMENT = np.dtype([("high", np.uint64), ("low", np.uint64), ("number", np.uint32)])
# A document that repeats an earlier one: its unit, and its number there.
REPEATED = np.dtype([("unit", np.uint32), ("number", np.uint32)])


class Run(NamedTuple):
    """The files of a sorted run of a unit's documents."""

    folder: Path
    unit: int
    number: int

    @property
    def different(self) -> Path:
        """DOCUMENT [n], by digest: those that repeat none of the run."""
        return self._named("different")

    @property
    def repeated(self) -> Path:
        """REPEATED [n]: the others."""
        return self._named("repeated")

    def _named(self, name: str) -> Path:
        return self.folder / f"{name}-{self.unit:06d}-{self.number:06d}.npy"


class Digests:
    """The digests of the documents of a unit, as they pass by, in files of a folder."""

    def __init__(self, folder: Path, unit: int):
        self._folder = folder
        self._unit = unit
        self._values = bytearray()  # of a run
        self._num_read = 0
        self.num_runs = 0
        self.num_repeated = 0  # documents that repeat one of the same run

    def of(self, documents: Iterable[list[str]]) -> Iterator[list[str]]:
        """The same documents."""
        for document in documents:
            text = "\n".join(document).encode()
            self._values += hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()
            if len(self._values) == MOST_IN_RUN * DIGEST_BYTES:
                self._write_run()
            yield document
        self._write_run()

    def _write_run(self) -> None:
        halves = np.frombuffer(bytes(self._values), ">u8").reshape(-1, 2)
        documents = np.zeros(len(halves), DOCUMENT)
        documents["high"], documents["low"] = halves.T
        documents["number"] = self._num_read + np.arange(len(halves))
        order, repeats = _compared(documents)
        documents = documents[order]
        repeated = np.zeros(int(repeats.sum()), REPEATED)
        repeated["unit"] = self._unit
        repeated["number"] = documents["number"][repeats]
        run = Run(self._folder, self._unit, self.num_runs)
        write_array(run.different, documents[~repeats])
        write_array(run.repeated, np.sort(repeated))
        self.num_runs += 1
        self.num_repeated += len(repeated)
        self._num_read += len(documents)
        self._values.clear()


def num_slices(runs: Iterable[Run]) -> int:
    """How many slices the digests of all runs have."""
    size = sum(run.different.stat().st_size for run in runs)
    return -(-size // (MOST_AT_ONCE * DOCUMENT.itemsize))


def repeated_in(runs: Iterable[Run], number: int, num_slices: int) -> Array:
    """The documents of a slice that repeat one of an earlier run, REPEATED [n], in their order."""
    # The range of the first halves of these digests.
    first, last = (-(-(place << 64) // num_slices) for place in (number, number + 1))
    found, units = [], []
    for run in runs:
        documents = np.load(run.different, mmap_mode="r")
        highs = documents["high"]
        start = int(np.searchsorted(highs, np.uint64(first)))
        stop = len(highs)
        if last < 1 << 64:
            stop = int(np.searchsorted(highs, np.uint64(last)))
        found.append(np.array(documents[start:stop]))
        units.append(np.full(stop - start, run.unit, np.uint32))
    documents = np.concatenate(found)
    order, repeats = _compared(documents)
    repeated = np.zeros(int(repeats.sum()), REPEATED)
    repeated["unit"] = np.concatenate(units)[order][repeats]
    repeated["number"] = documents["number"][order][repeats]
    return np.sort(repeated)


def _compared(documents: Array) -> tuple[Array, Array]:
    """The order of the digests, in which equal ones stay in theirs, and whether each in this order
    equals the one before it, bool [n]."""
    order = np.lexsort((documents["low"], documents["high"]))
    highs, lows = documents["high"][order], documents["low"][order]
    repeats = np.zeros(len(order), bool)
    repeats[1:] = (highs[1:] == highs[:-1]) & (lows[1:] == lows[:-1])
    return order, repeats


def numbers_of(unit: int, files: Iterable[Path]) -> Array:
    """The documents of a unit that these files of REPEATED name, uint32 [n], sorted."""
    numbers = [np.zeros(0, np.uint32)]
    for path in files:
        repeated = np.load(path, mmap_mode="r")
        first, last = np.searchsorted(repeated["unit"], [unit, unit + 1])
        numbers.append(np.array(repeated["number"][first:last]))
    return np.sort(np.concatenate(numbers))


def without(documents: Iterable[list[str]], numbers: Array) -> Iterator[list[str]]:
    """The documents but for those with these numbers, which are sorted."""
    left_out = iter(numbers)
    following = next(left_out, -1)
    for number, document in enumerate(documents):
        if number == following:
            following = next(left_out, -1)
        else:
            yield document


def write_array(path: Path, values: Array) -> None:
    with replacing(path) as file:
        np.save(file, values)
