"""bert-bench allreduce: sums of a buffer over all ranks."""

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ringbert.errors import InputError
from ringbert.settings import setting
from tasks.bench.step import line_up, positive_numbers

if TYPE_CHECKING:
    from distributed.world import World


@dataclass(frozen=True)
class AllreduceConfig:
    """bert-bench allreduce: float32 sums over all ranks, beside one plain Allreduce of the whole."""

    megabytes: str = setting("1,16,88,440", "sizes of the buffer, separated by commas (10^6 bytes)", "load")
    repeat: int = setting(7, "pairs measured per size; medians are printed", "load")
    device: Literal["auto", "gpu", "cpu"] = setting("cpu", "where the buffer lies", "machine")
    share_gpus: bool = setting(False, "allow more ranks than GPUs", "machine")
    backend: Literal["auto", "mpi", "nccl", "ring"] = setting("auto", "what sums the buffer", "machine")
    output_file: str | None = setting(None, "write the figures as JSON too", "machine")
    sizes: tuple[float, ...] = field(default=(), init=False)

    def __post_init__(self):
        object.__setattr__(self, "sizes", positive_numbers("megabytes", self.megabytes))
        if self.repeat < 1:
            raise ValueError(f"--repeat is {self.repeat}, needed is at least 1")


def bench_allreduce(config: AllreduceConfig, world: "World") -> dict[str, object]:
    """Times the backend's sum and one plain Allreduce in turn, on buffers fresh from an operation; medians."""
    import numpy as np
    import tensorflow as tf

    from distributed.collectives import open_collectives

    if world.size == 1:
        raise InputError("bert-bench allreduce needs several ranks: mpirun -np 2 bert-bench allreduce")
    ours = open_collectives(world, config.backend)
    figures: dict[str, object] = {}
    world.say(
        f"sum of float32 over {world.size} ranks, buffers fresh from an operation, "
        f"medians of {config.repeat} pairs"
    )
    for size in config.sizes:
        base = tf.random.stateless_normal([int(size * 1e6) // 4], [world.rank, 1])
        received = np.zeros(base.shape, np.float32)

        def plain(values, received=received):
            world.comm.Allreduce(np.from_dlpack(values) if "CPU" in values.device else values.numpy(), received)
            return received

        seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        ways = {"ours": ours.all_reduce_sum, "plain": plain}
        sums = []
        for turn in range(config.repeat + 1):
            for name in sorted(ways, reverse=bool(turn % 2)):
                fresh = base * 1.0
                fresh[:1].numpy()  # a GPU still works on it when Python goes on
                line_up(world)
                began = time.perf_counter()
                total = ways[name](fresh)
                np.array(total[:1])  # a GPU still works on it
                elapsed = max(world.all_gather(time.perf_counter() - began))
                if turn:  # the first ones fill buffers
                    seconds[name].append(elapsed)
                else:
                    sums.append(np.array(total))
        if not np.allclose(sums[0], sums[1], rtol=1e-5, atol=1e-5):
            raise AssertionError("the two sums differ")
        ratio = statistics.median(b / a for a, b in zip(seconds["ours"], seconds["plain"], strict=True))
        slow, fast = (statistics.median(seconds[name]) for name in ("plain", "ours"))
        world.say(
            f"{size:7g} MB: {ours.name} {fast * 1e3:7.1f} ms ({size / 1e3 / fast:5.2f} GB/s), "
            f"one Allreduce {slow * 1e3:7.1f} ms ({size / 1e3 / slow:5.2f} GB/s), ratio {ratio:.2f}"
        )
        figures[f"{size:g}"] = {"ours_s": fast, "plain_s": slow, "ratio": ratio}
    ours.close()
    return figures
