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
    """The manifest of a finished corpus. Raises InputError: there is none, or it is damaged or cannot be read."""
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / WORK).is_dir():
            raise InputError(f"{flag}: {folder} is unfinished: run the same bert-corpus build command again")
        raise InputError(f"{flag}: {folder} has no {MANIFEST}: bert-corpus build writes one when it has finished")
    manifest = read_object(path, f"{flag} {path}")
    version, others = manifest.get("format_version"), {k: v for k, v in manifest.items() if k != "digest"}
    if version == WITHOUT_CHECKSUMS or (version == FORMAT_VERSION and manifest.get("digest") == digest(others)):
        return manifest
    raise InputError(
        f"{flag}: {path} is damaged, or of another version of RingBERT (its format is {version}, this one reads "
        f"{FORMAT_VERSION}): copy the corpus again or build it again"
    )


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
