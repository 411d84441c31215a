"""The manifest of a corpus: its settings, and the size, digest and number of examples of each shard."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringbase.errors import InputError
from ringbase.json_files import read_json

FORMAT_VERSION = 1  # bump when the meaning of a shard's columns changes
MANIFEST = "manifest.json"
WORK = ".work"
FORMATS = ("arrow", "tfrecord")
MASKINGS = ("dynamic", "static")
MOST = 1 << 62  # of any number in a manifest


def read_manifest(folder: Path, flag: str = "--input_file") -> dict[str, Any]:
    """The manifest of a finished corpus, with every value that is used of its type.

    Raises InputError: none, an unfinished build, another format version, or a damaged manifest.
    """
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / WORK).is_dir():
            raise InputError(f"{flag}: {folder} is unfinished: run the same bert-corpus build command again")
        raise InputError(f"{flag}: {folder} has no {MANIFEST}: bert-corpus build writes one when it has finished")
    manifest = read_json(path, f"{flag} {path}")
    if not isinstance(manifest, dict) or "format_version" not in manifest:
        raise InputError(f"{flag}: {path} is damaged: it has no format_version")
    if manifest["format_version"] != FORMAT_VERSION:
        raise InputError(
            f"{flag}: {path} has format version {manifest['format_version']!r:.40}, this version of ringbert "
            f"reads {FORMAT_VERSION}"
        )
    if problem := _problem(manifest):
        raise InputError(f"{flag}: {path} is damaged: {problem}: copy it again, or build the corpus again")
    return manifest


def _problem(manifest: Mapping[str, Any]) -> str:
    """What is wrong with a manifest, or ""."""
    settings, counts, shards = (manifest.get(name) for name in ("settings", "counts", "shards"))
    if manifest.get("format") not in FORMATS:
        return f"format is {manifest.get('format')!r:.40}, expected {' or '.join(FORMATS)}"
    if not isinstance(manifest.get("tokenizer_digest"), str):
        return "tokenizer_digest is not a string"
    if not _is_count(manifest.get("vocab_size"), 1, 1 << 31):
        return f"vocab_size is {manifest.get('vocab_size')!r:.40}, expected a number above 0"
    if not isinstance(settings, dict) or not isinstance(counts, dict) or not isinstance(shards, list):
        return "settings, counts or shards is missing or of another type"
    if problem := _problem_of_settings(settings):
        return problem
    for number, shard in enumerate(shards):
        if problem := _problem_of_shard(shard, manifest["format"]):
            return f"entry {number} of shards: {problem}"
    if len({shard["file"] for shard in shards}) < max(len(shards), 1):
        return "shards is empty or names a file twice"
    if sum(shard["examples"] for shard in shards) != counts.get("examples"):
        return f"the examples of its shards are not the {counts.get('examples')!r:.40} of its counts"
    return ""


def _problem_of_settings(settings: Mapping[str, Any]) -> str:
    for name in ("max_seq_length", "max_predictions_per_seq"):
        if not _is_count(settings.get(name), 1, 1 << 31):
            return f"{name} is {settings.get(name)!r:.40}, expected a number above 0"
    for name in ("next_sentence", "do_whole_word_mask"):
        if not isinstance(settings.get(name), bool):
            return f"{name} is {settings.get(name)!r:.40}, expected true or false"
    share = settings.get("masked_lm_prob")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        return f"masked_lm_prob is {share!r:.40}, expected a number above 0 and at most 1"
    if settings.get("masking") not in MASKINGS:
        return f"masking is {settings.get('masking')!r:.40}, expected {' or '.join(MASKINGS)}"
    return ""


def _problem_of_shard(shard: Any, format: str) -> str:
    if not isinstance(shard, dict):
        return f"{shard!r:.40} is not an object"
    file, digest = shard.get("file"), shard.get("sha256")
    if not isinstance(file, str) or not re.fullmatch(rf"shard-[\w-]+\.{format}", file, re.ASCII):
        return f"file is {file!r:.40}, expected shard-….{format}"
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        return f"sha256 is {digest!r:.40}, expected 64 hexadecimal digits"
    for name in ("examples", "bytes"):
        if not _is_count(shard.get(name), 1):
            return f"{name} is {shard.get(name)!r:.40}, expected a number above 0"
    if "pieces" not in shard:
        return ""  # written before pieces had checksums
    pieces, rows = shard["pieces"], shard.get("rows_per_piece")
    if not _is_count(rows, 1) or not isinstance(pieces, list) or not all(map(_is_piece, pieces)):
        return "rows_per_piece or pieces is of another type"
    if len(pieces) != -(-shard["examples"] // rows) + 1 or sum(size for size, _ in pieces) != shard["bytes"]:
        return "its pieces do not add up to its examples and bytes"
    return ""


def _is_count(value: object, least: int, most: int = MOST) -> bool:
    return type(value) is int and least <= value <= most


def _is_piece(piece: object) -> bool:
    """Whether this is the size of a piece in bytes and its CRC32C."""
    return isinstance(piece, list) and len(piece) == 2 and _is_count(piece[0], 1) and _is_count(piece[1], 0)
