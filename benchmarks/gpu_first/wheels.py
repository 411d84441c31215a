"""Carries large wheels to a machine without a network, in pieces.

    python -m benchmarks.gpu_first split tensorflow-2.21.0-….whl pieces    # here: pieces/tensorflow-….whl.000 …
    python -m benchmarks.gpu_first join pieces wheels                      # there, once all pieces have arrived
    python -m benchmarks.gpu_first install wheels site                     # there: pip, from these files alone

Beside the pieces there is a list with the length and SHA-256 of each and of the whole.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ringbase.errors import InputError
from ringbase.files import replacing, write_json
from ringbase.json_files import read_json

PIECE_MIB = 60
BLOCK = 1 << 20
LIST_SUFFIX = ".pieces.json"


def split(wheel: Path, folder: Path, piece_mib: int = PIECE_MIB) -> list[Path]:
    """Writes the pieces of a file, and their list. Returns all paths."""
    if piece_mib < 1:
        raise InputError(f"--piece_mib must be at least 1, got {piece_mib}")
    folder.mkdir(parents=True, exist_ok=True)
    whole = hashlib.sha256()
    pieces: list[dict] = []
    with wheel.open("rb") as source:
        while block := source.read(BLOCK):
            piece = folder / f"{wheel.name}.{len(pieces):03d}"
            digest, length = hashlib.sha256(), 0
            with piece.open("wb") as file:
                while block:
                    file.write(block)
                    digest.update(block)
                    whole.update(block)
                    length += len(block)
                    block = source.read(BLOCK) if length + BLOCK <= piece_mib << 20 else b""
            pieces.append({"name": piece.name, "length": length, "sha256": digest.hexdigest()})
    listed = folder / f"{wheel.name}{LIST_SUFFIX}"
    write_json(listed, {"name": wheel.name, "sha256": whole.hexdigest(), "pieces": pieces})
    return [*(folder / str(piece["name"]) for piece in pieces), listed]


def join(folder: Path, target: Path) -> list[Path]:
    """Puts together every file of which the folder has a list. Returns their paths.

    Raises InputError: pieces are missing or damaged.
    """
    lists = sorted(folder.glob(f"*{LIST_SUFFIX}"))
    if not lists:
        raise InputError(f"{folder} has no list of pieces (*{LIST_SUFFIX})")
    target.mkdir(parents=True, exist_ok=True)
    return [_joined(read_json(listed), folder, target) for listed in lists]


def _joined(listed: dict, folder: Path, target: Path) -> Path:
    missing = [piece["name"] for piece in listed["pieces"] if not (folder / piece["name"]).is_file()]
    if missing:
        raise InputError(
            f"{folder}: {len(missing)} of {len(listed['pieces'])} pieces are missing: {', '.join(missing)}"
        )
    path, whole = target / Path(listed["name"]).name, hashlib.sha256()
    with replacing(path) as file:
        for piece in listed["pieces"]:
            digest = hashlib.sha256()
            for block in blocks(folder / piece["name"]):
                file.write(block)
                digest.update(block)
                whole.update(block)
            if digest.hexdigest() != piece["sha256"]:
                raise InputError(f"{folder / piece['name']} is damaged: its SHA-256 is not the listed one")
        if whole.hexdigest() != listed["sha256"]:
            raise InputError(f"the pieces of {listed['name']} do not give its SHA-256")
    return path


def blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block


def install(wheels: Path, site: Path) -> None:
    """Installs all wheels of a folder into another, without a network and without looking at what they need.

    Raises InputError: there are no wheels.
    """
    found = sorted(str(path) for path in wheels.glob("*.whl"))
    if not found:
        raise InputError(f"{wheels} has no wheels")
    options = ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *found], check=True, env=os.environ)
