"""The third pass of a corpus: shards, and reading them back."""

import fnmatch
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert.corpus.documents import find_files
from bert.corpus.examples import ExampleFiles, Examples, concatenated
from ringbert.errors import InputError

FORMAT_VERSION = 1  # bump when what a shard's columns mean changes
MANIFEST = "manifest.json"
WORK = ".work"
TOKENIZER = "tokenizer"
BATCH_TOKENS = 1 << 20
READ_BYTES = 1 << 20


# -- writing ------------------------------------------------------------------------------------------------------


def shard_name(number: int, num_shards: int, ending: str) -> str:
    return f"shard-{number:05d}-of-{num_shards:05d}.{ending}"


def shard_batches(files: ExampleFiles, sizes: np.ndarray, start: int, stop: int) -> Iterator[Examples]:
    """The examples from place `start` to before `stop` in the order of the whole corpus, in bounded batches.

    Args:
      sizes: how many examples each bucket of `files` holds.
    """
    ends = np.cumsum(sizes)
    pending: list[Examples] = []
    for bucket in range(int(np.searchsorted(ends, start, "right")), len(ends)):
        first = int(ends[bucket] - sizes[bucket])
        if first >= stop:
            break
        rows = np.arange(max(start, first), min(stop, int(ends[bucket]))) - first
        if len(rows):
            pending.append(files.bucket(bucket).take(rows))
        if sum(len(part.values) for part in pending) >= BATCH_TOKENS:
            yield concatenated(pending)
            pending = []
    if pending:
        yield concatenated(pending)


def schema(vocab_type: np.dtype, next_sentence: bool, static: bool, settings: Mapping[str, object]) -> pa.Schema:
    ids = pa.large_list(pa.from_numpy_dtype(vocab_type))
    fields = [("input_ids", ids), ("sentence_a_tokens", pa.int32())]
    if next_sentence:
        fields.append(("is_random_next", pa.int8()))
    if static:
        fields += [("masked_lm_positions", pa.large_list(pa.int32())), ("masked_lm_ids", ids)]
    metadata = {"ringbert": json.dumps({"format_version": FORMAT_VERSION, "settings": dict(settings)})}
    return pa.schema(fields, metadata)


def write_arrow(path: Path, batches: Iterator[Examples], columns: pa.Schema) -> dict[str, object]:
    """Writes a shard to disk; its facts for the manifest."""
    examples = tokens = 0
    with open(path, "wb") as file:
        sink = _Hashed(file)
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), columns) as writer:
            for batch in batches:
                writer.write_batch(_record_batch(batch, columns))
                examples += len(batch)
                tokens += len(batch.values)
        file.flush()
        os.fsync(file.fileno())
    return {
        "file": path.name, "examples": examples, "tokens": tokens, "bytes": sink.size,
        "sha256": sink.hash.hexdigest(),
    }  # fmt: skip


def write_tfrecord(
    path: Path, batches: Iterator[Examples], max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, object]:
    """The same in Google's format."""
    from bert.corpus.tfrecord_writer import RecordWriter

    examples = tokens = 0
    lengths = {"max_seq_length": max_seq_length, "max_predictions_per_seq": max_predictions_per_seq}
    with RecordWriter(path, **lengths) as writer:
        for batch in batches:
            writer.write(
                {
                    "input_ids": (batch.values, batch.ends),
                    "sentence_a_tokens": batch.sentence_a_tokens,
                    "is_random_next": batch.is_random_next,
                    "masked_lm_positions": (batch.masked_positions, batch.masked_ends),
                    "masked_lm_ids": (batch.masked_values, batch.masked_ends),
                }
            )
            examples += len(batch)
            tokens += len(batch.values)
    return {
        "file": path.name, "examples": examples, "tokens": tokens, "bytes": path.stat().st_size,
        "sha256": _sha256(path),
    }  # fmt: skip


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(READ_BYTES):
            found.update(data)
    return found.hexdigest()


def _record_batch(batch: Examples, columns: pa.Schema) -> pa.RecordBatch:
    def lists(values: np.ndarray, ends: np.ndarray) -> pa.Array:
        return pa.LargeListArray.from_arrays(_arrow(ends), _arrow(values))

    made = {
        "input_ids": lambda: lists(batch.values, batch.ends),
        "sentence_a_tokens": lambda: _arrow(batch.sentence_a_tokens),
        "is_random_next": lambda: _arrow(batch.is_random_next),
        "masked_lm_positions": lambda: lists(batch.masked_positions, batch.masked_ends),
        "masked_lm_ids": lambda: lists(batch.masked_values, batch.masked_ends),
    }
    return pa.record_batch([made[name]() for name in columns.names], schema=columns)


