"""Chooses the GPU and the cores of each rank, and sets up TensorFlow for them."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ringbase.errors import InputError
from ringbase.settings import Settings, setting

# What the driver compiles on first use is kept in ~/.nv; by default at most 1 GiB.
CUDA_CACHE_BYTES = 4 << 30
NO_GPU = "pip install '.[gpu]' in ringbert's checkout, or give --device cpu"


@dataclass(frozen=True, kw_only=True)
class DeviceSettings(Settings):
    """What a rank computes on."""

    device: Literal["auto", "gpu", "cpu"] = setting(
        "auto", "device to compute on; auto takes a GPU if there is one", "machine"
    )
    share_gpus: bool = setting(False, "allow more ranks than GPUs on a machine", "machine")
    deterministic: bool = setting(
        False, "compute the same bits in every run on GPUs too, more slowly; on CPUs every run does", "machine"
    )


@dataclass(frozen=True)
class Device:
    """What this rank computes on.

    Attributes:
      kind: "gpu" or "cpu".
      threads: how many threads this rank computes with.
      machine_cores: the cores that the ranks of this machine may use together.
      name, bus_id: of the GPU. The bus id is that of the whole card; instances of a card (MIG) have the same.
      may_be_shared: the user allowed ranks to share GPUs.
      notes: one line for each decision that the user should know, the same on every rank of a machine.
    """

    kind: Literal["gpu", "cpu"] = "cpu"
    threads: int = 1
    machine_cores: frozenset[int] = frozenset()
    name: str = ""
    bus_id: str = ""
    may_be_shared: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        return self.kind == "gpu"


def cores(world: Any) -> Device:
    """The cores of this rank: its share of those that the ranks of its machine may use."""
    masks = world.on_node(frozenset(os.sched_getaffinity(0)))
    mine, allowed, total = masks[world.local_rank], frozenset().union(*masks), os.cpu_count() or 1
    threads = max(1, len(mine) // sum(bool(mask & mine) for mask in masks))
    is_bound = len(masks) * threads < total and len(allowed) < total
    note = f"each rank is bound to {len(mine)} of {total} cores; mpirun --bind-to none (bert-launch sets it) or srun "
    return Device("cpu", threads, allowed, notes=(note + "--cpus-per-task gives them all",) if is_bound else ())


def use_device(world: Any, settings: DeviceSettings) -> Device:
    """The device that the settings ask for, which becomes the only one that TensorFlow sees.

    Call it before the first TensorFlow operation, on all ranks. Raises InputError when a GPU is required or there,
    but cannot be used, or when ranks would share one.
    """
    tf, device = imported_tensorflow(), cores(world)
    tf.config.threading.set_intra_op_parallelism_threads(device.threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(1, min(device.threads, 2)))
    gpus = usable_gpus(settings.device)
    without = [str(rank) for rank, has_gpu in enumerate(world.all_gather(bool(gpus))) if not has_gpu]
    if 0 < len(without) < world.size:
        raise InputError(
            f"ranks {','.join(without)} see no GPU, but the others do: give each rank one, or --device cpu"
        )
    if not gpus:
        tf.config.set_visible_devices([], "GPU")
        return device
    index = choose_gpu(len(gpus), world.local_rank, settings.share_gpus)
    tf.config.set_visible_devices([gpus[index]], "GPU")
    tf.config.experimental.set_memory_growth(gpus[index], True)
    bus_id = bus_id_of_gpu()
    if not settings.share_gpus:
        check_apart(world.on_node(bus_id))
    details = tf.config.experimental.get_device_details(gpus[index])
    capability = ".".join(map(str, details.get("compute_capability", ())))
    name = f"{details.get('device_name', 'GPU')}, compute capability {capability}"
    notes = [*device.notes, f"GPU {index} of {len(gpus)}: {name}"]
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
        notes.append("--deterministic: only kernels that give the same bits each time")
    return replace(
        device, kind="gpu", name=name, bus_id=bus_id, may_be_shared=settings.share_gpus, notes=tuple(notes)
    )


def choose_gpu(num_gpus: int, local_rank: int, share_gpus: bool = False) -> int:
    """The index of a rank's GPU among those that it sees: the only one, or the one with its local rank.

    Raises InputError if it sees several, but too few, and `share_gpus` is off.
    """
    if num_gpus == 1 or share_gpus:
        return local_rank % num_gpus
    if local_rank >= num_gpus:
        raise InputError(
            f"the rank with local rank {local_rank} sees {num_gpus} GPUs, all of which other ranks take: start "
            "fewer ranks, or give --share_gpus so that they share GPUs"
        )
    return local_rank


def check_apart(bus_ids: Sequence[str]) -> None:
    """Raises InputError if two ranks of a machine have one GPU: each may see only one, under the same number."""
    bus_id, number = Counter(bus_ids).most_common(1)[0]
    if number > 1:
        raise InputError(
            f"{number} of the {len(bus_ids)} ranks on this machine would share the GPU {bus_id}: start fewer ranks, "
            "show each rank its own (CUDA_VISIBLE_DEVICES), or give --share_gpus"
        )


def usable_gpus(device: str) -> list[Any]:
    """The GPUs that TensorFlow can compute on here, in its order; an empty list for `device` "cpu".

    Raises InputError when a GPU is required but there is none, or when there is one that TensorFlow cannot use.
    """
    if device == "cpu":
        return []
    tf = imported_tensorflow()
    gpus = tf.config.list_physical_devices("GPU")
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")  # the user hides all GPUs
    if not gpus and not is_hidden and Path("/dev/nvidia0").exists():
        is_built = tf.test.is_built_with_cuda()
        reason = "its driver or CUDA's libraries do not answer" if is_built else "this is its CPU build"
        raise InputError(
            f"this machine has an NVIDIA GPU (/dev/nvidia0), but TensorFlow {tf.__version__} sees none: {reason}; "
            f"{NO_GPU}"
        )
    if device == "gpu" and not gpus:
        raise InputError(f"--device gpu: TensorFlow {tf.__version__} sees no GPU; {NO_GPU}")
    return gpus


def bus_id_of_gpu() -> str:
    """The PCI bus id of the GPU that is visible to TensorFlow, which no public function tells."""
    from tensorflow.python.client import device_lib
    from tensorflow.python.eager import context

    descriptions = [device.physical_device_desc for device in device_lib.list_local_devices(context.context().config)]
    return next(text.partition("pci bus id: ")[2].partition(",")[0] for text in descriptions if "pci bus id: " in text)


def imported_tensorflow() -> Any:
    """The module. Raises InputError when it is not installed."""
    os.environ.setdefault("CUDA_CACHE_MAXSIZE", str(CUDA_CACHE_BYTES))
    try:
        import tensorflow as tf
    except ImportError as error:
        raise InputError(
            f"TensorFlow is not installed ({error}): "
            "in ringbert's checkout pip install '.[cpu]', or '.[gpu]' for NVIDIA GPUs"
        ) from error
    return tf
