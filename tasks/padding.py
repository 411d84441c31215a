"""How rows of a run's steps are padded: the shapes for XLA, and what packing saves."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from bert.packing import Grouping, Layouts
    from distributed.feed import Feed
    from distributed.order import RowOrder
    from distributed.plan import Plan

STEPS_OF_LAYOUTS = 256  # a run's steps whose lengths decide about the shapes for XLA
STEPS_LOOKED_AT = 20


def padding_of(
    packing: str, plan: "Plan", feed: "Feed", is_compiled: bool, layouts: "Layouts | None" = None
) -> str:
    """What share of the tokens of the first steps is padding, told with and without packing, and with `layouts`.

    Args:
      feed: with lengths, by which packing shares a step's rows out.
      is_compiled: the model adds rows of padding to each micro-batch.
    """
    import numpy as np

    from bert.ops_xla import padding_rows
    from distributed.order import divided
    from tasks.batches import grouping_of

    def computed(lengths: "np.ndarray", grouping: "Grouping") -> int:
        tokens = grouping(lengths)[1].num_tokens
        return tokens + (int(padding_rows(tokens)) if is_compiled else 0)

    real = padded = packed = fixed = 0
    sizes = plan.size, plan.accumulation, feed.order.block
    for step in range(min(plan.steps, STEPS_LOOKED_AT)):
        position = step * plan.global_batch_size
        numbers = feed.order.rows_at(position, position + plan.global_batch_size)
        lengths = np.diff(feed.rows.take(numbers)["input_ids"][1])
        real += int(lengths.sum())
        neighbours = [lengths[piece] for rank in range(plan.size) for piece in plan.micro_batches(rank)]
        pieces = for_layouts = neighbours
        if feed.lengths:
            pieces, for_layouts = (
                [lengths[piece] for rank in divided(lengths, numbers, *sizes, is_dealt) for piece in rank]
                for is_dealt in (False, True)
            )
        if layouts:
            fixed += sum(layouts(piece)[1].num_tokens for piece in for_layouts)
        padded += sum(computed(piece, grouping_of("off")) for piece in neighbours if len(piece))
        packed += sum(computed(piece, grouping_of("auto")) for piece in pieces if len(piece))
    without, with_it = 1 - real / padded, 1 - real / packed
    told = f"packing {packing}: {without:.1%} of the tokens are padding without packing, {with_it:.1%} with it"
    return told + (f", {1 - real / fixed:.1%} in the {len(layouts)} shapes for XLA" if layouts else "")


def layouts_of(
    plan: "Plan", order: "RowOrder", lengths: "Callable[[np.ndarray], np.ndarray] | None", longest: int
) -> "Layouts":
    """The few shapes of a run's micro-batches that XLA compiles, from some of its steps; without lengths there is
    one, of rows of `longest` tokens."""
    import numpy as np

    from bert.packing import Layouts
    from distributed.order import divided

    sample: list[np.ndarray] = []
    if lengths:
        steps = np.linspace(0, plan.steps, min(plan.steps, STEPS_OF_LAYOUTS), endpoint=False).astype(int)
        for position in (steps * plan.global_batch_size).tolist():
            numbers = order.rows_at(position, position + plan.global_batch_size)
            of_step = lengths(numbers)
            pieces = divided(of_step, numbers, plan.size, plan.accumulation, order.block, is_dealt=True)
            sample += [of_step[piece] for rank in pieces for piece in rank]
    return Layouts(sample, -(-plan.global_batch_size // (plan.size * plan.accumulation)), longest)
