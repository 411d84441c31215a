"""Chooses the GPU and the number of cores of each rank, and sets up TensorFlow for them."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from distributed import driver
from distributed.driver import Gpu
from ringbase.errors import InputError
from ringbase.settings import Settings, setting

KERNELS = re.compile(r"(sm|compute)_(\d+)(\d)[af]?")  # of TensorFlow's build: machine code or PTX
# XLA writes PTX of the version that belongs to the CUDA of TensorFlow's build; if the GPU needs a newer one, LLVM
# ends the process. 8.5 (CUDA 12.5) ends at capability 9.0, 10.0 needs 8.6 and 12.0 needs 8.7 (tensorflow#111958).
BLACKWELL, BLACKWELLS_CUDA = (10, 0), (12, 8)
# What the driver compiles on first use is kept in ~/.nv; by default at most 1 GiB.
CUDA_CACHE_BYTES = 4 << 30


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
    """UUIDs of the NVIDIA GPUs that this process may use, in CUDA's order; from the driver, without TensorFlow.

    Raises InputError if the driver fails.
    """
    return [gpu.uuid for gpu in driver.gpus()]


def start_tensorflow(threads: int) -> None:
    """Imports TensorFlow and lets it use this many threads. Raises InputError when it is not installed."""
    tf = imported_tensorflow()
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(1, min(threads, 2)))


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


def usable_gpus(device: str) -> list[Gpu]:
    """The GPUs that TensorFlow can compute on here, in its order; an empty list for `device` "cpu".

    Raises InputError when a GPU is required but there is none, or when a GPU is present but cannot be used.
    """
    if device == "cpu":
        return []
    import tensorflow as tf

    gpus, tensorflow_gpus = driver.gpus(), tf.config.list_physical_devices("GPU")
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")  # the user hides all GPUs
    if not (gpus or tensorflow_gpus or is_hidden) and Path("/dev/nvidia0").exists():
        raise InputError(
            "this machine has an NVIDIA GPU (/dev/nvidia0), but its driver does not answer (libcuda.so.1); "
            "give --device cpu to compute without it"
        )
    if gpus and not tensorflow_gpus:
        reason = "its CUDA libraries were not found" if tf.test.is_built_with_cuda() else "this is its CPU build"
        raise InputError(
            f"this machine has {len(gpus)} NVIDIA GPUs, but TensorFlow {tf.__version__} sees none: {reason}; "
            "pip install '.[gpu]' in ringbert's checkout, or give --device cpu"
        )
    if device == "gpu" and not tensorflow_gpus:
        raise InputError(
            "--device gpu: TensorFlow sees no GPU; pip install '.[gpu]' in the checkout, or give --device cpu"
        )
    if len(gpus) != len(tensorflow_gpus):
        raise InputError(
            f"the NVIDIA driver shows {len(gpus)} GPUs, but TensorFlow {tf.__version__} sees "
            f"{len(tensorflow_gpus)}: name the ones to use in CUDA_VISIBLE_DEVICES, or give --device cpu"
        )
    return gpus


def compiled_at_first_use(gpu: Gpu, build: Mapping[str, Any]) -> bool:
    """Whether only the PTX of TensorFlow's kernels fits this GPU, so that the driver compiles them.

    Args:
      build: TensorFlow's `tf.sysconfig.get_build_info()`.
    Raises:
      InputError: this TensorFlow cannot compute on this GPU.
    """
    listed = [KERNELS.fullmatch(text) for text in build.get("cuda_compute_capabilities", ())]
    kernels = [(match[1], (int(match[2]), int(match[3]))) for match in listed if match]
    cuda = str(build.get("cuda_version", ""))
    is_too_new = gpu.capability >= BLACKWELL and tuple(map(int, re.findall(r"\d+", cuda)[:2])) < BLACKWELLS_CUDA
    if not kernels or any(
        kind == "sm" and version[0] == gpu.capability[0] and version <= gpu.capability for kind, version in kernels
    ):
        return False
    if not is_too_new and any(kind == "compute" and version <= gpu.capability for kind, version in kernels):
        return True
    oldest, newest = min(version for _, version in kernels), max(version for _, version in kernels)
    other = "a newer" if is_too_new else "another"
    raise InputError(
        f"{gpu}: this TensorFlow, built with CUDA {cuda}, computes on capabilities {oldest[0]}.{oldest[1]} to "
        f"{newest[0]}.{newest[1]}; give --device cpu, or install {other} TensorFlow that was built for this GPU"
    )


def use_gpu(gpus: Sequence[Gpu], index: int | None, deterministic: bool = False) -> list[str]:
    """Makes this GPU the only one that TensorFlow sees, with memory allocated as needed; None hides all GPUs.

    Args:
      gpus: those of `usable_gpus`.
      deterministic: let TensorFlow and XLA use only kernels that give the same bits each time.
    Returns:
      Notes for the user.
    Raises:
      InputError: this TensorFlow cannot compute on the GPU.
    """
    import tensorflow as tf

    if index is None:
        tf.config.set_visible_devices([], "GPU")
        return []
    notes = [f"GPU {index} of {len(gpus)}: {gpus[index]}"]
    if compiled_at_first_use(gpus[index], tf.sysconfig.get_build_info()):
        notes.append(
            "TensorFlow's kernels are compiled for this GPU when they are first used: this takes minutes, once"
        )
    gpu = tf.config.list_physical_devices("GPU")[index]
    tf.config.set_visible_devices([gpu], "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
    if deterministic:
        tf.config.experimental.enable_op_determinism()
        notes.append("--deterministic: only kernels that give the same bits each time")
    return notes


def with_cores(world: Any) -> Any:
    """The world with the number of threads of this rank and the cores of its machine."""
    masks = world.on_node(frozenset(os.sched_getaffinity(0)))
    threads, note = share_cores(masks, world.local_rank, os.cpu_count() or 1)
    return replace(world, threads=threads, machine_cores=frozenset().union(*masks), notes=(note,) if note else ())


def with_device(world: Any, settings: DeviceSettings) -> Any:
    """The world with this rank's device, which becomes the only one that TensorFlow sees."""
    start_tensorflow(world.threads)
    gpus = usable_gpus(settings.device)
    without = [str(rank) for rank, has_gpu in enumerate(world.all_gather(bool(gpus))) if not has_gpu]
    if 0 < len(without) < world.size:
        raise InputError(
            f"ranks {','.join(without)} see no GPU, but the others do: give each rank one, or --device cpu"
        )
    if not gpus:
        use_gpu([], None)
        return world
    uuids_of_ranks = world.on_node([gpu.uuid for gpu in gpus])
    index = choose_gpu(uuids_of_ranks, world.local_rank, settings.share_gpus)
    notes_of_rank = (*world.notes, *use_gpu(gpus, index, settings.deterministic))
    return replace(world, device="gpu", gpu=gpus[index], may_share_gpus=settings.share_gpus, notes=notes_of_rank)
