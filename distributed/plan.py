"""Steps, warmup and learning rate for this number of ranks: each divided or scaled exactly once."""

import itertools
import math
from dataclasses import dataclass

from ringbert.errors import InputError

HIGH_FINE_TUNING_RATE = 2e-4
DEFAULT_BATCH_SIZE = 32  # of run_squad.py and run_pretraining.py


@dataclass(frozen=True)
class Plan:
    """What a run will do. `rows` are what is trained on: windows for SQuAD, examples for a classifier."""

    rows: int
    size: int
    global_batch_size: int
    accumulation: int
    steps: int
    warmup_steps: int
    base_learning_rate: float
    learning_rate: float
    lr_scaling: str
    epochs: float

    def share(self, rank: int) -> slice:
        """The part of a global batch that a rank trains on; sizes differ by one row at most."""
        small, larger = divmod(self.global_batch_size, self.size)
        start = rank * small + min(rank, larger)
        return slice(start, start + small + (rank < larger))

    def micro_batches(self, rank: int) -> list[slice]:
        """That part, cut into `accumulation` pieces whose sizes differ by one row at most (some may be empty)."""
        share = self.share(rank)
        count = share.stop - share.start
        edges = [share.start + count * piece // self.accumulation for piece in range(self.accumulation + 1)]
        return [slice(a, b) for a, b in itertools.pairwise(edges)]

    def __str__(self) -> str:
        share = self.share(0)
        largest, smallest = share.stop, self.share(self.size - 1)
        per_rank = f"{largest}" if smallest.stop - smallest.start == largest else f"{largest - 1}-{largest}"
        is_scaled = self.learning_rate != self.base_learning_rate
        scaled = f" x {self.lr_scaling} scaling = {self.learning_rate:.3g}" if is_scaled else ""
        if self.size > 1 and not is_scaled:
            scaled = ", not scaled"
        return (
            f"plan: {self.rows:,} rows, {self.size} rank{'s' * (self.size > 1)}, batch {per_rank} per rank, "
            f"{self.global_batch_size} global, accumulation {self.accumulation}; {self.steps:,} steps "
            f"({self.epochs:g} epochs), {self.warmup_steps:,} warmup; "
            f"learning rate {self.base_learning_rate:.3g}{scaled}"
        )


def make_plan(
    rows: int,
    size: int,
    *,
    learning_rate: float,
    epochs: float = 3.0,
    train_batch_size: int | None = None,
    global_batch_size: int | None = None,
    accumulation: int = 1,
    warmup_proportion: float = 0.1,
    num_train_steps: int | None = None,
    num_warmup_steps: int | None = None,
    lr_scaling: str = "linear",
) -> Plan:
    """The plan of a run over `size` ranks.

    With `train_batch_size` (rows per rank and optimizer step, 32 unless given) one rank's steps and warmup,
    `int(rows / train_batch_size * epochs)` and `int(steps * warmup_proportion)` as in Google's run_squad.py, are
    divided by the number of ranks and the rate is scaled; given numbers of steps are one rank's and are divided
    likewise. With `global_batch_size` the steps and the rate of one rank with that batch are kept.

    Raises InputError when a number is out of range or no step is left.
    """
    if train_batch_size is not None and global_batch_size is not None:
        raise InputError("--train_batch_size and --global_batch_size exclude each other: give one")
    keeps_batch = global_batch_size is not None
    batch = next(
        (given for given in (global_batch_size, train_batch_size) if given is not None), DEFAULT_BATCH_SIZE
    )
    for flag, value, lowest in (
        ("--train_batch_size / --global_batch_size", batch, 1),
        ("--gradient_accumulation_steps", accumulation, 1),
        ("--num_train_epochs", epochs, 0),
        ("--learning_rate", learning_rate, 0),
        ("--warmup_proportion", warmup_proportion, 0),
        ("--num_warmup_steps", num_warmup_steps or 0, 0),
    ):
        if value < lowest or not math.isfinite(value):
            raise InputError(f"{flag} is {value}, needed is at least {lowest}")
    divisor = 1 if keeps_batch else size
    steps_of_one = num_train_steps if num_train_steps is not None else int(rows / batch * epochs)
    warmup_of_one = num_warmup_steps if num_warmup_steps is not None else int(steps_of_one * warmup_proportion)
    steps, warmup = steps_of_one // divisor, warmup_of_one // divisor
    if rows < 1:
        raise InputError("there are no rows to train on (--train_file)")
    if steps < 1:
        rank = f"rank{'s' * (divisor > 1)}"
        if num_train_steps is not None:
            raise InputError(
                f"no training step is left: --num_train_steps {num_train_steps} of one rank, "
                f"divided by {divisor} {rank}"
            )
        flag = "--global_batch_size" if keeps_batch else "--train_batch_size"
        raise InputError(
            f"no training step is left: {rows} rows, batch {batch}, {epochs:g} epochs give {steps_of_one} steps "
            f"of one rank, divided by {divisor} {rank}; lower {flag} or raise --num_train_epochs"
        )
    global_batch = batch if keeps_batch else batch * size
    if global_batch < size:
        raise InputError(f"--global_batch_size {global_batch} is less than the {size} ranks")
    if global_batch // size < accumulation:
        raise InputError(
            f"--gradient_accumulation_steps {accumulation} exceeds a rank's {global_batch // size} rows per step"
        )
    factor = {"linear": divisor, "sqrt": math.sqrt(divisor), "none": 1}.get(lr_scaling)
    if factor is None:
        raise InputError(f"--lr_scaling {lr_scaling!r} is none of linear, sqrt, none")
    return Plan(
        rows=rows,
        size=size,
        global_batch_size=global_batch,
        accumulation=accumulation,
        steps=steps,
        warmup_steps=warmup,
        base_learning_rate=learning_rate,
        learning_rate=learning_rate * factor,
        lr_scaling=lr_scaling,
        epochs=steps * global_batch / rows,
    )


def rate_warning(plan: Plan) -> str | None:
    """A warning when scaling took a fine-tuning rate beyond what BERT usually survives."""
    if plan.learning_rate > HIGH_FINE_TUNING_RATE and plan.learning_rate > plan.base_learning_rate:
        return (
            f"warning: {plan.lr_scaling} scaling over {plan.size} ranks makes the rate {plan.learning_rate:.3g}, "
            f"above {HIGH_FINE_TUNING_RATE:g}: consider --lr_scaling sqrt or none, or --global_batch_size"
        )
    return None
