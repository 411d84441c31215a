"""Compares clipping and the optimizer's step with the time that memory alone needs, and with Keras' AdamW.

    mpirun -np 2 python -m benchmarks.update --model_size base

The lower bound is the time to move 28 bytes per parameter (read the parameter, its gradient and two moments; write
the parameter and two moments) at the speed of an in-place addition, which is measured in the same run.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from distributed.devices import DeviceSettings
from ringbase.settings import setting
from tasks import flags
from tasks.bench.load import model_config
from tasks.bench.program import measure_on_ranks
from tasks.bench.settings import ModelSize, TurnSettings
from tasks.bench.timing import in_turn, line_up, ratio, seconds_of

if TYPE_CHECKING:
    import tensorflow as tf

    from distributed.world import World

FLOOR_BYTES, ADDED_BYTES = 28, 12  # per parameter of an update; per element of an in-place addition


@dataclass(frozen=True, kw_only=True)
class UpdateConfig(TurnSettings, DeviceSettings):
    """Global-norm clip and AdamWeightDecay or LAMB, compared with the speed of memory and with Keras' AdamW."""

    model_size: ModelSize = setting("base", "published model size", "model")
    optimizer: Literal["adamw", "lamb"] = setting("adamw", "optimizer", "model")
    repeat: int = setting(10, "number of turns; medians over them are printed", "load")


def main(argv: Sequence[str] | None = None) -> None:
    prog = "benchmarks.update"
    measure_on_ranks(prog, flags.parse(UpdateConfig, argv, prog=prog, description=str(__doc__)), bench_update)


def bench_update(config: UpdateConfig, world: "World") -> dict[str, Any]:
    """Times updates in turn with the other two, on all ranks at the same time. Every rank gets rank 0's
    medians."""
    import keras
    import tensorflow as tf

    from bert.model import Bert
    from bert.optimizer import LAMB, AdamWeightDecay
    from distributed.collectives import open_collectives
    from distributed.optimizer import AllreduceOptimizer

    def wrapped(optimizer: keras.optimizers.Optimizer, clip_norm: float | None) -> AllreduceOptimizer:
        variables = Bert(model_config(config.model_size), "span").trainable_variables
        return AllreduceOptimizer(optimizer, variables, world, collectives, clip_norm=clip_norm)

    collectives = open_collectives(world, "local" if world.size == 1 else "mpi")
    ours = wrapped({"adamw": AdamWeightDecay, "lamb": LAMB}[config.optimizer](1e-5), 1.0)
    keras_adamw = wrapped(keras.optimizers.AdamW(1e-5, global_clipnorm=1.0), None)
    gradients = [tf.random.stateless_normal(v.shape, [number, 1]) for number, v in enumerate(ours.trainable)]
    own = ours.listed(gradients, {"loss": tf.constant(0.0)})
    del gradients
    count = sum(int(tf.size(variable)) for variable in ours.trainable)

    def timed(run: Callable[[], object]) -> Callable[[], float]:
        def seconds() -> float:
            line_up(world)
            return seconds_of(run)

        return seconds

    contenders = {
        "floor": timed(in_place_addition(count)),
        "ours": timed(lambda: ours.update(own, {"loss": 1.0})),
        "keras": timed(lambda: keras_adamw.update(own, {"loss": 1.0})),
    }
    times = in_turn(contenders, config.repeat, num_warmup=1)  # the first turn compiles
    times["floor"] = [seconds * FLOOR_BYTES / ADDED_BYTES for seconds in times["floor"]]
    figures = {f"{name}_s": statistics.median(seconds) for name, seconds in times.items()}
    figures |= {f"ratio_to_{name}": ratio(times["ours"], times[name]).median for name in ("floor", "keras")}
    figures = world.broadcast(figures)
    world.say(
        f"{config.model_size}: {count / 1e6:.1f} M parameters, {world.size} rank{'s' * (world.size > 1)}, "
        f"{world.device.threads} threads each, medians of {config.repeat}: clip and {config.optimizer} "
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


if __name__ == "__main__":
    main()
