"""Digests of files and values, and a fast hash of arrays."""

import hashlib
import json
from pathlib import Path

import numpy as np


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*parts: object) -> str:
    """A short digest of the JSON of its arguments."""
    total = hashlib.sha256()
    for part in parts:
        total.update(json.dumps(part, sort_keys=True, default=str).encode() + b"\0")
    return total.hexdigest()[:24]


def mixed(words: np.ndarray) -> np.ndarray:
    """Applies the finaliser of splitmix64 (Steele, Lea and Flood 2014) to each uint64: a bijection in which a flip
    of one input bit flips half of the output bits on average."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
