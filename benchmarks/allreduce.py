"""How long it takes to sum a float32 buffer over all ranks, beside one plain MPI Allreduce of the whole buffer.

bert-launch -np 2 -- python -m benchmarks.allreduce --megabytes 1,16,88,440
"""

import argparse
import time
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.timing import in_turn, ratios, write
from distributed.collectives import BACKENDS, Collectives, open_collectives
from distributed.devices import DeviceSettings
from distributed.world import World
from ringbase.errors import InputError
from tasks.bench.step import line_up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="1,16,88,440", help="sizes in units of 10^6 bytes")
    parser.add_argument("--repeat", type=int, default=3, help="pairs of sums (default: 3)")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--share_gpus", action="store_true", help="allow more ranks than GPUs on a machine")
    parser.add_argument("--backend", choices=("auto", *BACKENDS), default="auto", help="what sums")
    parser.add_argument("--output_file", help="JSON file for the figures")
    options = parser.parse_args()
    device, figures = DeviceSettings(device=options.device, share_gpus=options.share_gpus), {}
    with World.join(device, "benchmarks.allreduce") as world:
        if world.size == 1:
            raise InputError("several ranks are needed: bert-launch -np 2 -- python -m benchmarks.allreduce")
        collectives = open_collectives(world, options.backend)
        world.say(
            f"float32 sums over {world.size} ranks, buffers just computed, medians of {options.repeat} pairs"
        )
        for size in map(float, options.megabytes.split(",")):
            sums = figures[f"{size:g}"] = time_sums(world, collectives, int(size * 1e6) // 4, options.repeat)
            ours, plain = (
                f"{s * 1e3:7.1f} ms ({size / 1e3 / s:5.2f} GB/s)" for s in (sums["ours_s"], sums["plain_s"])
            )
            world.say(f"{size:7g} MB: {collectives.name} {ours}, one Allreduce {plain}, ratio {sums['ratio']:.2f}")
        world.on_first(write, options.output_file, figures)


def time_sums(world: World, collectives: Collectives, count: int, num_pairs: int) -> dict[str, float]:
    """Median seconds of the slowest rank for a buffer of `count` numbers: "ours_s", "plain_s", and their ratio.

    Each buffer has just been computed by an operation, as gradients are.
    """
    base = tf.random.stateless_normal([count], [world.rank, 1])
    received = np.zeros(count, np.float32)

    def plain(buffer: tf.Tensor) -> Any:
        world.comm.Allreduce(np.from_dlpack(buffer) if "CPU" in buffer.device else buffer.numpy(), received)
        return received

    def seconds(sum_of: Any) -> float:
        buffer = base * 1.0
        buffer[:1].numpy()  # waits for a GPU
        line_up(world)
        start_s = time.perf_counter()
        np.array(sum_of(buffer)[:1])  # waits for a GPU
        return max(world.all_gather(time.perf_counter() - start_s))

    sums = {"ours": lambda buffer: collectives.all_reduce_sum([buffer])[0], "plain": plain}
    turns = in_turn({name: partial(seconds, sum_of) for name, sum_of in sums.items()}, 1 + num_pairs)
    ours_s, plain_s = turns["ours"][1:], turns["plain"][1:]  # the first pair allocates
    return {"ours_s": median(ours_s), "plain_s": median(plain_s), "ratio": median(ratios(plain_s, ours_s))}


if __name__ == "__main__":
    main()
