"""bert-bench allreduce: how long it takes to sum a buffer over all ranks."""

import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from distributed.collectives import Collectives, open_collectives
from distributed.world import World
from ringbase.errors import InputError
from tasks.bench.settings import AllreduceConfig
from tasks.bench.timing import in_turn, line_up, ratio, write


def run(config: AllreduceConfig) -> None:
    """Times the backend's sum and one plain Allreduce in turn; medians in seconds for each size.

    Raises InputError: there is only one rank.
    """
    repeat, figures = config.turns.repeat, {}
    with World.join(config.device, "bert-bench") as world:
        if world.size == 1:
            raise InputError("bert-bench allreduce needs several ranks: mpirun -np 2 bert-bench allreduce")
        collectives = open_collectives(world, config.backend.backend)
        world.say(f"sum of float32 over {world.size} ranks, buffers just computed, medians of {repeat} pairs")
        for size in config.sizes():
            sums = figures[f"{size:g}"] = time_sums(world, collectives, int(size * 1e6) // 4, repeat)
            parts = [
                f"{name} {sums[key] * 1e3:7.1f} ms ({size / 1e3 / sums[key]:5.2f} GB/s)"
                for name, key in ((collectives.name, "ours_s"), ("one Allreduce", "plain_s"))
            ]
            world.say(f"{size:7g} MB: {', '.join(parts)}, ratio {sums['ratio']:.2f}")
        world.on_first(write, config.turns.output_file, figures)


def time_sums(world: World, collectives: Collectives, count: int, num_pairs: int) -> dict[str, float]:
    """Median seconds of the slowest rank for a buffer of `count` numbers: "ours_s", "plain_s", and their ratio.

    Each buffer has just been computed by an operation, as gradients are.
    """
    base = tf.random.stateless_normal([count], [world.rank, 1])
    received = np.zeros(count, np.float32)
    sums: dict[str, np.ndarray] = {}

    def plain(values: tf.Tensor) -> Any:
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

    turns = in_turn({name: partial(seconds, name) for name in ("ours", "plain")}, 1 + num_pairs)
    ours, theirs = (turns[name][1:] for name in ("ours", "plain"))  # the first pair allocates
    if not np.allclose(sums["ours"], sums["plain"], rtol=1e-5, atol=1e-5):
        raise AssertionError("the two sums differ")
    return {
        "ours_s": statistics.median(ours),
        "plain_s": statistics.median(theirs),
        "ratio": ratio(theirs, ours).median,
    }
