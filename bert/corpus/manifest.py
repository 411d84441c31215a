"""The manifest of a corpus: its settings, and the size, digest and number of examples of each shard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringbase.errors import InputError
from ringbase.files import write_json
from ringbase.hashing import digest
from ringbase.json_files import read_object

# Bump when the meaning of a shard's columns changes. Shards of version 1 have no checksums of batches: they are
# checked whole, by their SHA-256, before their first row is used.
FORMAT_VERSION, WITHOUT_CHECKSUMS = 2, 1
MANIFEST, WORK, TOKENIZER = "manifest.json", ".work", "tokenizer"

Manifest = dict[str, Any]


def write_manifest(folder: Path, facts: Manifest) -> None:
    """Makes a folder of shards a corpus. `facts` without the format version and the digest of all entries."""
    facts = {"format_version": FORMAT_VERSION} | facts
    write_json(folder / MANIFEST, facts | {"digest": digest(facts)}, indent=1)


def read_manifest(folder: Path, flag: str = "--input_file") -> Manifest:
    """The manifest of a finished corpus. Raises InputError: none, an unfinished build, another format version, or
    a damaged manifest."""
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / WORK).is_dir():
            raise InputError(f"{flag}: {folder} is unfinished: run the same bert-corpus build command again")
        raise InputError(f"{flag}: {folder} has no {MANIFEST}: bert-corpus build writes one when it has finished")
    manifest = read_object(path, f"{flag} {path}")
    others = {name: value for name, value in manifest.items() if name != "digest"}
    match manifest:
        case {"format_version": int(version)} if version not in (WITHOUT_CHECKSUMS, FORMAT_VERSION):
            raise InputError(
                f"{flag}: {path} has format version {version}, this version of ringbert reads {FORMAT_VERSION}: "
                "build the corpus again"
            )
        case {"format_version": 2, "digest": written} if written == digest(others):
            return manifest
        case {"format_version": 1, "tokenizer_digest": str(), "vocab_size": int(),
              "settings": {"max_seq_length": int(), "masking": str(), "next_sentence": bool()},
              "shards": [*shards]} if all(map(_is_entry, shards)):  # fmt: skip
            return manifest
    raise InputError(f"{flag}: {path} is damaged: copy it again, or build the corpus again")


def _is_entry(shard: object) -> bool:
    match shard:
        case {"file": str(), "examples": int(), "bytes": int(), "sha256": str()}:
            return True
    return False


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The settings that differ, also within settings, each with both values; "" if none differ."""
    parts: list[str] = []
    for name in dict.fromkeys([*one, *other]):
        first, second = one.get(name), other.get(name)
        if isinstance(first, dict) and isinstance(second, dict):
            parts.append(differences(first, second))
        elif first != second:
            parts.append(f"{name} ({first} and {second})")
    return ", ".join(filter(None, parts))
