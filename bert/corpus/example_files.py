"""Files of examples, from which the third pass of a corpus reads one bucket at a time."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bert.corpus.examples import Examples, concatenated
from bert.corpus.tokens import OpenFiles
from ringbase.errors import InputError
from ringbase.files import write_json
from ringbase.json_files import read_json


@dataclass(frozen=True)
class TaskCounts:
    """The contents of the file of one block and duplicate."""

    examples: int
    tokens: int
    masked: int
    random_next: int


def task_path(folder: Path, number: int) -> Path:
    """The file that marks a task of the second pass as done; its `.examples` is beside it."""
    return folder / f"task-{number:06d}.json"


def write_examples(marker: Path, examples: Examples, bucket_bits: int) -> None:
    """Writes examples that are sorted by their keys, with an index by the first `bucket_bits` bits of the keys,
    and then `marker`, which comes from `task_path`."""
    buckets = np.arange((1 << bucket_bits) + 1, dtype=np.uint64)
    starts = np.searchsorted(examples.keys >> np.uint64(64 - bucket_bits), buckets)
    with open(marker.with_suffix(".examples"), "wb") as file:
        for array in (
            starts.astype(np.int64), examples.keys, examples.offsets, examples.masked_offsets,
            examples.sentence_a_tokens, examples.masked_positions, examples.values, examples.masked_values,
            examples.is_random_next,
        ):  # fmt: skip
            file.write(array.tobytes())
    masked, random_next = len(examples.masked_values), int(examples.is_random_next.sum())
    counts = TaskCounts(len(examples), len(examples.values), masked, random_next)
    write_json(marker, asdict(counts), indent=None, sync=False)


def read_task_counts(marker: Path) -> TaskCounts:
    return TaskCounts(**read_json(marker))


def is_sampled(marker: Path, bucket_bits: int, dtype: np.dtype) -> bool:
    """Whether a task is done and its file complete: files are not synced, so a power cut may have damaged it."""
    try:
        counts = read_task_counts(marker)
        size = marker.with_suffix(".examples").stat().st_size
    except (OSError, InputError):
        return False
    return size == _places(counts, 1 << bucket_bits, dtype)[-1]


def _places(counts: TaskCounts, buckets: int, dtype: np.dtype) -> tuple[int, ...]:
    """The start of each array after the index in a file of examples, and the size of the file, in bytes."""
    examples, masked, item = counts.examples, counts.masked, dtype.itemsize
    sizes = (
        8 * (buckets + 1), 8 * examples, 8 * (examples + 1), 8 * (examples + 1), 4 * examples, 4 * masked,
        item * counts.tokens, item * masked, examples,
    )  # fmt: skip
    return tuple(itertools.accumulate(sizes))


class ExampleFiles:
    """The examples of the whole corpus by bucket. The bucket is the first bits of an example's key."""

    def __init__(self, folder: Path, counts: Sequence[TaskCounts], bucket_bits: int, dtype: np.dtype):
        self._paths = [task_path(folder, number).with_suffix(".examples") for number in range(len(counts))]
        self._counts, self._buckets, self._dtype = counts, 1 << bucket_bits, dtype
        self._files = OpenFiles()

    def bucket_sizes(self) -> np.ndarray:
        """The number of examples of each bucket, int64 [buckets]."""
        total = np.zeros(self._buckets, np.int64)
        for path in self._paths:
            total += np.diff(self._array(path, 0, 0, self._buckets + 1, np.int64))
        return total

    def bucket(self, number: int) -> Examples:
        """A bucket's examples, in the order of their keys."""
        examples = concatenated([self._slice(task, number) for task in range(len(self._paths))])
        return examples.take(np.argsort(examples.keys, kind="stable"))

    def _slice(self, task: int, bucket: int) -> Examples:
        path = self._paths[task]
        start, stop = self._array(path, 0, bucket, bucket + 2, np.int64).tolist()
        keys, offsets, masked_offsets, a_tokens, positions, values, masked_values, is_random, _ = _places(
            self._counts[task], self._buckets, self._dtype
        )
        my_offsets = self._array(path, offsets, start, stop + 1, np.int64)
        my_masked_offsets = self._array(path, masked_offsets, start, stop + 1, np.int64)
        first, last = my_offsets[0], my_offsets[-1]
        masked_first, masked_last = my_masked_offsets[0], my_masked_offsets[-1]
        return Examples(
            self._array(path, keys, start, stop, np.uint64),
            my_offsets - first,
            self._array(path, values, first, last, self._dtype),
            self._array(path, a_tokens, start, stop, np.int32),
            self._array(path, is_random, start, stop, np.int8),
            my_masked_offsets - masked_first,
            self._array(path, positions, masked_first, masked_last, np.int32),
            self._array(path, masked_values, masked_first, masked_last, self._dtype),
        )

    def _array(self, path: Path, place: int, start: int, stop: int, dtype) -> np.ndarray:
        size = np.dtype(dtype).itemsize
        data = self._files.read(path, place + size * int(start), size * int(stop - start))
        return np.frombuffer(data, dtype)
