"""The training steps that bert-bench step measures: bert-squad's model, loss and steps on a `StepLoad`."""

import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
import tensorflow as tf

from bert.batch import row_lengths
from bert.model import Bert
from bert.optimizer import AdamWeightDecay
from distributed.collectives import Collectives
from distributed.feed import Batch, BatchSource, prefetched
from distributed.gradient import TrainingStep, WholeStep
from distributed.log import StepClock
from distributed.optimizer import AllreduceOptimizer
from distributed.plan import Plan
from distributed.world import World
from tasks.bench.load import StepLoad, config_of, feed_and_plan, shapes_of
from tasks.bench.timing import line_up, seconds_of
from tasks.squad.program import span_loss

SEED = 0  # for dropout


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step of a rank.

    Attributes:
      seconds, parts: seconds of the whole step, and of each part by name.
      shapes: rows and length of each group of each micro-batch.
      lengths: the number of real tokens of each example, int64.
    """

    seconds: float
    parts: dict[str, float]
    shapes: list[list[tuple[int, int]]]
    lengths: np.ndarray


class BenchTraining:
    """A model and everything that its training steps need."""

    def __init__(self, load: StepLoad, world: World, collectives: Collectives):
        self.load, self.world, self.bert_config = load, world, config_of(load)
        self.feed: BatchSource
        self.plan: Plan
        self.feed, self.plan = feed_and_plan(load, world, self.bert_config.vocab_size)
        self.model = Bert(self.bert_config, "span")
        self.model.recomputes = load.recompute
        self.optimizer = AllreduceOptimizer(
            AdamWeightDecay(1e-5),
            self.model.trainable_variables,
            world,
            collectives,
            scales_loss=load.precision == "fp16",
            compression=load.compression,
        )
        self.optimizer.broadcast_variables()
        is_whole = load.xla == "on" and world.device.is_gpu and collectives.in_graph
        kind = WholeStep if is_whole else partial(TrainingStep, is_fixed=load.xla == "on")
        self.step: TrainingStep = kind(self._loss, self.feed.weights, self.optimizer, SEED)

    def _loss(self, batch: dict[str, tf.Tensor], key: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"loss": span_loss(self.model(batch, dropout_key=key), batch)}

    def run(self, num_kept: int) -> tuple[list[MeasuredStep], list[list[Batch]]]:
        """Runs all steps of the plan. Returns those after the warmup, and the micro-batches of the last
        `num_kept`."""
        clock = StepClock(self.plan.global_batch_size, self.world.device.is_gpu)
        measured: list[MeasuredStep] = []
        kept: deque[list[Batch]] = deque(maxlen=num_kept)
        made = prefetched(self._micro_batches, range(self.plan.steps))
        with closing(made) as batches_of_steps:
            for number in range(self.plan.steps):
                line_up(self.world)
                clock.skip()
                start_s = time.perf_counter()
                batches = next(batches_of_steps)
                clock.mark("data_s")
                self.step.take(batches, number, (), clock)
                seconds, parts = time.perf_counter() - start_s, clock.read()
                if number >= self.load.num_warmup:
                    shapes = [shapes_of(batch) for batch in batches]
                    lengths = np.concatenate([row_lengths(batch) for batch in batches])
                    measured.append(MeasuredStep(seconds, parts, shapes, lengths))
                    kept.append(batches)
        return measured, list(kept)

    def _micro_batches(self, number: int) -> list[Batch]:
        return self.feed.micro_batches(self.plan, self.world.rank, number * self.plan.global_batch_size)

    def gradient_seconds(self, batches: list[Batch]) -> float:
        """Computes the gradient of a step's micro-batches again. Returns the seconds that it takes."""
        step = self.step

        def compute() -> None:
            weights, _ = self.optimizer.reduce_weights(step.own_weights(batches))
            keys = step.keys(self.plan.steps, len(batches))
            step.gradient(batches, self.optimizer.inverse_weights(weights), keys)[-1].numpy()  # waits for a GPU

        line_up(self.world)
        return seconds_of(compute)
