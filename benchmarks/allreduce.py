"""Times the sum of a float32 buffer over all ranks, and one plain MPI Allreduce of the whole
buffer, in turn.

    bert-launch -np 2 -- python -m benchmarks.allreduce

Each buffer has just been computed by an operation, as gradients are.
"""

import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.timing import TurnSettings, in_turn, ratios
from distributed.collectives import Collectives, CollectiveSettings, open_collectives
from distributed.devices import DeviceSettings, imported_tensorflow
from distributed.world import World
from ringbase.errors import InputError
from ringbase.settings import Settings, setting
from tasks.bench.timing import line_up, write
from tasks.runs import flags
from tasks.runs.environment import set_environment

MOST_MEGABYTES = 100_000


class AllreduceConfig(Settings):
    """Sums of float32 buffers over all ranks, compared with one plain MPI Allreduce of the whole
    buffer."""

    megabytes: str = setting(
        "1,16,88,440",
        "sizes of the summed float32 buffers in units of 10^6 bytes, separated by commas",
        "load",
    )
    turns: TurnSettings
    device: DeviceSettings
    collectives: CollectiveSettings

    def check(self) -> None:
        if not all(0 < size <= MOST_MEGABYTES for size in self.sizes() or [0]):
            needed = f"must be positive numbers, at most {MOST_MEGABYTES:,}, separated by commas"
            raise ValueError(f"--megabytes {needed}, got {self.megabytes!r}")

    def sizes(self) -> list[float]:
        """In units of 10^6 bytes; none if one is no number."""
        try:
            return [float(size) for size in self.megabytes.split(",")]
        except ValueError:
            return []


def main(argv: Sequence[str] | None = None) -> None:
    """Prints medians for each size. Raises InputError: there is only one rank."""
    config = flags.parse(
        AllreduceConfig, argv, prog="benchmarks.allreduce", description=str(__doc__)
    )
    set_environment()
    repeat, figures = config.turns.repeat, {}
    with World.join(config.device, "benchmarks.allreduce") as world:
        if world.size == 1:
            raise InputError(
                "the sum needs several ranks: bert-launch -np 2 -- python -m benchmarks.allreduce"
            )
        collectives = open_collectives(world, config.collectives.backend)
        world.say(
            f"sum of float32 over {world.size} ranks, buffers just computed, medians of {repeat}"
            " pairs"
        )
        for size in config.sizes():
            sums = figures[f"{size:g}"] = time_sums(
                world, collectives, int(size * 1e6) // 4, repeat
            )
            parts = [
                f"{name} {sums[key] * 1e3:7.1f} ms ({size / 1e3 / sums[key]:5.2f} GB/s)"
                for name, key in ((collectives.name, "ours_s"), ("one Allreduce", "plain_s"))
            ]
            world.say(f"{size:7g} MB: {', '.join(parts)}, ratio {sums['ratio']:.2f}")
        world.on_first(write, config.turns.output_file, figures)


def time_sums(
    world: World, collectives: Collectives, count: int, num_pairs: int
) -> dict[str, float]:
    """Median seconds of the slowest rank for a buffer of `count` numbers: "ours_s", "plain_s", and
    their ratio."""
    tf = imported_tensorflow()
    base = tf.random.stateless_normal([count], [world.rank, 1])
    received = np.zeros(count, np.float32)

    def ours(buffer: Any) -> Any:
        return collectives.all_reduce_sum([buffer])[0]

    def plain(buffer: Any) -> Any:
        world.comm.Allreduce(
            np.from_dlpack(buffer) if "CPU" in buffer.device else buffer.numpy(), received
        )
        return received

    def seconds(sum_of: Any) -> float:
        buffer = base * 1.0
        buffer[:1].numpy()  # waits for a GPU
        line_up(world)
        start_s = time.perf_counter()
        np.array(sum_of(buffer)[:1])  # waits for a GPU
        return max(world.all_gather(time.perf_counter() - start_s))

    turns = in_turn(
        {"ours": partial(seconds, ours), "plain": partial(seconds, plain)}, 1 + num_pairs
    )
    ours_s, plain_s = turns["ours"][1:], turns["plain"][1:]  # the first pair allocates
    middle = statistics.median
    return {
        "ours_s": middle(ours_s),
        "plain_s": middle(plain_s),
        "ratio": middle(ratios(plain_s, ours_s)),
    }


if __name__ == "__main__":
    main()
