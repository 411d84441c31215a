"""The shards of a corpus and their manifest: writes, finds, opens and checks them.

`bert-corpus build` writes them. An Arrow shard has the columns
  input_ids           large_list<uint16, or int32 above 65,536 entries>: [CLS] A [SEP] B [SEP]
  sentence_a_tokens   int32: the number of leading tokens of type 0
  is_random_next      int8: 1 when B does not follow A; absent without next-sentence prediction
and with static masks, which are already applied to input_ids,
  masked_lm_positions large_list<int32>, sorted
  masked_lm_ids       large_list of the type of input_ids: the original ids
Each record batch has a CRC32C in its metadata, which is compared before its first row is used. So a
corpus of any size is ready at once.
"""

import fnmatch
import functools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from bert.corpus.settings import ExampleSettings
from bert.corpus.units import find_files
from ringbase.errors import InputError, Unreadable, one_line, unread
from ringbase.files import digest, read_object, replacing, sha256, write_json
from ringbase.ragged import Array, Ragged

FORMAT_VERSION = 2  # bump when the meaning of a shard's columns changes
MANIFEST, TOKENIZER = "manifest.json", "tokenizer"
CHECKSUM = b"crc32c"
# entries of a manifest whose values tell people nothing; the others have the names of flags
IN_WORDS = {
    "format_version": "the format",
    "tokenizer_digest": "the vocabulary",
    "vocab_size": "the size of the vocabulary",
    "digest of the input files' names and sizes": "the names or sizes of the input files",
}

Manifest = dict[str, Any]

# -- writing; without pyarrow's own conversions of arrays, which import pandas: 0.3 s in every worke


def schema_of(settings: ExampleSettings, vocab_size: int) -> pa.Schema:
    """The columns of a shard."""
    id_type = pa.uint16() if vocab_size <= 1 << 16 else pa.int32()
    columns = {"input_ids": pa.large_list(id_type), "sentence_a_tokens": pa.int32()}
    if settings.next_sentence:
        columns["is_random_next"] = pa.int8()
    if settings.has_static_masks:
        columns["masked_lm_positions"] = pa.large_list(pa.int32())
        columns["masked_lm_ids"] = pa.large_list(id_type)
    return pa.schema(columns)


