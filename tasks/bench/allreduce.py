"""bert-bench allreduce: how long it takes to sum a buffer over all ranks."""

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from distributed.collectives import BackendSettings
from distributed.devices import DeviceSettings
from ringbase.errors import InputError
from ringbase.settings import setting
from tasks.bench.settings import BufferSettings, TurnSettings, buffer_sizes, refuse_local
from tasks.bench.timing import in_turn, line_up, ratio

if TYPE_CHECKING:
    import numpy as np

    from distributed.collectives import Collectives
    from distributed.world import World


@dataclass(frozen=True, kw_only=True)
class AllreduceConfig(BufferSettings, TurnSettings, DeviceSettings, BackendSettings):
    """Sums of float32 buffers over all ranks, compared with one plain MPI Allreduce of the whole buffer."""

    repeat: int = setting(7, "measured pairs per size; the median is printed", "load")
    device: Literal["auto", "gpu", "cpu"] = setting("cpu", "device that holds the buffer", "machine")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_local(self)


def bench_allreduce(config: AllreduceConfig, world: "World") -> dict[str, Any]:
    """Times the backend's sum and one plain Allreduce in turn; medians in seconds for each size.

    Raises InputError: there is only one rank.
    """
    from distributed.collectives import open_collectives

    if world.size == 1:
        raise InputError("bert-bench allreduce needs several ranks: mpirun -np 2 bert-bench allreduce")
    collectives = open_collectives(world, config.backend)
    world.say(f"sum of float32 over {world.size} ranks, buffers just computed, medians of {config.repeat} pairs")
    figures: dict[str, Any] = {}
    for size in buffer_sizes(config):
        sums = _measured(world, collectives, int(size * 1e6) // 4, config.repeat)
        rates = {name: size / 1e3 / sums[f"{name}_s"] for name in ("ours", "plain")}
        world.say(
            f"{size:7g} MB: {collectives.name} {sums['ours_s'] * 1e3:7.1f} ms ({rates['ours']:5.2f} GB/s), "
            f"one Allreduce {sums['plain_s'] * 1e3:7.1f} ms ({rates['plain']:5.2f} GB/s), "
            f"ratio {sums['ratio']:.2f}"
        )
        figures[f"{size:g}"] = sums
    collectives.close()
    return figures


def _measured(world: "World", collectives: "Collectives", count: int, num_pairs: int) -> dict[str, float]:
    """Median seconds of the slowest rank for a buffer of `count` numbers: "ours_s", "plain_s", and their ratio.

    Each buffer has just been computed by an operation, as gradients are.
    """
    import numpy as np
    import tensorflow as tf

    base = tf.random.stateless_normal([count], [world.rank, 1])
    received = np.zeros(count, np.float32)
    sums: dict[str, np.ndarray] = {}

    def plain(values: "tf.Tensor") -> "np.ndarray":
        world.comm.Allreduce(np.from_dlpack(values) if "CPU" in values.device else values.numpy(), received)
        return received

    def seconds(name: str) -> float:
        buffer = base * 1.0
        buffer[:1].numpy()  # waits for a GPU
        line_up(world)
        start_s = time.perf_counter()
        total = collectives.all_reduce_sum([buffer])[0] if name == "ours" else plain(buffer)
        np.array(total[:1])  # waits for a GPU
        slowest = max(world.all_gather(time.perf_counter() - start_s))
        if name not in sums:
            sums[name] = np.array(total)
        return slowest

    contenders = {name: lambda name=name: seconds(name) for name in ("ours", "plain")}
    turns = in_turn(contenders, num_pairs, num_warmup=1)  # the first pair allocates
    if not np.allclose(sums["ours"], sums["plain"], rtol=1e-5, atol=1e-5):
        raise AssertionError("the two sums differ")
    return {
        "ours_s": statistics.median(turns["ours"]),
        "plain_s": statistics.median(turns["plain"]),
        "ratio": ratio(turns["plain"], turns["ours"]).median,
    }
