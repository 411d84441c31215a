"""Google's TFRecord shards of pretraining examples, read as rows."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from bert.corpus.tfrecord_format import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    KEYS,
    PREDICTIONS,
    TOKENS,
    Columns,
    example_class,
    masked_crc32c,
)
from bert.corpus.tfrecord_index import matching_files, record_offsets
from ringbase.errors import InputError
from ringbase.ragged import offsets_of


class RecordRows:
    """Pretraining examples in TFRecord files as numbered rows: `len(rows)`, `rows.take(indices)`.

    `patterns` are comma-separated file names or globs; files come in the order of the patterns, sorted within each
    pattern. The first run finds where each record begins and stores that in `cache_dir`, in one small file per
    shard; it writes nothing beside the shards. `digest` identifies the content: the files' names (without folder)
    and sizes and the checksums of all their records, so that hosts with their own copies agree.

    Raises InputError: a file is missing, empty, compressed, truncated or damaged, or its first example does not
      fit the flags.
    """

    def __init__(
        self,
        patterns: str,
        cache_dir: Path,
        *,
        max_seq_length: int,
        max_predictions_per_seq: int,
        vocab_size: int,
        flag: str = "--input_file",
    ):
        self.max_seq_length, self.max_predictions_per_seq = max_seq_length, max_predictions_per_seq
        self.vocab_size, self.flag = vocab_size, flag
        self.files = matching_files(patterns, flag)
        self._offsets = []  # for each file: int64 [records + 1]
        content = hashlib.sha256()
        for file in self.files:
            offsets, checksum = record_offsets(file, cache_dir, flag)
            content.update(f"{file.name}\0{offsets[-1]}\0".encode() + checksum)
            self._offsets.append(offsets)
        self._starts = np.cumsum([0, *(len(offsets) - 1 for offsets in self._offsets)])
        self.digest = content.hexdigest()[:24]
        self.take(self._starts[:-1])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: np.ndarray) -> Columns:
        """The examples without their padding.

        Returns `input_ids` (int32 values, int64 offsets [n + 1]); `sentence_a_tokens` (int32 [n], the number of
        leading tokens of segment 0); `masked_lm_positions` and `masked_lm_ids` (int32 values, int64 offsets
        [n + 1]) of the predictions of weight 1; `is_random_next` (int8 [n]).

        Raises InputError: a record is damaged, lacks a key or does not fit the flags.
        """
        indices = np.asarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"rows {indices.min()} to {indices.max()} of {len(self)}")
        return self._without_padding(self._parsed(self._read(indices), indices), indices)

    def _read(self, indices: np.ndarray) -> list[bytes]:
        """The records' contents. Each call opens the files again, so any number of shards can be read."""
        files = np.searchsorted(self._starts, indices, side="right") - 1
        records = [b""] * len(indices)
        for number in np.unique(files):
            places = np.flatnonzero(files == number)
            within = indices[places] - self._starts[number]
            starts, stops = self._offsets[number][within], self._offsets[number][within + 1]
            try:
                with self.files[number].open("rb", buffering=0) as file:
                    for place, start, stop in zip(places.tolist(), starts.tolist(), stops.tolist(), strict=True):
                        record = records[place] = os.pread(file.fileno(), stop - start, start)
                        length = (stop - start - FRAME_BYTES).to_bytes(8, "little")
                        if len(record) != stop - start or record[:8] != length:
                            raise InputError(
                                f"{self._where(indices[place])}: the file has changed since it was opened"
                            )
            except OSError as error:
                raise InputError(f"{self.flag} {self.files[number]}: {error.strerror or error}") from error
        contents = [record[HEADER_BYTES:-FOOTER_BYTES] for record in records]
        stored = np.frombuffer(b"".join(record[-FOOTER_BYTES:] for record in records), "<u4")
        computed = np.fromiter(map(masked_crc32c, contents), np.uint32, len(contents))
        self._check(stored != computed, indices, "the checksum of its content is wrong: the file is damaged")
        return contents

    def _parsed(self, contents: list[bytes], indices: np.ndarray) -> dict[str, np.ndarray]:
        """The features with their padding, [n, length] each."""
        features = []
        for content, index in zip(contents, indices, strict=True):
            try:
                features.append(example_class().FromString(content).features.feature)
            except DecodeError as error:
                raise InputError(f"{self._where(index)}: not a tf.train.Example ({error})") from error
        return {key: self._column(key, features, indices) for key in KEYS}

    def _column(self, key: str, features: list[Any], indices: np.ndarray) -> np.ndarray:
        kind, dtype = ("float_list", np.float32) if key == "masked_lm_weights" else ("int64_list", np.int64)
        length, flag = 1, ""
        if key in TOKENS:
            length, flag = self.max_seq_length, "--max_seq_length"
        elif key in PREDICTIONS:
            length, flag = self.max_predictions_per_seq, "--max_predictions_per_seq"
        flat: list = []
        for feature, index in zip(features, indices, strict=True):
            if key not in feature:
                raise InputError(
                    f"{self._where(index)}: no feature {key}; its features are {', '.join(sorted(feature))}"
                )
            actual = feature[key].WhichOneof("kind")
            if actual != kind:
                raise InputError(f"{self._where(index)}: {key} is of type {actual}, expected {kind}")
            values = getattr(feature[key], kind).value
            if len(values) != length:
                expected = f"{flag} is {length}: give {flag}={len(values)}" if flag else "expected 1"
                raise InputError(f"{self._where(index)}: {key} has {len(values)} values, {expected}")
            flat.extend(values)
        return np.array(flat, dtype).reshape(len(features), length)

    def _without_padding(self, columns: dict[str, np.ndarray], indices: np.ndarray) -> Columns:
        ids, segments, weights = (columns[key] for key in ("input_ids", "segment_ids", "masked_lm_weights"))
        lengths = np.count_nonzero(columns["input_mask"], axis=1)
        place = np.arange(self.max_seq_length)
        inside = place < lengths[:, None]
        self._check(
            (columns["input_mask"] != inside) | (lengths == 0)[:, None],
            indices,
            "input_mask is not ones followed by zeros",
        )
        sentence_a_tokens = np.count_nonzero((segments == 0) & inside, axis=1)
        second = (place >= sentence_a_tokens[:, None]) & inside
        self._check((segments != second) & inside, indices, "segment_ids are not zeros followed by ones")
        self._check((weights != 0) & (weights != 1), indices, "masked_lm_weights are not all 0 or 1")
        predicted = weights == 1
        positions, original_ids = columns["masked_lm_positions"], columns["masked_lm_ids"]
        beyond = ((positions < 0) | (positions >= lengths[:, None])) & predicted
        self._check(beyond, indices, "a masked_lm_position is past the end of its tokens")
        for key, values, used in (("input_ids", ids, inside), ("masked_lm_ids", original_ids, predicted)):
            beyond = ((values < 0) | (values >= self.vocab_size)) & used
            first = values[beyond][0] if beyond.any() else 0
            message = f"id {first} in {key} is outside the vocabulary of {self.vocab_size} entries (--vocab_file)"
            self._check(beyond, indices, message)
        labels = columns["next_sentence_labels"]
        self._check((labels != 0) & (labels != 1), indices, "next_sentence_labels is not 0 or 1")
        offsets = offsets_of(predicted.sum(axis=1))
        return {
            "input_ids": (ids[inside].astype(np.int32), offsets_of(lengths)),
            "sentence_a_tokens": sentence_a_tokens.astype(np.int32),
            "masked_lm_positions": (positions[predicted].astype(np.int32), offsets),
            "masked_lm_ids": (original_ids[predicted].astype(np.int32), offsets),
            "is_random_next": labels[:, 0].astype(np.int8),
        }

    def _check(self, wrong: np.ndarray, indices: np.ndarray, problem: str) -> None:
        if wrong.any():
            row = np.flatnonzero(wrong.reshape(len(indices), -1).any(axis=1))[0]
            raise InputError(f"{self._where(indices[row])}: {problem}")

    def _where(self, index: int) -> str:
        """The place of a row, for messages."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        record = int(index - self._starts[number])
        return f"{self.flag} {self.files[number]}: record {record} at byte {self._offsets[number][record]}"
