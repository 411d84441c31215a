"""The batches of a training: how its rows are grouped, and how much of that is padding."""

from functools import partial

import numpy as np
from transformers import BertConfig

from bert.batch import Layouts, by_length, in_one_group, with_checked_ids
from distributed.feed import Feed
from distributed.order import RowOrder, divided
from distributed.plan import Plan
from distributed.rows import BatchRows
from tasks.task import Task

STEPS_OF_LAYOUTS = 256  # sampled to choose the shapes for XLA
STEPS_OF_REPORT = 20  # counted for the printed share of padding


def feed_of(
    task: Task, rows: BatchRows, order: RowOrder, plan: Plan, config: BertConfig, packing: str, is_fixed: bool
) -> Feed:
    """The feed of a training of a model with this configuration.

    Args:
      packing: "auto" divides a step's rows by their tokens and groups them by length; "off" does neither.
      is_fixed: XLA compiles the whole gradient, for few shapes of batches.
    """
    lengths = partial(rows.lengths_at, "input_ids")
    layouts = layouts_of(task, rows, order, plan, packing) if is_fixed else None
    batch = with_checked_ids(task.batch, config)
    return Feed(
        rows=rows,
        order=order,
        collate=partial(batch, grouping=layouts or (in_one_group if packing == "off" else by_length)),
        lengths=None if packing == "off" else lengths,
        is_fixed=is_fixed,
        collates_of_shapes=[partial(task.batch, grouping=one) for one in layouts.single()] if layouts else (),
    )


def layouts_of(task: Task, rows: BatchRows, order: RowOrder, plan: Plan, packing: str) -> Layouts:
    """The few shapes of micro-batches that XLA compiles, chosen from a sample of the run's steps. Without packing
    there is one shape, with rows of the task's greatest length."""
    sample: list[np.ndarray] = []
    if packing != "off":
        steps = np.linspace(0, plan.steps, min(plan.steps, STEPS_OF_LAYOUTS), endpoint=False).astype(int)
        for position in (steps * plan.global_batch_size).tolist():
            numbers = order.rows_at(position, position + plan.global_batch_size)
            lengths = rows.lengths_at("input_ids", numbers)
            ranks = divided(lengths, plan.size, plan.accumulation)
            sample += [lengths[piece] for rank in ranks for piece in rank]
    return Layouts(sample, -(-plan.global_batch_size // (plan.size * plan.accumulation)), task.max_seq_length)


def padding_of(feed: Feed, plan: Plan) -> float:
    """The share of attention's places that are padding in the first steps of the first rank. Linear layers compute
    no padding, unless XLA compiles the whole gradient."""
    positions = [step * plan.global_batch_size for step in range(min(plan.steps, STEPS_OF_REPORT))]
    batches = [batch for position in positions for batch in feed.micro_batches(plan, 0, position)]
    masks = [batch["attention_mask"] for batch in batches]
    return 1 - float(np.concatenate(masks).mean()) if masks else 0.0
