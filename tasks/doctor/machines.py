"""Checks of the software, the hosts, their disks and their GPUs."""

import contextlib
import os
import platform
import shutil
import socket
import time
from collections import Counter
from pathlib import Path

import tensorflow as tf

from distributed.collectives.tensorflow import host_address
from distributed.joining import started
from distributed.mpirun import OPEN_MPI, find_mpi
from distributed.versions import versions
from distributed.world import World
from ringbase.errors import InputError, shortened
from tasks.doctor.page import Finding, not_tested

TENSORFLOW = "2.21"
SHOWN = ("ringbert", "tensorflow", "tensorflow-cpu", "keras", "transformers", "numpy", "mpi4py")
WRITTEN_BYTES, PIECE_BYTES = 1 << 26, 1 << 22
FEW_BYTES = 25e9  # a checkpoint holds weights and two moments in float32: 4 GB for BERT-large
SLOW_BYTES_PER_S = 30e6


def check_versions(world: World) -> Finding:
    """The packages that a result depends on: the same on every rank, and those that RingBERT is made for."""
    installed = versions()
    try:
        world.agree({"Python": platform.python_version(), **installed})
    except InputError as error:
        return Finding("failed", str(error), "install the same environment on every host, at the same path")
    if {"tensorflow", "tensorflow-cpu"} <= installed.keys():
        text = "tensorflow and tensorflow-cpu are both installed and overwrite each other's files"
        return Finding("failed", text, "make a new environment with one of ringbert's extras, cpu or gpu")
    build = tf.sysconfig.get_build_info()
    kind = f"CUDA {build['cuda_version']}" if build["is_cuda_build"] else "CPUs"
    shown = ", ".join(f"{name} {installed[name]}" for name in SHOWN if name in installed)
    text = f"Python {platform.python_version()}, {shown}; TensorFlow is built for {kind}"
    if not tf.__version__.startswith(f"{TENSORFLOW}."):
        advice = f"pip install 'tensorflow=={TENSORFLOW}.*' (or tensorflow-cpu)"
        return Finding("warning", f"{text}; RingBERT is tested with TensorFlow {TENSORFLOW} only", advice)
    return Finding("ok", text)


def check_mpi(world: World) -> Finding:
    """Whether the launcher and mpi4py use one MPI library, and whether bert-launch would find its mpirun."""
    try:
        name, numbers = started().get_vendor()
    except (ImportError, RuntimeError):
        advice = "for several ranks pip install '.[mpi]' in ringbert's checkout, or load the cluster's MPI module"
        return Finding("warning", "one rank only: there is no mpi4py or no MPI library", advice)
    version = ".".join(map(str, numbers))
    ours = f"{name} {version}"
    if world.size > 1:
        launcher = os.environ.get("OMPI_VERSION", version)
        if name == OPEN_MPI and launcher != version:
            text = f"mpirun of Open MPI {launcher} has started processes that use {ours}"
            return Finding("warning", text, "start with bert-launch, which finds the mpirun of mpi4py's library")
        return Finding("ok", f"{ours}, the launcher's and mpi4py's; {world.size} ranks")
    try:
        mpi = find_mpi()
    except InputError as error:
        advice = "only one rank can be started until there is an mpirun"
        return Finding("warning", f"mpi4py uses {ours}, but {error}", advice)
    installed = ".".join(map(str, mpi.version))
    if mpi.implementation != name or (name == OPEN_MPI and not version.startswith(installed)):
        return Finding(
            "failed",
            f"mpi4py uses {ours}, but {mpi.mpirun} belongs to {mpi}: each rank would be alone",
            "load the MPI module that mpi4py was built with, or pip install '.[mpi]' into this environment",
        )
    return Finding("ok", f"{ours}, mpi4py's and that of {mpi.mpirun}; one rank")


def check_hosts(world: World) -> Finding:
    """The name, the address and the ranks of each host, and how many threads each rank computes with."""
    ranks_of = Counter(world.all_gather((socket.gethostname(), host_address(world))))
    text = shortened(f"{name} ({address}), ranks: {count}" for (name, address), count in ranks_of.items())
    if len(set(ranks_of.values())) > 1:
        advice = "start equally many ranks on each host; a step waits for the slowest"
        return Finding("warning", f"{text}: different numbers of ranks", advice)
    if world.device.notes and "bound" in world.device.notes[0]:
        note, _, advice = world.device.notes[0].partition("; ")
        return Finding("warning", note, advice)
    return Finding("ok", f"{text}; threads per rank: {world.device.threads}, cores: {os.cpu_count()}")


def check_disk(writes: bool, folder: Path, advice: str) -> Finding:
    """Writes a file of 64 MiB to the folder, or to the nearest one above it that exists, and removes it, on the
    ranks for which `writes` is true."""
    if not writes:
        return not_tested("another rank writes")
    existing = nearest_folder(folder)
    free_bytes = shutil.disk_usage(existing).free
    place = f"{existing} on {socket.gethostname()}: {free_bytes / 1e9:.3g} GB free"
    path = existing / f".bert-doctor.{os.getpid()}.tmp"
    piece = os.urandom(PIECE_BYTES)  # not zeros, which may be free
    start_s = time.perf_counter()
    try:
        with path.open("wb") as file:
            for _ in range(WRITTEN_BYTES // PIECE_BYTES):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding("failed", f"{place}; {error.strerror}", advice)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    speed = WRITTEN_BYTES / (time.perf_counter() - start_s)
    text = f"{place}, {speed / 1e6:.0f} MB/s written"
    if free_bytes < FEW_BYTES:
        return Finding("warning", f"{text}: too little for five checkpoints of BERT-large", advice)
    if speed < SLOW_BYTES_PER_S:
        return Finding("warning", f"{text}: a checkpoint of BERT-large takes {4e9 / speed:.0f} s", advice)
    return Finding("ok", text)


def nearest_folder(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def check_gpus(world: World) -> Finding:
    """Which GPU each rank has: all of one kind, a different one for each rank."""
    if not world.device.is_gpu:
        return not_tested("the ranks compute on CPUs")
    ranks = world.all_gather((world.device.name, world.device.bus_id, socket.gethostname()))
    kinds = Counter(name for name, _, _ in ranks)
    text = "; ".join(f"{number} x {name}" for name, number in kinds.items())
    if len(kinds) > 1:
        return Finding("warning", text, "use GPUs of one kind: a step waits for the slowest")
    if len({(bus_id, host) for _, bus_id, host in ranks}) < world.size:
        return Finding("warning", f"{text}, shared by ranks", "start one rank per GPU to train")
    return Finding("ok", text)
