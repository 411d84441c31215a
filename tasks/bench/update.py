"""bert-bench update: clipping and the optimizer's step, beside the time that memory alone needs and Keras' AdamW.

The floor is 28 bytes a parameter, which is what has to be read (parameter, gradient, two moments) and written
(parameter, two moments), at the speed of an addition in place, measured in the same run.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ringbert.settings import setting
from tasks.bench.step import line_up

if TYPE_CHECKING:
    import tensorflow as tf
    from transformers import BertConfig

    from distributed.world import World

FLOOR_BYTES, ADDED_BYTES = 28, 12  # a parameter; an element of an addition in place


@dataclass(frozen=True)
class UpdateConfig:
    """bert-bench update: global-norm clip and AdamWeightDecay or LAMB, beside memory's speed and Keras' AdamW."""

    model_size: Literal["tiny", "minilm", "base", "large"] = setting("base", "published sizes", "model")
    optimizer: Literal["adamw", "lamb"] = setting("adamw", "as in training", "model")
    repeat: int = setting(10, "turns measured; medians are printed", "load")
    device: Literal["auto", "gpu", "cpu"] = setting("auto", "where to compute", "machine")
    share_gpus: bool = setting(False, "allow more ranks than GPUs", "machine")
    output_file: str | None = setting(None, "write the figures as JSON too", "machine")

    def __post_init__(self):
        if self.repeat < 1:
            raise ValueError(f"--repeat is {self.repeat}, needed is at least 1")


def bench_update(config: UpdateConfig, bert_config: "BertConfig", world: "World") -> dict[str, float]:
    """Times updates in turn with their rivals, on all ranks at once; rank 0's medians, the same on every rank."""
    import keras
    import tensorflow as tf

    from bert.model import Bert
    from bert.optimizer import LAMB, AdamWeightDecay
    from distributed.collectives import open_collectives
    from distributed.optimizer import AllreduceOptimizer

    def wrapped(optimizer: keras.optimizers.Optimizer, clip_norm: float | None) -> AllreduceOptimizer:
        variables = Bert(bert_config, "span").trainable_variables
        return AllreduceOptimizer(optimizer, variables, world, collectives, clip_norm=clip_norm)

    collectives = open_collectives(world, "local" if world.size == 1 else "mpi")
    ours = wrapped({"adamw": AdamWeightDecay, "lamb": LAMB}[config.optimizer](1e-5), 1.0)
    keras_s = wrapped(keras.optimizers.AdamW(1e-5, global_clipnorm=1.0), None)
    gradients = [tf.random.stateless_normal(v.shape, [number, 1]) for number, v in enumerate(ours.trainable)]
    flat = ours.flatten(gradients, {"loss": tf.constant(0.0)})
    del gradients
    count = sum(int(tf.size(variable)) for variable in ours.trainable)
    add = in_place_addition(count)
    runs: dict[str, Callable[[], object]] = {
        "floor": add,
        "ours": lambda: ours.update(flat, {"loss": 1.0}),
        "keras": lambda: keras_s.update(flat, {"loss": 1.0}),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(config.repeat + 1):
        for name, run in runs.items():
            line_up(world)
            began = time.perf_counter()
            run()
            if turn:  # the first one compiles
                times[name].append(time.perf_counter() - began)
    times["floor"] = [seconds * FLOOR_BYTES / ADDED_BYTES for seconds in times["floor"]]
    figures = {f"{name}_s": statistics.median(found) for name, found in times.items()}
    for rival in ("floor", "keras"):
        pairs = zip(times["ours"], times[rival], strict=True)
        figures[f"ratio_to_{rival}"] = statistics.median(ours_s / rival_s for ours_s, rival_s in pairs)
    figures = world.broadcast(figures)
    world.say(
        f"{config.model_size}: {count / 1e6:.1f} M parameters, {world.size} rank{'s' * (world.size > 1)}, "
        f"{world.threads} threads each, medians of {config.repeat}: clip and {config.optimizer} "
        f"{figures['ours_s'] * 1e3:.1f} ms, memory alone {figures['floor_s'] * 1e3:.1f} ms (ratio "
        f"{figures['ratio_to_floor']:.2f}), Keras' AdamW with global_clipnorm {figures['keras_s'] * 1e3:.1f} ms "
        f"(ratio {figures['ratio_to_keras']:.2f})"
    )
    collectives.close()
    return figures | {"parameters": count, "world_size": world.size}


def in_place_addition(count: int) -> "Callable[[], tf.Tensor]":
    """A function that adds one vector of float32 to another and waits for it."""
    import tensorflow as tf

    total, added = tf.Variable(tf.zeros([count])), tf.random.stateless_normal([count], [0, 1])

    @tf.function
    def add() -> tf.Tensor:
        total.assign_add(added)
        return tf.constant(0)

    return lambda: add().numpy()
