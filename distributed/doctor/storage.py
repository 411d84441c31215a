"""Checks of disks: free space and writing speed of the folders that a run writes to."""

import contextlib
import os
import shutil
import socket
import time
from pathlib import Path

from distributed.doctor.examination import Finding, failed, not_tested, ok, warning
from distributed.world import World

WRITTEN_BYTES = 1 << 26
PIECE_BYTES = 1 << 22
# A checkpoint holds weights and two moments in float32: 1.3 GB for BERT-base, 4 GB for BERT-large.
FEWEST_BYTES, FEW_BYTES = 2e9, 25e9
SLOW_BYTES_PER_S = 30e6


def check_output_folder(world: World, folder: Path) -> Finding:
    """The disk that rank 0 writes a run to."""
    if world.rank > 0:
        return not_tested("rank 0 writes")
    return check_disk(folder, "give another folder as --output_dir, or free some space")


def check_cache_folder(world: World, folder: Path) -> Finding:
    """The disk of prepared data, which each host writes."""
    if world.local_rank > 0:
        return not_tested("the first rank of a host writes")
    return check_disk(folder, "set RINGBERT_CACHE to a folder on another disk, or free some space")


def check_disk(folder: Path, advice: str) -> Finding:
    """Writes a file of 64 MiB to the folder, or to the nearest one above it that exists, and removes it."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    place = f"{short(existing)} on {socket.gethostname()}"
    free_bytes = shutil.disk_usage(existing).free
    try:
        seconds = seconds_to_write(existing / f".bert-doctor.{os.getpid()}.tmp")
    except OSError as error:
        return failed(f"{place}: {error.strerror}; {in_gb(free_bytes)} are free", advice)
    speed = WRITTEN_BYTES / seconds
    text = f"{place}: {in_gb(free_bytes)} free, {speed / 1e6:.0f} MB/s written"
    details = {"folder": str(existing), "free_bytes": free_bytes, "bytes_per_s": speed}
    if free_bytes < FEWEST_BYTES:
        return failed(f"{text}: too little for a checkpoint of BERT-base", advice, **details)
    if free_bytes < FEW_BYTES:
        return warning(f"{text}: too little for five checkpoints of BERT-large", advice, **details)
    if speed < SLOW_BYTES_PER_S:
        return warning(f"{text}: a checkpoint of BERT-large takes {4e9 / speed:.0f} s", advice, **details)
    return ok(text, **details)


def seconds_to_write(path: Path) -> float:
    """The time to write a file of 64 MiB to the disk; the file is removed."""
    piece = os.urandom(PIECE_BYTES)  # some file systems store zeros in no space
    try:
        start_s = time.perf_counter()
        with path.open("wb") as file:
            for _ in range(WRITTEN_BYTES // PIECE_BYTES):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return time.perf_counter() - start_s
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def short(path: Path) -> str:
    """The path, with ~ for the home folder."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def in_gb(number: float) -> str:
    return f"{number / 1e9:.3g} GB"
