"""Digests of files and values, and a fast hash of arrays."""

import hashlib
import json
from pathlib import Path
from typing import BinaryIO

import numpy as np


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class HashingWriter:
    """Wraps a binary file that is open for writing; keeps the SHA-256 and the size in bytes of the written data.

    It has the methods that `pyarrow.PythonFile` needs. The caller who opened the file closes it.
    """

    def __init__(self, file: BinaryIO):
        self._file, self._hash = file, hashlib.sha256()
        self.size, self.closed = 0, False

    def write(self, data) -> int:
        self._hash.update(data)
        self._file.write(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True

    def sha256(self) -> str:
        return self._hash.hexdigest()


def digest(*parts: object) -> str:
    """A short digest of its arguments: the bytes of a file for a Path, the JSON of any other value."""
    total = hashlib.sha256()
    for part in parts:
        total.update(bytes.fromhex(sha256(part)) if isinstance(part, Path) else _json_bytes(part))
        total.update(b"\0")
    return total.hexdigest()[:24]


def _json_bytes(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()


def mixed(words: np.ndarray) -> np.ndarray:
    """Applies the finaliser of splitmix64 (Steele, Lea and Flood 2014) to each uint64: a bijection in which a flip
    of one input bit flips half of the output bits on average."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
