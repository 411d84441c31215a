"""The padding in the steps of a run: how much of it packing saves, and the shapes for XLA."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from bert.packing import Layouts
    from distributed.feed import Feed
    from distributed.order import RowOrder
    from distributed.plan import Plan

STEPS_OF_LAYOUTS = 256  # sampled to choose the shapes for XLA
STEPS_OF_REPORT = 20  # counted for the printed shares of padding


def padding_of(
    packing: str, plan: "Plan", feed: "Feed", is_compiled: bool, layouts: "Layouts | None" = None
) -> str:
    """A message with the share of padding in the first steps: without packing, with packing, and in `layouts`.

    It is the padding of the linear layers. On CPUs they leave out that of packed rows (bert/tokens.py), which
    only attention computes.

    Args:
      feed: has `lengths` if packing divides a step's rows among ranks by their numbers of tokens.
      is_compiled: whether the model adds rows of padding to each micro-batch.
    """
    import numpy as np

    from bert.ops import on_cpu
    from bert.ops_xla import padding_rows
    from tasks.batches import grouping_of

    def num_rows(lengths: "np.ndarray", packing: str) -> int:
        is_left_out = packing == "auto" and on_cpu()
        rows = int(lengths.sum()) if is_left_out else grouping_of(packing)(lengths)[1].num_tokens
        return rows + (int(padding_rows(rows)) if is_compiled else 0)

    real = without = packed = fixed = 0
    for step in range(min(plan.steps, STEPS_OF_REPORT)):
        position = step * plan.global_batch_size
        numbers = feed.order.rows_at(position, position + plan.global_batch_size)
        lengths = np.diff(feed.rows.take(numbers)["input_ids"][1])
        neighbours = [lengths[piece] for rank in range(plan.size) for piece in plan.micro_batches(rank)]
        by_tokens, by_number = neighbours, neighbours
        if feed.lengths:
            by_tokens = list(_micro_batches(plan, feed.order, numbers, lengths, is_dealt=False))
            by_number = list(_micro_batches(plan, feed.order, numbers, lengths, is_dealt=True))
        real += int(lengths.sum())
        without += sum(num_rows(piece, "off") for piece in neighbours if len(piece))
        packed += sum(num_rows(piece, "auto") for piece in by_tokens if len(piece))
        fixed += sum(layouts(piece)[1].num_tokens for piece in by_number) if layouts else 0
    text = f"packing {packing}: {1 - real / without:.1%} of the tokens are padding without packing"
    text += f", {1 - real / packed:.1%} with it"
    return text + (f", {1 - real / fixed:.1%} in the {len(layouts)} shapes for XLA" if layouts else "")


def layouts_of(
    plan: "Plan", order: "RowOrder", lengths: "Callable[[np.ndarray], np.ndarray] | None", longest: int
) -> "Layouts":
    """The few shapes of micro-batches that XLA compiles, chosen from a sample of the run's steps. Without
    `lengths` there is one shape, with rows of `longest` tokens."""
    import numpy as np

    from bert.packing import Layouts

    sample: list[np.ndarray] = []
    if lengths:
        steps = np.linspace(0, plan.steps, min(plan.steps, STEPS_OF_LAYOUTS), endpoint=False).astype(int)
        for position in (steps * plan.global_batch_size).tolist():
            numbers = order.rows_at(position, position + plan.global_batch_size)
            sample += _micro_batches(plan, order, numbers, lengths(numbers), is_dealt=True)
    return Layouts(sample, -(-plan.global_batch_size // (plan.size * plan.accumulation)), longest)


def _micro_batches(
    plan: "Plan", order: "RowOrder", numbers: "np.ndarray", lengths: "np.ndarray", is_dealt: bool
) -> "Iterator[np.ndarray]":
    """The lengths of the rows of each micro-batch of a step, over all ranks."""
    from distributed.order import divided

    for rank in divided(lengths, numbers, plan.size, plan.accumulation, order.block, is_dealt):
        for piece in rank:
            yield lengths[piece]
