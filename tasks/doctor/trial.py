"""A small BERT without dropout, and its training steps: bert-squad's model, feed, loss and steps."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import tensorflow as tf
from transformers import BertConfig

from bert.model import COMPILED_WIDTH, Bert
from bert.optimizer import AdamWeightDecay
from distributed.collectives import Collectives
from distributed.feed import Feed
from distributed.gradient import TrainingStep, WholeStep
from distributed.log import StepClock
from distributed.optimizer import AllreduceOptimizer
from distributed.plan import Plan, PlanSettings, make_plan
from distributed.rows import Rows, ragged
from distributed.world import World
from tasks.batches import layouts_of
from tasks.doctor.reference import Window
from tasks.squad.program import collate, feed_of, span_loss

if TYPE_CHECKING:
    from bert.batch import Layouts

SEED, LENGTH, VOCABULARY, HEADS = 7, 48, 500, 4
# Adam divides by the root of the second moment, which turns rounding errors of near-zero gradients into whole
# steps. With this epsilon it does not.
RATE, EPSILON = 1e-3, 1e-3
Xla = Literal["off", "gradient", "step"]


def windows(number: int) -> list[Window]:
    """Random examples of 12 to 48 tokens."""
    generator = np.random.default_rng(SEED)
    made = []
    for length in generator.integers(12, LENGTH + 1, number):
        start, end = np.sort(generator.integers(6, length, 2))
        made.append(Window(generator.integers(0, VOCABULARY, length), 6, int(start), int(end)))
    return made


def feed_for(examples: list[Window]) -> Feed:
    """The examples as bert-squad's training data."""
    columns: dict[str, Any] = {
        "input_ids": ragged([window.input_ids.astype(np.int32) for window in examples], pa.int32()),
        "question_tokens": pa.array([window.question_tokens for window in examples], pa.int32()),
        "start_position": pa.array([window.start for window in examples], pa.int32()),
        "end_position": pa.array([window.end for window in examples], pa.int32()),
    }
    return feed_of(Rows(pa.table(columns)), SEED, LENGTH)


def small_model(precision: str, num_layers: int = 2, seed: int = 3) -> Bert:
    from tasks.job import set_precision

    set_precision(precision)
    return Bert(small_config(num_layers), "span", seed=seed)


def small_config(num_layers: int = 2) -> BertConfig:
    """Wide enough for compiled operations. Without dropout, so that the loss is a function of the weights."""
    return BertConfig(
        vocab_size=VOCABULARY, hidden_size=COMPILED_WIDTH, num_hidden_layers=num_layers, num_attention_heads=HEADS,
        intermediate_size=4 * COMPILED_WIDTH, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, layer_norm_eps=1e-12,
    )  # fmt: skip


class Trial:
    """A training of a small model on `global_batch` rows per step.

    Args:
      model: from `small_model`; by default the one of float32.
      xla: "gradient" and "step": XLA compiles the whole gradient, or the whole step, as with --xla on.
    """

    def __init__(
        self,
        world: World,
        collectives: Collectives,
        model: Bert | None = None,
        xla: Xla = "off",
        global_batch: int = 8,
    ):
        self.world, self.global_batch, self.is_fixed = world, global_batch, xla != "off"
        self.model = model or small_model("fp32")
        self.feed = feed_for(windows(2 * global_batch))
        self.optimizer = AllreduceOptimizer(
            AdamWeightDecay(RATE, epsilon=EPSILON),
            self.model.trainable_variables,
            world,
            collectives,
            scales_loss=self.model.compute_dtype == "float16",
        )
        kind = WholeStep if xla == "step" else partial(TrainingStep, is_fixed=self.is_fixed)
        self.step = kind(self._loss, self.feed.weights, self.optimizer, SEED)

    def _loss(self, batch: dict[str, tf.Tensor], key: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"loss": span_loss(self.model(batch, dropout_key=key), batch)}

    def plan_to(self, last: int) -> Plan:
        """The plan of `last` steps over two epochs of data."""
        settings = PlanSettings(global_batch_size=self.global_batch, num_train_steps=last, warmup_proportion=0.0)
        return make_plan(settings, 2 * self.global_batch, self.world.size)

    def fixed_feed(self, last: int) -> Feed:
        """The feed, with a fixed shape of batches if XLA compiles the whole gradient."""
        if not self.is_fixed:
            return self.feed
        layouts: Layouts = layouts_of(self.plan_to(last), self.feed.order, self.feed.lengths, LENGTH)
        return replace(self.feed, collate=partial(collate, grouping=layouts), is_fixed=True)

    def first_gradient(self) -> tuple[float, dict[str, np.ndarray]]:
        """The mean loss of the first step, and its gradient by the names of the tensors. For one rank."""
        feed, plan = self.fixed_feed(1), self.plan_to(1)
        batches = feed.micro_batches(plan, 0, 0)
        totals, _ = self.optimizer.reduce_weights(self.step.own_weights(batches))
        keys = self.step.keys(0, len(batches))
        *gradients, sums = self.step.gradient(batches, self.optimizer.inverse_weights(totals), keys)
        scale = self.optimizer.loss_scale
        named = {
            name: np.asarray(part.numpy(), np.float64) / scale
            for name, part in zip(self.model.named_tensors(), gradients, strict=True)
        }
        return float(sums.numpy()[0]) / totals["loss"], named

    def train(self, first: int, last: int) -> None:
        """The steps after `first`, up to `last`."""
        clock, feed, plan = StepClock(self.global_batch), self.fixed_feed(last), self.plan_to(last)
        for number in range(first, last):
            batches = feed.micro_batches(plan, self.world.rank, number * self.global_batch)
            self.step.take(batches, number, (), clock)

    def weights(self) -> np.ndarray:
        """All trainable values, float32 [n]."""
        return np.concatenate([variable.numpy().reshape(-1) for variable in self.model.trainable_variables])
