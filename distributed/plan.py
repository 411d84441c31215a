"""Settings of a training; its plan: steps, warmup and learning rate for a number of ranks, each
divided or scaled exactly once; and its progress. Without TensorFlow, so that `--help` answers at
once."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from ringbase.errors import InputError
from ringbase.settings import MOST_ROWS, MOST_SEED, MOST_STEPS, Settings, setting, shown

HIGH_FINE_TUNING_RATE = 2e-4
HIGHEST_RATE = 10  # far above what any BERT was trained with
ROWS: dict[str, Any] = {"group": "training", "at_least": 1, "at_most": MOST_ROWS}
STEPS: dict[str, Any] = {"group": "training", "at_least": 1, "at_most": MOST_STEPS}
FROM_0 = STEPS | {"at_least": 0}


class PlanSettings(Settings):
    """Length and learning rate of training, with the names and defaults of Google's scripts.

    With `train_batch_size`, rows per rank and step, one rank's steps and warmup (as in Google's
    run_squad.py) are divided by the number of ranks, and the rate is scaled. `global_batch_size`
    keeps one rank's steps and rate.
    """

    train_batch_size: int | None = setting(
        None, "rows per rank and optimizer step", shown_default="32", **ROWS, changes="training"
    )
    global_batch_size: int | None = setting(
        None,
        "rows per optimizer step over all ranks, instead; keeps the steps and rate of one rank",
        **ROWS,
        changes="training",
    )
    gradient_accumulation_steps: int = setting(
        1, "micro-batches of which a rank's step is made", **ROWS
    )
    learning_rate: float = setting(
        5e-5,
        "peak learning rate of one rank",
        **FROM_0 | {"at_most": HIGHEST_RATE},
        changes="training",
    )
    lr_scaling: Literal["linear", "sqrt", "none"] = setting(
        "linear",
        "how the learning rate grows with the number of ranks",
        "training",
        changes="training",
    )
    num_train_epochs: float | None = setting(
        3.0, "passes over the data", **FROM_0, changes="training"
    )
    num_train_steps: int | None = setting(
        None,
        "optimizer steps of one rank, divided by the number of ranks; instead of epochs",
        **STEPS,
        changes="training",
    )
    warmup_proportion: float = setting(
        0.1, "share of steps in which the rate rises", **FROM_0 | {"at_most": 1}, changes="training"
    )
    num_warmup_steps: int | None = setting(
        None,
        "warmup steps of one rank, divided by the number of ranks; instead of a share",
        **FROM_0,
        changes="training",
    )

    decay_proportion: float = setting(
        0.1,
        "share of steps in which the rate of the schedule wsd falls",
        **FROM_0 | {"at_most": 1},
        changes="training",
    )
    num_decay_steps: int | None = setting(
        None,
        "such steps of one rank, divided by the number of ranks; instead of a share",
        **FROM_0,
        changes="training",
    )

    def void(self) -> Mapping[str, str]:
        reasons = {}
        if self.num_train_steps is not None:
            reasons["num_train_epochs"] = "--num_train_steps says how long"
        if self.num_warmup_steps is not None:
            reasons["warmup_proportion"] = "--num_warmup_steps says how long"
        if self.num_decay_steps is not None:
            reasons["decay_proportion"] = "--num_decay_steps says how long"
        if self.global_batch_size is not None:
            reasons["lr_scaling"] = "with --global_batch_size the rate is that of one rank"
        return reasons

    def check(self) -> None:
        if self.train_batch_size is not None and self.global_batch_size is not None:
            raise ValueError(
                "--train_batch_size and --global_batch_size exclude each other: give one"
            )

    def resolved(self) -> "PlanSettings":
        """The settings with all defaults that depend on others."""
        return self

    @property
    def batch_size(self) -> int:
        """Rows per step: of one rank, or of all with `global_batch_size`."""
        return self.global_batch_size or self.train_batch_size or 32


class LoopSettings(Settings):
    """Settings of the training loop."""

    seed: int = setting(
        42,
        "seed of initial values, order of the data and dropout",
        "training",
        aliases=("random_seed",),
        at_least=0,
        at_most=MOST_SEED,
        changes="training",
    )
    save_checkpoints_steps: int = setting(1000, "steps between checkpoints", **STEPS)
    save_checkpoints_minutes: float = setting(
        10.0,
        "minutes after which a checkpoint is written, whatever the steps; 0 for never",
        **FROM_0,
    )
    keep_checkpoints: int = setting(5, "number of newest checkpoints that are kept", **STEPS)
    check_steps: int = setting(
        0,
        "steps between checks in which each rank also computes the next rank's gradient and"
        " compares the bits, to find unsound machines; 0 for never",
        **FROM_0,
    )
    log_steps: int | None = setting(
        None,
        "steps between lines of metrics.jsonl",
        shown_default="25, in short runs a fiftieth of the steps",
        **STEPS,
    )
    timeline: str | None = setting(
        None, "file for a Chrome trace of what all ranks do when, for ui.perfetto.dev", "training"
    )
    profile_steps: str | None = setting(
        None,
        "steps FIRST:LAST that TensorFlow's profiler records on rank 0, in OUTPUT_DIR/profile",
        "training",
    )
    xla: Literal["auto", "on", "off"] = setting(
        "auto",
        "let XLA compile the whole gradient, for at most 3 shapes; auto does so on GPUs",
        "machine",
    )
    step: Literal["auto", "whole"] = setting(
        "auto",
        "whole compiles the sums over ranks and the update with the gradient, and sums each layer's"
        " gradients while those below are computed; for the backend nccl, not yet tried on several"
        " GPUs",
        "machine",
    )

    def check(self) -> None:
        if self.profile_steps is not None:
            match = re.fullmatch(r"([1-9]\d{0,8}):([1-9]\d{0,8})", self.profile_steps)
            if not match or int(match[1]) > int(match[2]):
                text = shown(self.profile_steps)
                raise ValueError(f"--profile_steps must be FIRST:LAST, such as 10:15, got {text}")


@dataclass(frozen=True)
class Plan:
    """The plan of a run. A row is a training item: a window for SQuAD, an example for a
    classifier."""

    rows: int
    size: int
    global_batch_size: int
    accumulation: int
    steps: int
    steps_of_one: int  # that one rank would take with the flags
    warmup_steps: int
    base_learning_rate: float
    learning_rate: float
    lr_scaling: str
    epochs: float
    decay_steps: int = 0  # at the end, of the schedule wsd

    def on_ranks(self, size: int) -> "Plan":
        """The same steps on the ranks that are left after a death, in micro-batches that are not
        larger where the rows can be divided so."""
        accumulation = -(-self.accumulation * self.size // size)
        return replace(
            self, size=size, accumulation=min(accumulation, self.global_batch_size // size)
        )

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, about: str = "") -> str:
        """One line; `about` stands before what depends on the number of rows."""
        rate = f"{self.learning_rate:.3g}"
        if self.learning_rate != self.base_learning_rate:
            rate = f"{self.base_learning_rate:.3g} x {self.lr_scaling} scaling = {rate}"
        return (
            f"plan: {about}{self.rows:,} rows, {self.size} rank{'s' * (self.size > 1)}, batch"
            f" {self.global_batch_size} over all ranks, accumulation {self.accumulation};"
            f" {about}{self.steps:,} steps, {_epochs_in_words(self.epochs)},"
            f" {about}{self.warmup_steps:,} of them warmup; learning rate {rate}"
        )


def _epochs_in_words(epochs):
    """Such as "3 epochs", "about 1 epoch" of 0.9988, "0.98 epochs"."""
    rounded = round(epochs, 2) or epochs
    about = "about " * (rounded.is_integer() and rounded != epochs)
    return f"{about}{rounded:,.6g} epoch{'s' * (rounded != 1)}"


class Length(NamedTuple):
    """The length of a training in steps of one rank."""

    steps: int
    warmup_steps: int
    decay_steps: int


def length_of(settings: PlanSettings, rows: int) -> Length:
    """The length of a training on `rows` rows of data."""
    epochs = 3.0 if settings.num_train_epochs is None else settings.num_train_epochs
    steps, warmup = settings.num_train_steps, settings.num_warmup_steps
    decay = settings.num_decay_steps
    if steps is None:
        steps = int(rows / settings.batch_size * epochs)
    if warmup is None:
        warmup = int(steps * settings.warmup_proportion)
    if decay is None:
        decay = int(steps * settings.decay_proportion)
    return Length(steps, warmup, decay)


def make_plan(settings: PlanSettings, rows: int, size: int) -> Plan:
    """The plan for `rows` rows of data and `size` ranks. Raises InputError: no step is left, or
    there is more warmup than steps."""
    if rows < 1:
        raise InputError("there are no rows to train on")
    batch, keeps_batch = settings.batch_size, settings.global_batch_size is not None
    divisor = 1 if keeps_batch else size
    steps_of_one, warmup_of_one, decay_of_one = length_of(settings, rows)
    steps, warmup = steps_of_one // divisor, warmup_of_one // divisor
    batch_flag = "--global_batch_size" if keeps_batch else "--train_batch_size"
    length_flag = f"--num_train_{'steps' if settings.num_train_steps else 'epochs'}"
    if steps < 1:
        raise InputError(
            f"no training step is left: {rows} rows in batches of {batch} make {steps_of_one} steps"
            f" of one rank, divided by {divisor} rank{'s' * (divisor > 1)}; lower {batch_flag} or"
            f" raise {length_flag}"
        )
    if warmup_of_one > steps_of_one:
        raise InputError(
            f"--num_warmup_steps {warmup_of_one} is more than the {steps_of_one} steps of"
            f" {length_flag}: lower it, to {steps_of_one // 10} for example, a tenth of the steps"
        )
    if settings.num_decay_steps is not None and warmup_of_one + decay_of_one > steps_of_one:
        raise InputError(
            f"--num_decay_steps {decay_of_one} and {warmup_of_one} steps of warmup are more than"
            f" the {steps_of_one} steps of {length_flag}: lower one"
        )
    if steps > MOST_STEPS:
        raise InputError(
            f"{steps:,} training steps are more than {MOST_STEPS:,}: lower --num_train_epochs"
        )
    global_batch, accumulation = batch * divisor, settings.gradient_accumulation_steps
    if global_batch < size * accumulation:
        raise InputError(
            f"a step of {global_batch} rows is too small for {size} ranks with"
            f" --gradient_accumulation_steps {accumulation}: raise {batch_flag}"
        )
    factor = {"linear": divisor, "sqrt": math.sqrt(divisor), "none": 1}[settings.lr_scaling]
    return Plan(
        rows=rows,
        size=size,
        global_batch_size=global_batch,
        accumulation=accumulation,
        steps=steps,
        steps_of_one=steps_of_one,
        warmup_steps=warmup,
        base_learning_rate=settings.learning_rate,
        learning_rate=settings.learning_rate * factor,
        lr_scaling=settings.lr_scaling,
        epochs=steps * global_batch / rows,
        decay_steps=decay_of_one // divisor,
    )


def rate_warning(plan: Plan) -> str | None:
    """A warning if scaling makes the learning rate too high for most BERT fine-tuning."""
    if plan.learning_rate <= max(HIGH_FINE_TUNING_RATE, plan.base_learning_rate):
        return None
    return (
        f"warning: {plan.lr_scaling} scaling over {plan.size} ranks makes the rate"
        f" {plan.learning_rate:.3g}, above {HIGH_FINE_TUNING_RATE:g}: consider --lr_scaling sqrt or"
        " none, or --global_batch_size"
    )


@dataclass(frozen=True)
class State:
    """The progress of training."""

    position: int  # rows of the stream consumed
    step: int  # how many of the `steps` are done
    steps: int
    global_batch_size: int
    settings: dict[str, object]  # which must not change when a run is resumed
    # [position, score] of each evaluation with a score, which choose the best checkpoint.
    evaluations: list[list[float]] = field(default_factory=list)
    evaluated: int = 0  # the position of the last evaluation, so that each is done once
    # a digest of the score and the held-out data of the evaluations, which can be compared with
    # others of the same only; "" if there are none
    evaluated_by: str = ""

    def after_step(self) -> "State":
        """The state one step later."""
        return replace(self, position=self.position + self.global_batch_size, step=self.step + 1)

    def with_score(self, score: float | None) -> "State":
        """The state with an evaluation here; `score` is the one that selects the best
        checkpoint."""
        added = [] if score is None else [[self.position, float(score)]]
        return replace(self, evaluated=self.position, evaluations=[*self.evaluations, *added])

    def for_evaluations(self, by: str) -> "State":
        """The state of a training that is evaluated `by` this score and these data: without the
        evaluations by others."""
        if self.evaluated_by in ("", by):  # those of an earlier version do not say
            return replace(self, evaluated_by=by)
        return replace(self, evaluated_by=by, evaluations=[], evaluated=0)

    @property
    def best(self) -> tuple[int, float] | None:
        """Position and score of the best evaluation; the earliest one if several are equal. NaN is
        worse than any score."""
        if not self.evaluations:
            return None
        numbers = [entry for entry in self.evaluations if not math.isnan(entry[1])]
        candidates = numbers or self.evaluations
        position, score = max(candidates, key=lambda entry: (entry[1], -entry[0]))
        return int(position), score


# before the first step; its numbers of steps and rows are those of no plan
START = State(position=0, step=0, steps=1, global_batch_size=1, settings={})
# of variables that have not been received, or in part: those of no state, or of two
INCOMPLETE = State(position=-1, step=-1, steps=1, global_batch_size=1, settings={})


def first_state(
    plan: Plan,
    settings: dict[str, object],
    saved: State | None,
    continues: bool,
    is_lengthened: bool = False,
) -> State:
    """Where a training by the plan begins: at row 0, or at a saved state, perhaps of another number
    of ranks. The checkpoints of its evaluations are there only if a run `continues`. A state at the
    end of its own plan is at the end of this one, unless the plan `is_lengthened`."""
    saved, rows = saved or START, plan.global_batch_size
    step = saved.step
    if saved.global_batch_size != rows:
        step = -(-saved.position // rows)
    if saved.step >= saved.steps and not is_lengthened:
        step = plan.steps
    return State(
        position=saved.position,
        step=min(step, plan.steps),
        steps=plan.steps,
        global_batch_size=rows,
        settings=settings,
        evaluations=saved.evaluations if continues else [],
        evaluated=saved.evaluated,
        evaluated_by=saved.evaluated_by,
    )