def _arrow(values: np.ndarray) -> pa.Array:
    """The same as `pa.array`, which imports pandas: 0.3 s in every worker."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


class _Hashed:
    """A file that keeps the SHA-256 and the size of what is written."""

    def __init__(self, file):
        self._file, self.hash, self.size, self.closed = file, hashlib.sha256(), 0, False

    def write(self, data) -> int:
        self.hash.update(data)
        self._file.write(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True


# -- reading ------------------------------------------------------------------------------------------------------


def read_manifest(folder: Path, flag: str = "--input_file") -> dict[str, Any]:
    """The manifest of a finished corpus. Raises InputError: none, an unfinished build, another format."""
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / WORK).is_dir():
            raise InputError(f"{flag}: {folder} is unfinished: give the same bert-corpus build command again")
        raise InputError(f"{flag}: {folder} has no {MANIFEST}: bert-corpus build writes one when it has finished")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{flag}: {path} is damaged: {error}") from error
    if version != FORMAT_VERSION:
        raise InputError(f"{flag}: {path} has format {version}, this version of ringbert reads {FORMAT_VERSION}")
    return manifest


def find_shards(patterns: str, flag: str = "--input_file") -> tuple[str, str]:
    """Which shards globs and folders separated by commas mean: ("arrow", the patterns as they are) for those of
    `build`, ("tfrecord", the files) for TFRecord ones, of `build` or of others.

    Beside shards of `build` stands a manifest, which says their format; other files of its folder are left out.
    Raises InputError: nothing matches, or both formats do.
    """
    formats: dict[str, list[str]] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        folder = Path(pattern).expanduser()
        is_corpus = folder.is_dir() and any((folder / name).exists() for name in (MANIFEST, WORK))
        files = [Path(name) for name in find_files(f"{pattern.rstrip('/')}/*" if is_corpus else pattern, flag)]
        known = {
            parent: read_manifest(parent, flag)
            for parent in dict.fromkeys(path.parent for path in files)
            if (parent / MANIFEST).is_file() or parent == folder
        }
        for path in files:
            manifest = known.get(path.parent)
            if manifest is None:
                formats.setdefault("arrow" if path.suffix == ".arrow" else "tfrecord", []).append(str(path))
            elif path.name in {shard["file"] for shard in manifest["shards"]}:
                formats.setdefault(manifest["format"], []).append(str(path))
    if len(formats) != 1:
        found = " and ".join(formats) + " shards match, needed is one kind" if formats else "no shard matches"
        raise InputError(f"{flag} {patterns}: {found}")
    ((kind, names),) = formats.items()
    return kind, patterns if kind == "arrow" else ",".join(names)


def open_table(patterns: str, flag: str = "--input_file") -> tuple[pa.Table, dict[str, Any]]:
    """The rows of all shards that globs separated by commas match, mapped into memory, and the manifest.

    A folder stands for all shards of its manifest. Shards of several folders must have the same settings; then
    `shards` of the manifest returned lists those of all, and `counts` are the first folder's.
    Columns: bert/corpus.py.

    Raises InputError: no match; no manifest; a shard that the manifest names and a glob covers is missing; an
    empty, cut or foreign shard; shards of different settings.
    """
    files = _shard_files(patterns, flag)
    manifests = {folder: read_manifest(folder, flag) for folder in dict.fromkeys(path.parent for path in files)}
    first_folder, first = next(iter(manifests.items()))
    for folder, manifest in manifests.items():
        for name in ("format", "settings", "tokenizer_digest"):
            _check_same(first[name], manifest[name], f"{flag}: {first_folder} and {folder} differ in {name}")
    if first["format"] != "arrow":
        raise InputError(f"{flag}: {first_folder} holds {first['format']} shards, not Arrow ones")
    chosen, tables = [], []
    for path in files:
        known = {shard["file"]: shard for shard in manifests[path.parent]["shards"]}
        if path.name not in known:
            raise InputError(f"{flag}: {path} is not in the manifest of its folder")
        tables.append(_open_shard(path, known[path.name], manifests[path.parent]["settings"], flag))
        chosen.append(known[path.name])
    return pa.concat_tables(tables), first | {"shards": chosen}


def tokenizer_folder(patterns: str, flag: str = "--input_file") -> Path:
    """The folder of the tokenizer that the shards were made with: beside the first of them."""
    return _shard_files(patterns, flag)[0].parent / TOKENIZER


def _shard_files(patterns: str, flag: str) -> list[Path]:
    found: dict[Path, None] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        folder = Path(pattern).expanduser()
        if folder.is_dir():
            found.update(dict.fromkeys(folder / shard["file"] for shard in read_manifest(folder, flag)["shards"]))
            pattern = f"{pattern.rstrip('/')}/*"
        matches = [Path(name) for name in find_files(pattern, flag)]
        for parent in dict.fromkeys(path.parent for path in matches):
            if (parent / MANIFEST).is_file():
                # The shards that should be there: so a missing one is noticed.
                named = [parent / shard["file"] for shard in read_manifest(parent, flag)["shards"]]
                matches += [path for path in named if fnmatch.fnmatch(str(path), os.path.expanduser(pattern))]
        found.update(dict.fromkeys(sorted(path for path in matches if path.name.startswith("shard-"))))
    if not found:
        raise InputError(f"{flag} {patterns}: no shard of a corpus matches (shard-*.arrow)")
    return list(found)


def _open_shard(path: Path, facts: Mapping[str, Any], settings: object, flag: str) -> pa.Table:
    problem = _wrong_size(path, facts)
    if problem:
        raise InputError(f"{flag}: {problem}: copy it again, or build the corpus again")
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        stored = json.loads((table.schema.metadata or {})[b"ringbert"])
    except (pa.ArrowInvalid, OSError, KeyError, ValueError) as error:
        raise InputError(f"{flag}: {path} is damaged: {str(error).splitlines()[0]}") from error
    _check_same(settings, stored["settings"], f"{flag}: {path} and the manifest of its folder differ in settings")
    if table.num_rows != facts["examples"]:
        raise InputError(
            f"{flag}: {path} has {table.num_rows:,} examples, its manifest says {facts['examples']:,}"
        )
    return table


def _wrong_size(path: Path, facts: Mapping[str, Any]) -> str:
    if not path.is_file():
        return f"{path} is missing, the manifest names it"
    size = path.stat().st_size
    if size == 0:
        return f"{path} is empty, its manifest says {facts['bytes']:,} bytes"
    if size != facts["bytes"]:
        return f"{path} has {size:,} bytes, its manifest says {facts['bytes']:,}"
    return ""


def _check_same(one: Any, other: Any, message: str) -> None:
    different = differences(one, other)
    if different:
        raise InputError(f"{message}: {different}")


def differences(one: Any, other: Any) -> str:
    """What differs between two settings, with both values."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return "" if one == other else f"{one} and {other}"
    names = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
    return ", ".join(f"{name} ({one.get(name)} and {other.get(name)})" for name in names)


