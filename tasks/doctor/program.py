"""bert-doctor: whether RingBERT works on this machine or cluster. One page, green or red, with what to do.

    bert-doctor
    bert-launch -np 8 -H host1:4,host2:4 -- bert-doctor
    srun --mpi=pmix --ntasks-per-node=4 bert-doctor --json

It starts as a training does, so what keeps trainings from starting ends it in the same way, with one line. Then it
looks at the software, the hosts, the disks and the GPUs, opens the backend, and trains small models. A check that
needs one that failed is left out.
"""

import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import tensorflow as tf

from distributed.collectives import Collectives, open_collectives
from distributed.collectives.tensorflow import host_address
from distributed.joining import started
from distributed.mpirun import OPEN_MPI, find_mpi
from distributed.versions import versions
from distributed.world import World
from ringbase.errors import InputError, shortened
from tasks.doctor import training
from tasks.doctor.__main__ import DoctorConfig
from tasks.doctor.page import Finding, Page
from tasks.environment import cache_folder

WRITTEN_BYTES = 1 << 26
# A checkpoint holds weights and two moments in float32: 4 GB for BERT-large. A run keeps five.
FEW_BYTES, SLOW_BYTES_PER_S = 25e9, 30e6


def run(config: DoctorConfig) -> None:
    with World.join(config.machine.device, "bert-doctor", stalls=config.machine.stalls) as world:
        world.agree({"Python": platform.python_version(), "the versions of packages": versions()})
        page, output_dir = Page(world, config.json), nearest_folder(Path(config.output_dir).expanduser())
        page.check("versions", check_versions)
        page.check("MPI", partial(check_mpi, world))
        page.check("hosts", partial(check_hosts, world))
        page.check("devices", partial(check_devices, world))
        other = "give another folder as --output_dir, or free some space"
        can_write = page.check("output folder", partial(world.on_first, check_disk, output_dir, other))
        other, cache = "set RINGBERT_CACHE to a folder on another disk, or free some space", cache_folder()
        page.check("cache folder", partial(world.on_each_machine, check_disk, nearest_folder(cache), other))
        opened: list[Collectives] = []

        def open_backend() -> Finding:
            opened.append(open_collectives(world, config.machine.backend.backend))
            return Finding("ok", opened[0].name)

        can_sum = page.check("backend", open_backend)
        if can_sum and world.size > 1:
            can_sum = page.check("sums", partial(training.check_sums, world, opened[0]))
        if can_sum and not config.quick:
            if can_write:
                training.check_trainings(world, opened[0], output_dir, page)
            page.check("BERT-base", partial(training.check_speed, world, opened[0], config.machine))
        status = page.end()
    if status:
        sys.exit(status)


def check_versions() -> Finding:
    """The packages that a result depends on."""
    installed, build = versions(), tf.sysconfig.get_build_info()
    if {"tensorflow", "tensorflow-cpu"} <= installed.keys():
        text = "tensorflow and tensorflow-cpu are both installed and overwrite each other's files"
        return Finding("failed", text, "make a new environment with one of ringbert's extras, cpu or gpu")
    kind = f"CUDA {build['cuda_version']}" if build["is_cuda_build"] else "CPUs"
    shown = ", ".join(f"{name} {version}" for name, version in installed.items())
    return Finding("ok", f"Python {platform.python_version()}, {shown}; TensorFlow is built for {kind}")


def check_mpi(world: World) -> Finding:
    """The MPI library of mpi4py, and on one rank whether bert-launch would find its mpirun."""
    try:
        ours, version = started().get_vendor()
    except (ImportError, RuntimeError):
        advice = "for several ranks pip install '.[mpi]' in ringbert's checkout, or load the cluster's MPI module"
        return Finding("warning", "one rank only: there is no mpi4py or no MPI library", advice)
    text = f"mpi4py uses {ours} {'.'.join(map(str, version))}"
    if world.size > 1:
        return Finding("ok", text)
    try:
        mpi = find_mpi()
    except InputError as error:
        return Finding("warning", f"{text}, but {error}", "only one rank can be started until there is an mpirun")
    text = f"{text}, and bert-launch {mpi}"
    if mpi.implementation != ours or (ours == OPEN_MPI and mpi.version != version[:2]):
        advice = "load the MPI module that mpi4py was built with, or pip install '.[mpi]' into this environment"
        return Finding("failed", f"{text}: each rank would be alone", advice)
    return Finding("ok", text)


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


def check_devices(world: World) -> Finding:
    """Which GPU each rank has: all of one kind, a different one for each rank."""
    if not world.device.is_gpu:
        return Finding("ok", "the ranks compute on CPUs")
    ranks = world.all_gather((world.device.name, world.device.bus_id, socket.gethostname()))
    kinds = Counter(name for name, _, _ in ranks)
    text = "; ".join(f"{number} x {name}" for name, number in kinds.items())
    if len(kinds) > 1:
        return Finding("warning", text, "use GPUs of one kind: a step waits for the slowest")
    if len({(bus_id, host) for _, bus_id, host in ranks}) < world.size:
        return Finding("warning", f"{text}, shared by ranks", "start one rank per GPU to train")
    return Finding("ok", text)


def check_disk(folder: Path, advice: str) -> Finding:
    """Writes a file of 64 MiB to the folder."""
    data = os.urandom(WRITTEN_BYTES)  # not zeros, which may be free
    place, start_s = f"{folder} on {socket.gethostname()}", time.perf_counter()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding("failed", f"{place}: {error.strerror}", advice)
    speed, free_bytes = WRITTEN_BYTES / (time.perf_counter() - start_s), shutil.disk_usage(folder).free
    text = f"{place}: {free_bytes / 1e9:.3g} GB free, {speed / 1e6:.0f} MB/s written"
    if free_bytes < FEW_BYTES or speed < SLOW_BYTES_PER_S:
        return Finding("warning", f"{text}: little for BERT-large, whose checkpoints have 4 GB", advice)
    return Finding("ok", text)


def nearest_folder(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
