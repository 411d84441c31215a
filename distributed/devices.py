"""Chooses the GPU and the number of cores of each rank, and sets up TensorFlow for them."""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ringbert.errors import InputError
from ringbert.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class DeviceSettings(Settings):
    """What a rank computes on."""

    device: Literal["auto", "gpu", "cpu"] = setting(
        "auto", "device to compute on; auto takes a GPU if there is one", "machine"
    )
    share_gpus: bool = setting(False, "allow more ranks than GPUs on a machine", "machine")


def choose_gpu(uuids_of_ranks: Sequence[Sequence[str]], local_rank: int, share_gpus: bool = False) -> int:
    """The index, in this rank's own list, of the GPU that it uses: its own GPU if every rank can have one.

    Args:
      uuids_of_ranks: for each local rank the UUIDs of the GPUs that it sees, in the order in which it sees them.
    Raises:
      InputError: not every rank can have its own GPU, and `share_gpus` is off or this rank sees none.
    """
    mine = list(uuids_of_ranks[local_rank])
    assigned = _assign(uuids_of_ranks)
    if assigned is not None:
        return mine.index(assigned[local_rank])
    if share_gpus and mine:
        return local_rank % len(mine)
    num_gpus = len({uuid for uuids in uuids_of_ranks for uuid in uuids})
    visible = ", ".join(str(len(uuids)) for uuids in uuids_of_ranks)
    raise InputError(
        f"{len(uuids_of_ranks)} ranks on this machine cannot have a GPU each: they see {num_gpus} "
        f"GPU{'s' * (num_gpus != 1)} (rank by rank {visible}); start fewer ranks, or give --share_gpus so that "
        "they share GPUs"
    )


def _assign(uuids_of_ranks: Sequence[Sequence[str]]) -> list[str] | None:
    """A different GPU for each rank, the first in its list where possible; None if that is impossible.

    A maximum matching by augmenting paths (Kuhn 1955).
    """
    rank_of: dict[str, int] = {}

    def place(rank: int, tried: set[str]) -> bool:
        for uuid in sorted(uuids_of_ranks[rank], key=rank_of.__contains__):  # free GPUs first
            if uuid not in tried:
                tried.add(uuid)
                if uuid not in rank_of or place(rank_of[uuid], tried):
                    rank_of[uuid] = rank
                    return True
        return False

    if not all(place(rank, set()) for rank in range(len(uuids_of_ranks))):
        return None
    return sorted(rank_of, key=rank_of.__getitem__)


def share_cores(masks: Sequence[frozenset[int]], local_rank: int, machine_cores: int) -> tuple[int, str | None]:
    """How many threads a rank computes with, and a note if the launcher bound the ranks to too few cores.

    Args:
      masks: for each local rank the cores that the operating system lets it use.
      machine_cores: how many cores the machine has.
    """
    mine = masks[local_rank]
    sharing = sum(bool(mask & mine) for mask in masks)
    threads = max(1, len(mine) // sharing)
    allowed = frozenset().union(*masks)
    if len(masks) * threads < machine_cores and len(allowed) < machine_cores:
        return threads, (
            f"each rank is bound to {len(mine)} of {machine_cores} cores; "
            "mpirun --bind-to none (bert-launch sets it) or srun --cpus-per-task gives them all"
        )
    return threads, None


def visible_gpus() -> list[str]:
    """UUIDs of the NVIDIA GPUs that this process may use, in CUDA's order; from the driver, without TensorFlow."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, device, uuid = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    uuids = []
    for index in range(count.value):
        if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetUuid(uuid, device):
            return []
        uuids.append(bytes(uuid).hex())
    return uuids


def start_tensorflow(threads: int) -> None:
    """Imports TensorFlow and lets it use this many threads. Raises InputError when it is not installed."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise InputError(
            f"TensorFlow is not installed ({error}): "
            "in ringbert's checkout pip install '.[cpu]', or '.[gpu]' for NVIDIA GPUs"
        ) from error
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(1, min(threads, 2)))


def usable_gpus(device: str) -> list[str]:
    """UUIDs of the GPUs that TensorFlow can compute on here, in its order; an empty list for `device` "cpu".

    Raises InputError when a GPU is required but there is none, or when a GPU is present but cannot be used.
    """
    if device == "cpu":
        return []
    import tensorflow as tf

    uuids, tensorflow_gpus = visible_gpus(), tf.config.list_physical_devices("GPU")
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")  # the user hides all GPUs
    if not (uuids or tensorflow_gpus or is_hidden) and Path("/dev/nvidia0").exists():
        raise InputError(
            "this machine has an NVIDIA GPU (/dev/nvidia0), but its driver does not answer (libcuda.so.1); "
            "give --device cpu to compute without it"
        )
    if uuids and not tensorflow_gpus:
        reason = "its CUDA libraries were not found" if tf.test.is_built_with_cuda() else "this is its CPU build"
        raise InputError(
            f"this machine has {len(uuids)} NVIDIA GPUs, but TensorFlow {tf.__version__} sees none: {reason}; "
            "pip install '.[gpu]' in ringbert's checkout, or give --device cpu"
        )
    if device == "gpu" and not tensorflow_gpus:
        raise InputError(
            "--device gpu: TensorFlow sees no GPU; pip install '.[gpu]' in the checkout, or give --device cpu"
        )
    return uuids if tensorflow_gpus else []


def use_gpu(index: int | None) -> None:
    """Makes this GPU the only one that TensorFlow sees, with memory allocated as needed; None hides all GPUs."""
    import tensorflow as tf

    gpus = [] if index is None else [tf.config.list_physical_devices("GPU")[index]]
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