def record_batch(columns: Mapping[str, Array | Ragged], schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema, of numbers or of lists; other columns are left out."""

    arrays = []
    for field in schema:
        values = columns[field.name]
        if isinstance(values, tuple):
            items, offsets = values
            starts = _arrow(offsets, pa.int64())
            array = pa.LargeListArray.from_arrays(starts, _arrow(items, field.type.value_type))
        else:
            array = _arrow(values, field.type)
        arrays.append(array)
    return pa.record_batch(arrays, schema=schema)


def _arrow(values: Array, kind: pa.DataType) -> pa.Array:
    data = np.ascontiguousarray(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)])


def taken(batch: pa.RecordBatch, rows: Array) -> pa.RecordBatch:
    """These rows, int64 [n]."""
    return batch.take(_arrow(rows, pa.int64()))


def write_shard(
    path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the shard's entry for a manifest with `settings`."""
    sizes = list[int]()
    with replacing(path) as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            checksum = _checksum(batch, settings, len(sizes))
            writer.write_batch(batch, {CHECKSUM: str(checksum)})
            sizes.append(len(batch))
    return {
        "file": path.name,
        "examples": sum(sizes),
        "bytes": path.stat().st_size,
        "batches": sizes,
        "sha256": sha256(path),
    }


def _checksum(batch: pa.RecordBatch, *facts: object) -> int:
    """The CRC32C of a batch: of `facts`, of its size and the types of its columns, and of its
    values."""
    columns = [(field.name, str(field.type)) for field in batch.schema]
    description = digest(*facts, len(batch), columns)
    checksum = google_crc32c.value(description.encode())
    for column in batch.columns:
        is_list = pa.types.is_large_list(column.type)
        arrays = [np.from_dlpack(column.flatten() if is_list else column)]
        if is_list:
            offsets = np.from_dlpack(column.offsets)
            arrays.append(offsets - offsets[0])
        for array in arrays:
            checksum = google_crc32c.extend(checksum, array.tobytes())
    return checksum


# -- reading ---------------------------------------------------------------------------------------


class Shard:
    """The rows of an Arrow shard, in record batches that are opened and checked when they are first
    needed; then InputError names a shard that is not what the manifest describes."""

    def __init__(self, path: Path, facts: Mapping[str, Any], settings: Mapping[str, Any]):
        self.path = path
        self.facts = facts
        self._settings = settings
        self.num_rows = facts["examples"]
        self._checked = set[int]()

    @functools.cached_property
    def starts(self) -> Array:
        """The first row of each record batch, and the number of rows."""
        return np.cumsum([0, *self.facts["batches"]])

    def batch(self, number: int) -> pa.RecordBatch:
        """A record batch, as a view of the file."""
        try:
            batch, metadata = self._reader.get_batch_with_custom_metadata(number)
            if number not in self._checked:
                batch.validate()
                checksum = _checksum(batch, self._settings, number)
                is_whole = len(batch) == self.facts["batches"][number]
                if not is_whole or checksum != int(metadata[CHECKSUM]):
                    raise ValueError(f"batch {number} is not as it was written")
                self._checked.add(number)
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            damaged = (
                f"{self.path} is damaged: {one_line(error)}: copy or build the corpus again"
                f" (`bert-corpus verify --input_dir {self.path.parent}` names all damaged shards)"
            )
            raise unread(error, str(self.path), damaged) from error
        return batch

    @functools.cached_property
    def _reader(self) -> Any:
        with pa.memory_map(str(self.path)) as source:
            return pa.ipc.open_file(source.read_buffer())


def open_shards(files: Mapping[Path, Manifest]) -> tuple[list[Shard], Manifest]:
    """The Arrow shards that `find_shards` returned, and their manifest; of several folders the
    first one's, with all `shards`. Raises InputError if their settings differ."""
    first_path, first = next(iter(files.items()))
    shards = []
    for path, manifest in files.items():
        one, other = facts_of_examples(first), facts_of_examples(manifest)
        different = differences(one, other, {**one, **other})
        if different:
            again = how_to_build_again(one, other, first_path.parent)
            raise InputError(
                f"the shards in {first_path.parent} and {path.parent} differ in {different}: build"
                f" {path.parent} again {again}"
            )
        facts = next(shard for shard in manifest["shards"] if shard["file"] == path.name)
        shards.append(Shard(path, facts, manifest["settings"]))
    return shards, first | {"shards": [shard.facts for shard in shards]}


# -- the manifest: settings, and the size, digest and number of examples of each shard -------------


def write_manifest(folder: Path, facts: Manifest) -> None:
    """Makes a folder of shards a corpus. `facts` without the format version and the digest of all
    entries."""
    facts = {"format_version": FORMAT_VERSION} | facts
    write_json(folder / MANIFEST, facts | {"digest": digest(facts)}, indent=1)


def read_manifest(folder: Path, flag: str = "--input_file") -> Manifest:
    """The manifest of a finished corpus. Raises InputError: there is none, or it is damaged or
    cannot be read."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise InputError(f"{flag} {folder}: no such folder")
    if not path.is_file():
        raise InputError(
            f"{flag}: {folder} has no {MANIFEST}, which bert-corpus build writes last: run the same"
            " command again to finish it; TFRecord files of other programs are given as FOLDER/*"
        )
    manifest = read_object(path, f"{flag} {path}")
    version = manifest.get("format_version")
    others = dict(manifest)
    stated = others.pop("digest", None)
    if version == FORMAT_VERSION and stated == digest(others):
        return manifest
    raise InputError(
        f"{flag}: {path} is damaged, or of another version of RingBERT (its format is {version},"
        f" this one reads {FORMAT_VERSION}): copy the corpus again or build it again"
    )


def facts_of_examples(manifest: Manifest) -> dict[str, Any]:
    """What decides the examples of a text, by name."""
    return {"tokenizer_digest": manifest["tokenizer_digest"], **manifest["settings"]}


def differences(one: Manifest, other: Manifest, names: Iterable[str]) -> str:
    """The entries of these names that differ, also within entries, for people: flags with both
    values, others in words; "" if none differ."""
    parts = []
    for name in names:
        first, second = one.get(name), other.get(name)
        if isinstance(first, dict) and isinstance(second, dict):
            parts.append(differences(first, second, dict.fromkeys([*first, *second])))
        elif first != second:
            values = f"--{name} ({_shown(first)} and {_shown(second)})"
            parts.append(IN_WORDS.get(name, values))
    return ", ".join(filter(None, parts))


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)


def how_to_build_again(one: Mapping[str, Any], other: Mapping[str, Any], folder: Path) -> str:
    """With which flags of bert-corpus build a corpus gets the facts (`facts_of_examples`) of
    another one, which is in `folder`."""
    given, left_out = [], []
    for name in {**one, **other}:
        value = one.get(name)
        if value == other.get(name):
            continue
        if name == "tokenizer_digest":
            given.append(f"--model {folder / TOKENIZER}")
        elif value is None:
            left_out.append(f"--{name}")
        elif isinstance(value, bool):
            given.append(f"--{name}" if value else f"--no{name}")
        else:
            given.append(f"--{name} {value}")
    flags = [f"with {' '.join(given)}"] if given else []
    flags += [f"without {', '.join(left_out)}"] if left_out else []
    return f"{' and '.join(flags)} (bert-corpus build)"


def find_shards(patterns: str, flag: str = "--input_file") -> dict[Path, Manifest]:
    """The shards that comma-separated globs and folders name, each with the manifest of its folder:
    {} for other TFRecord files. Raises InputError: nothing matches, or both formats do; the shards
    that a glob covers are not those of the manifest, or not of their size."""
    shards: dict[Path, Manifest] = {}
    for pattern in filter(None, map(str.strip, patterns.split(","))):
        name = os.path.expanduser(pattern)
        if os.path.isdir(name):
            # before its files are looked for: there may be none yet
            read_manifest(Path(name), flag)
            name = os.path.join(name, "*")
        by_folder: dict[Path, list[Path]] = {}
        for path in map(Path, find_files(name, flag)):
            by_folder.setdefault(path.parent, []).append(path)
        for folder, files in by_folder.items():
            if not (folder / MANIFEST).is_file() and not is_arrow(files):
                for path in files:
                    shards[path] = {}
                continue
            manifest = read_manifest(folder, flag)
            expected = {}
            for shard in manifest["shards"]:
                path = folder / shard["file"]
                if fnmatch.fnmatch(str(path), os.path.normpath(name)):
                    expected[path] = shard["bytes"]
            actual = {}
            for path in files:
                if path in expected or path.name.startswith("shard-"):
                    actual[path] = path.stat().st_size
            problems = _problems(expected, actual)
            if problems:
                raise InputError(f"{flag}: {problems[0]}: copy it again, or build the corpus again")
            shards.update(dict.fromkeys(sorted(expected), manifest))
    formats = {path.suffix == ".arrow" for path in shards}
    if len(formats) != 1:
        raise InputError(
            f"{flag} {patterns}: no shard matches, or both Arrow and TFRecord shards do"
        )
    return shards


def is_arrow(shards: Iterable[Path]) -> bool:
    """Whether these are Arrow shards, not TFRecord files."""
    return any(path.suffix == ".arrow" for path in shards)


def verify(folder: Path) -> Manifest:
    """Compares every byte of a corpus and its tokenizer with its manifest, which it returns. Raises
    InputError that names each file that is missing, damaged or not in the manifest; Unreadable
    for what cannot be read."""
    manifest = read_manifest(folder, "--input_dir")
    expected = {folder / facts["file"]: facts["sha256"] for facts in manifest["shards"]}
    for name, value in manifest.get("tokenizer_files", {}).items():
        expected[folder / TOKENIZER / name] = value
    files = {*expected, *folder.glob("shard-*")}
    try:
        actual = {path: sha256(path) for path in files if path.is_file()}
    except OSError as error:
        raise Unreadable(f"--input_dir {folder} cannot be read ({one_line(error)})") from error
    problems = _problems(expected, actual)
    if problems:
        raise InputError("; ".join(problems))
    return manifest


def _problems(expected: Mapping[Path, object], actual: Mapping[Path, object]) -> list[str]:
    """A line for each file whose size or digest is not that of the manifest."""
    problems = []
    for path in sorted({*expected, *actual}):
        if path not in actual:
            problems.append(f"{path} is missing, but the manifest names it")
        elif path not in expected:
            problems.append(f"{path} is not in the manifest")
        elif expected[path] != actual[path]:
            problems.append(f"{path} is damaged")
    return problems
