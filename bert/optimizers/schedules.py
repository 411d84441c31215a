"""Schedules of the learning rate: an object for each `--lr_scheduler_type`.

A schedule says which part of its way down from the peak a training has gone, for NumPy (plans,
pages) and for Keras (training) by the same lines: `xp` is one of the two.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

GOOGLES_TIMESCALE = 10_000  # steps, of inverse_sqrt without warmup, as in transformers


class Numbers(NamedTuple):
    """What a schedule depends on; numbers or scalars, float32."""

    train_steps: Any
    warmup_steps: Any
    decay_steps: Any  # at the end, of wsd


class Form(NamedTuple):
    """How a schedule falls."""

    min_ratio: float = 0.0  # the lowest rate after the warmup, as a part of the peak
    power: float = 2.0  # of polynomial
    decay: str = "1-sqrt"  # of wsd: one of DECAYS


# the part of the peak that is left when this part of the decay is done
DECAYS: dict[str, Callable[[Any, Any], Any]] = {
    "1-sqrt": lambda done, xp: 1 - xp.sqrt(done),
    "linear": lambda done, xp: 1 - done,
    "cosine": lambda done, xp: 0.5 * (1 + xp.cos(math.pi * done)),
}


class Schedule(ABC):
    """The rate as a part of the peak: it rises from 0 during the warmup, step / warmup_steps, and
    then is `after_warmup`."""

    name: ClassVar[str]
    summary: ClassVar[str]  # for `--help` and the docs
    reads: ClassVar[tuple[str, ...]] = ("min_lr_ratio",)  # the flags on which it depends

    @abstractmethod
    def after_warmup(self, step: Any, numbers: Numbers, form: Form, xp: Any) -> Any:
        """From 1, the peak, to 0, the lowest rate; `step` counts from 0."""

    def part(self, step: Any, numbers: Numbers, form: Form, xp: Any) -> Any:
        """The rate of a step as a part of the peak."""
        part = self.after_warmup(step, numbers, form, xp)
        if form.min_ratio:
            part = form.min_ratio + (1 - form.min_ratio) * part
        warmed = step / xp.maximum(1.0, numbers.warmup_steps)
        return xp.where(step < numbers.warmup_steps, warmed, part)


def progress(step: Any, numbers: Numbers, xp: Any) -> Any:
    """The part of the steps after the warmup that are done, 0 to 1."""
    after = numbers.train_steps - numbers.warmup_steps
    done = (step - numbers.warmup_steps) / xp.maximum(1.0, after)
    return xp.minimum(xp.maximum(done, 0.0), 1.0)


class Linear(Schedule):
    """As in google-research/bert: 1 - step / train_steps. At the end of the warmup the rate drops
    by warmup_steps / train_steps of the peak, as for published models."""

    name = "linear"
    summary = "Google's: to 0, counted from step 0"

    def after_warmup(self, step: Any, numbers: Numbers, form: Form, xp: Any) -> Any:
        steps_left = numbers.train_steps - xp.minimum(step, numbers.train_steps)
        return steps_left / xp.maximum(1.0, numbers.train_steps)


class LinearFromPeak(Schedule):
    """`get_linear_schedule_with_warmup` of transformers: from the peak to 0, without a jump."""

    name = "linear_from_peak"
    summary = "to 0 from the end of the warmup, as transformers' linear"

    def after_warmup(self, step: Any, numbers: Numbers, form: Form, xp: Any) -> Any:
        return 1 - progress(step, numbers, xp)


class Cosine(Schedule):
    """Half a wave (Loshchilov and Hutter 2017); `get_cosine_schedule_with_warmup` of
    transformers."""

    name = "cosine"
    summary = "half a cosine wave to 0"

    def after_warmup(self, step: Any, numbers: Numbers, form: Form, xp: Any) -> Any:
        return 0.5 * (1 + xp.cos(math.pi * progress(step, numbers, xp)))


class Constant(Schedule):
    """`get_constant_schedule_with_warmup` of transformers."""

    name = "constant"
    summary = "stays at the peak"
    reads = ()

    def after_warmup(self, step: Any, numbers: Numbers, form: Form, xp: Any) -> Any:
        return xp.ones_like(step)


class InverseSqrt(Schedule):
    """`get_inverse_sqrt_schedule` of transformers: falls as 1 / sqrt(step)."""

    name = "inverse_sqrt"
    summary = "falls as 1 / sqrt(step)"

    def after_warmup(self, step: Any, numbers: Numbers, form: Form, xp: Any) -> Any:
        has_warmup = numbers.warmup_steps > 0
        timescale = xp.where(has_warmup, numbers.warmup_steps, float(GOOGLES_TIMESCALE))
        shift = timescale - numbers.warmup_steps
        return xp.minimum(1.0, 1 / xp.sqrt(xp.maximum(1.0, step + shift) / timescale))


class Polynomial(Schedule):
    """`get_polynomial_decay_schedule_with_warmup` of transformers."""

    name = "polynomial"
    summary = "the part that is left, to the power of --lr_power"
    reads = "min_lr_ratio", "lr_power"

    def after_warmup(self, step: Any, numbers: Numbers, form: Form, xp: Any) -> Any:
        return xp.power(1 - progress(step, numbers, xp), form.power)


class WarmupStableDecay(Schedule):
    """Warmup, stable, decay: the peak until the last `decay_steps`, in which the rate falls (Hägele
    et al. 2024, section 3; ModernBERT). Until then its rates are those of any longer one."""

    name = "wsd"
    summary = "stays at the peak, and falls in the last --num_decay_steps"
    reads = "min_lr_ratio", "lr_decay_type", "num_decay_steps", "decay_proportion"

    def after_warmup(self, step: Any, numbers: Numbers, form: Form, xp: Any) -> Any:
        left = numbers.train_steps - xp.minimum(step, numbers.train_steps)
        done = 1 - left / xp.maximum(1.0, numbers.decay_steps)
        return DECAYS[form.decay](xp.maximum(done, 0.0), xp)


_ALL: tuple[Schedule, ...] = (
    Linear(),
    LinearFromPeak(),
    Cosine(),
    Constant(),
    InverseSqrt(),
    Polynomial(),
    WarmupStableDecay(),
)
SCHEDULES = {schedule.name: schedule for schedule in _ALL}
# the flags of which some schedules read only some
READ_BY_SOME = {flag for schedule in _ALL for flag in schedule.reads}
