"""Chooses the GPU and the cores of each rank, and sets up TensorFlow for them."""

import contextlib
import math
import os
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from distributed.cores import THREADS, own_slots, quota, slurm_cores, wanted_threads
from distributed.messages import Messages
from ringbase.errors import InputError
from ringbase.settings import Settings, setting

# values by which variables hide all GPUs; Slurm and Grid Engine say NoDevFiles
HIDING = {
    "CUDA_VISIBLE_DEVICES": ("", "-1", "nodevfiles", "none", "void"),
    "NVIDIA_VISIBLE_DEVICES": ("none", "void"),
}
GPU_FILE = re.compile(r"nvidia(\d+|ctl)")


class DeviceSettings(Settings):
    """What a rank computes on."""

    device: Literal["auto", "gpu", "cpu"] = setting(
        "auto", "device to compute on; auto takes a GPU if there is one", "machine"
    )
    share_gpus: bool = setting(False, "allow more ranks than GPUs on a machine", "machine")
    deterministic: bool = setting(
        False,
        "compute the same bits in every run on GPUs too, more slowly; on CPUs every run does",
        "machine",
    )


@dataclass(frozen=True)
class Device:
    """What this rank computes on."""

    kind: Literal["gpu", "cpu"] = "cpu"
    threads: int = 1  # of this rank
    name: str = ""  # of the GPU
    bus_id: str = ""  # of the whole card; instances of a card (MIG) have the same
    may_be_shared: bool = False  # the user allowed ranks to share GPUs
    notes: tuple[str, ...] = ()  # a line for each decision that the user should know

    @property
    def is_gpu(self) -> bool:
        return self.kind == "gpu"


