"""The settings of optimizers and schedules; defaults are Google's, names those of transformers'
`TrainingArguments`. Without TensorFlow."""

from typing import Any, Literal

from bert.optimizers import OPTIMIZERS
from bert.optimizers.schedules import DECAYS, READ_BY_SOME, SCHEDULES, Form, Numbers
from ringbase.settings import Settings, setting

OptimizerName = Literal[*OPTIMIZERS]  # type: ignore[valid-type]
ScheduleName = Literal[*SCHEDULES]  # type: ignore[valid-type]
DecayName = Literal[*DECAYS]  # type: ignore[valid-type]


class OptimizerSettings(Settings):
    """How gradients become updates."""

    weight_decay: float = setting(
        0.01,
        "decoupled weight decay of all but biases and layer norms",
        "optimizer",
        at_least=0,
        at_most=10,
        changes="training",
    )
    adam_beta1: float = setting(
        0.9,
        "decay of the first moment",
        "optimizer",
        at_least=0,
        at_most=0.999999,
        changes="training",
    )
    adam_beta2: float = setting(
        0.999,
        "decay of the second moment",
        "optimizer",
        at_least=0,
        at_most=0.9999999,
        changes="training",
    )
    adam_epsilon: float = setting(
        1e-6,
        "added to the root of the second moment",
        "optimizer",
        at_least=1e-12,
        at_most=1,
        changes="training",
    )
    adam_bias_correction: bool = setting(
        False,
        "correct the moments' bias of the first steps, as Adam and PyTorch do and BERT does not;"
        " for small training sets (Mosbach et al. 2021)",
        "optimizer",
        changes="training",
    )
    max_grad_norm: float = setting(
        1.0,
        "gradients whose norm over all variables is larger are scaled to it; 0: never",
        "optimizer",
        at_least=0,
        at_most=1e9,
        changes="training",
    )


class ScheduleSettings(Settings):
    """How the learning rate changes."""

    lr_scheduler_type: ScheduleName = setting(
        "linear",
        "the rate after the warmup: "
        + "; ".join(f"{each.name}: {each.summary}" for each in SCHEDULES.values()),
        "optimizer",
        changes="training",
    )
    min_lr_ratio: float = setting(
        0.0,
        "the lowest rate after the warmup, as a share of the peak",
        "optimizer",
        at_least=0,
        at_most=1,
        changes="training",
    )
    lr_power: float = setting(
        2.0,
        "the power of the schedule polynomial",
        "optimizer",
        at_least=0.01,
        at_most=100,
        changes="training",
    )
    lr_decay_type: DecayName = setting(
        "1-sqrt",
        "how the rate of the schedule wsd falls at its end",
        "optimizer",
        changes="training",
    )

    @property
    def form(self) -> Form:
        return Form(self.min_lr_ratio, self.lr_power, self.lr_decay_type)

    def rates(self, numbers: Numbers, peak: float, steps: Any, xp: Any) -> Any:
        """The learning rates of steps, an array of `xp`, NumPy or Keras, which count from 0."""
        schedule = SCHEDULES[self.lr_scheduler_type]
        return peak * schedule.part(steps, numbers, self.form, xp)

    def unread(self) -> tuple[str, ...]:
        """The flags that this schedule does not read."""
        return tuple(sorted(READ_BY_SOME.difference(SCHEDULES[self.lr_scheduler_type].reads)))