def verify(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Checks a corpus against its manifest: sizes, SHA-256, rows, ids below the vocabulary's size.

    Returns the manifest and one line for each shard that is missing or damaged.
    Raises InputError: no readable manifest.
    """
    manifest = read_manifest(folder, "--input_dir")
    problems = []
    for facts in manifest["shards"]:
        problem = _wrong_size(folder / facts["file"], facts) or _wrong_content(
            folder / facts["file"], facts, manifest
        )
        if problem:
            problems.append(problem)
    named = {shard["file"] for shard in manifest["shards"]}
    stray = sorted(path.name for path in folder.glob("shard-*") if path.name not in named)
    problems += [f"{folder / name} is not in the manifest" for name in stray]
    return manifest, problems


def _wrong_content(path: Path, facts: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    found = _sha256(path)
    if found != facts["sha256"]:
        return f"{path} is damaged: its SHA-256 is {found[:16]}…, the manifest's {facts['sha256'][:16]}…"
    if manifest["format"] != "arrow":
        return ""
    table = _open_shard(path, facts, manifest["settings"], "--input_dir")
    return _wrong_ids(path, table, manifest["vocab_size"])


def _wrong_ids(path: Path, table: pa.Table, vocab_size: int) -> str:
    for batch in table.to_batches():
        for name in [name for name in ("input_ids", "masked_lm_ids") if name in batch.schema.names]:
            values = batch.column(name).values.to_numpy()
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) < vocab_size:
                return f"{path}: {name} holds {int(values.max())}, the vocabulary has {vocab_size} entries"
    return ""


def shard_range(number: int, num_shards: int, num_examples: int) -> tuple[int, int]:
    """The places of a shard's examples in the order of the whole corpus: equal shares, to one example."""
    return number * num_examples // num_shards, (number + 1) * num_examples // num_shards


def total(counts: Sequence[Any], name: str) -> int:
    return sum(getattr(count, name) for count in counts)