def own_cores(world: Messages) -> Device:
    """The cores of this rank: its share of those that the ranks of its machine may use."""
    limit, group = quota()
    everyone = world.on_node((os.sched_getaffinity(0), limit, group))
    masks = [mask for mask, _, _ in everyone]
    mine = masks[world.local_rank]
    total = os.cpu_count() or 1
    num_sharing = sum(bool(mask & mine) for mask in masks)
    threads = int(min(max(1, len(mine) // num_sharing), slurm_cores()))
    in_group: float = sum(other == group for _, _, other in everyone)
    slots = own_slots()
    if slots:  # other runs are in the group too
        in_group = in_group * slots.total / slots.count
    share = max(1, int(limit / in_group)) if limit < math.inf else threads
    wanted = wanted_threads()
    notes = []
    if wanted:
        notes.append(f"{THREADS}={wanted}: so many threads for each rank")
    elif share < threads:
        cores = f"{limit:g} cores of {total}"
        notes.append(f"a control group ({group}) limits its processes to {cores}")
    advice = "mpirun --bind-to none (bert-launch sets it) or srun --cpus-per-task gives them all"
    if slots:
        notes.append(f"slots {slots} of this machine: {len(mine)} of {total} cores")
    elif len(set().union(*masks)) < total:
        notes.append(f"each rank is bound to {len(mine)} of {total} cores; {advice}")
    return Device("cpu", wanted or min(threads, share), notes=tuple(notes))


def use_device(world: Messages, settings: DeviceSettings) -> Device:
    """The device that the settings ask for, which becomes the only one that TensorFlow sees: on all
    ranks, before its first operation. Raises InputError: a GPU cannot be used, or ranks would share
    one."""
    tf, device = imported_tensorflow(), own_cores(world)
    tf.config.threading.set_intra_op_parallelism_threads(device.threads)
    tf.config.threading.set_inter_op_parallelism_threads(min(device.threads, 2))
    gpus = visible_gpus(settings.device)
    world.agree(
        {"a GPU: give each rank one, or --device cpu": "it sees one" if gpus else "it sees none"}
    )
    if not gpus:
        tf.config.set_visible_devices([], "GPU")
        hidden = hidden_gpus()
        if hidden and settings.device == "auto" and gpu_file():
            return replace(
                device, notes=(*device.notes, f"{hidden} hides the GPUs of this machine")
            )
        return device
    number = number_on_machine(world)
    if slots := own_slots():
        number += slots.first
        if slots.total > len(gpus) and not settings.share_gpus:
            raise InputError(
                f"{slots.total} slots of this machine would share {len(gpus)}"
                f" GPU{'s' * (len(gpus) != 1)}: give it a slot for each GPU (-np, or its number in"
                " -H), or --share_gpus"
            )
    index = number % len(gpus)
    tf.config.set_visible_devices([gpus[index]], "GPU")
    tf.config.experimental.set_memory_growth(gpus[index], True)
    name, bus_id = _name_and_bus_id()
    card = machine_id(), bus_id
    num_sharing = world.all_gather(card).count(card)
    if num_sharing > 1 and not settings.share_gpus:
        raise InputError(
            f"{num_sharing} ranks on this machine would share the GPU {bus_id}: start fewer ranks,"
            " show each its own (CUDA_VISIBLE_DEVICES), or give --share_gpus"
        )
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    notes = (*device.notes, f"GPU {index} of {len(gpus)}: {name}")
    return replace(
        device, kind="gpu", name=name, bus_id=bus_id, may_be_shared=settings.share_gpus, notes=notes
    )


def machine_id() -> str:
    """The same for all containers of a machine, of which some share no memory."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


def number_on_machine(world: Messages) -> int:
    """How many ranks before this one are on its machine, also in other containers."""
    machines = world.all_gather(machine_id())
    return machines[: world.rank].count(machines[world.rank])


def visible_gpus(device: str = "auto") -> list:
    """The GPUs that TensorFlow can compute on here; none for "cpu". Raises InputError when a GPU is
    required but there is none, or when there is one that TensorFlow cannot use."""
    tf = imported_tensorflow()
    gpus = [] if device == "cpu" else tf.config.list_physical_devices("GPU")
    hidden = hidden_gpus()
    there = None if hidden else gpu_file()
    if not gpus and (device == "gpu" or (device == "auto" and there)):
        reason = f"sees no GPU{f': {hidden} hides them' if hidden else ''}"
        if there:
            is_silent = tf.test.is_built_with_cuda()
            why = "its driver or CUDA's libraries do not answer" if is_silent else "a CPU build"
            reason = f"cannot use the GPU {there} ({why})"
        raise InputError(
            f"--device {device}: TensorFlow {tf.__version__} {reason}; pip install '.[gpu]' in the"
            " checkout, or give --device cpu"
        )
    return gpus


def hidden_gpus() -> str:
    """The variable, with its value, by which a user or a batch system hides all GPUs; "" if none
    does."""
    for name, values in HIDING.items():
        value = os.environ.get(name)
        # CUDA takes those before the first one that it cannot read
        if value is not None and value.partition(",")[0].strip().lower() in values:
            return f"{name}={value}"
    return ""


def gpu_file() -> str | None:
    """A device file of an NVIDIA GPU: whichever a container was given, or WSL's."""
    found = [path for path in Path("/dev").glob("nvidia*") if GPU_FILE.fullmatch(path.name)]
    wsl = Path("/dev/dxg")
    return str(min(found, default=wsl)) if found or wsl.exists() else None


def _name_and_bus_id():
    """Of the GPU that TensorFlow sees; no public function tells the PCI bus id."""
    from tensorflow.python.client import device_lib
    from tensorflow.python.eager import context

    # "device: 0, name: NVIDIA H100, pci bus id: 0000:3b:00.0, compute capability: 9.0"
    listed = device_lib.list_local_devices(context.context().config)
    text = "\n".join(device.physical_device_desc for device in listed)
    pattern = "name: (.+), pci bus id: (.+), compute capability: (.+)"
    name, bus_id, capability = re.findall(pattern, text)[0]
    return f"{name}, compute capability {capability}", bus_id


def imported_tensorflow():
    """The module. Raises InputError when it is not installed."""
    # for what the driver compiles, in ~/.nv; else 1 GiB
    os.environ.setdefault("CUDA_CACHE_MAXSIZE", str(4 << 30))
    try:
        import tensorflow as tf
    except ImportError as error:
        raise InputError(
            f"TensorFlow is not installed ({error}): "
            "in ringbert's checkout pip install '.[cpu]', or '.[gpu]' for NVIDIA GPUs"
        ) from error
    return tf
