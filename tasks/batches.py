"""Batches of training and of prediction: their rows, shapes and padding."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from bert.batch import ByLength, Grouping, Layouts, in_one_group, rounded_up
from distributed.feed import Batch, Feed
from distributed.gradient import batch_signature
from distributed.order import RowOrder, divided, fixed_batches
from distributed.plan import Plan

STEPS_OF_LAYOUTS = 256  # sampled to choose the shapes for XLA
STEPS_OF_REPORT = 20  # counted for the printed share of padding


def grouping_of(packing: str) -> Grouping:
    """The grouping of rows for `--packing` auto or off; not used when XLA compiles the whole gradient."""
    return in_one_group if packing == "off" else ByLength()


def prediction_batches(lengths: np.ndarray, batch_size: int, max_seq_length: int) -> list[np.ndarray]:
    """Batches of row numbers, rows of similar length together. With its padding, a batch has at most as many
    tokens as `batch_size` rows of `max_seq_length`."""
    return fixed_batches(rounded_up(lengths), batch_size * rounded_up(max_seq_length))


def traced_once(function: Callable[[Batch], Any]) -> Callable[[Batch], Any]:
    """`function` as a graph for batches of any size with the arrays of the first one."""
    traced = None

    def call(batch: Batch) -> Any:
        nonlocal traced
        if traced is None:
            traced = tf.function(function, input_signature=[batch_signature(batch)], autograph=False)
        return traced(batch)

    return call


def padding_of(feed: Feed, plan: Plan) -> float:
    """The share of attention's places that are padding in the first steps of the first rank. Linear layers compute
    no padding, unless XLA compiles the whole gradient."""
    positions = [step * plan.global_batch_size for step in range(min(plan.steps, STEPS_OF_REPORT))]
    batches = [batch for position in positions for batch in feed.micro_batches(plan, 0, position)]
    masks = [batch["attention_mask"] for batch in batches]
    return 1 - float(np.concatenate(masks).mean()) if masks else 0.0


def layouts_of(
    plan: Plan, order: RowOrder, lengths: Callable[[np.ndarray], np.ndarray] | None, longest: int
) -> Layouts:
    """The few shapes of micro-batches that XLA compiles, chosen from a sample of the run's steps. Without
    `lengths` there is one shape, with rows of `longest` tokens."""
    sample: list[np.ndarray] = []
    if lengths:
        steps = np.linspace(0, plan.steps, min(plan.steps, STEPS_OF_LAYOUTS), endpoint=False).astype(int)
        for position in (steps * plan.global_batch_size).tolist():
            numbers = order.rows_at(position, position + plan.global_batch_size)
            of_rows = lengths(numbers)
            ranks = divided(of_rows, plan.size, plan.accumulation)
            sample += [of_rows[piece] for rank in ranks for piece in rank]
    return Layouts(sample, -(-plan.global_batch_size // (plan.size * plan.accumulation)), longest)
