"""The optimizer that settings name."""

import importlib
from collections.abc import Sequence

from keras.optimizers.schedules import LearningRateSchedule

from bert.optimizers import OPTIMIZERS
from bert.optimizers.adamw import AdamWeightDecay
from bert.optimizers.layers import PartRate
from bert.optimizers.settings import OptimizerSettings


def make_optimizer(
    name: str,
    rate: float | LearningRateSchedule,
    settings: OptimizerSettings | None = None,
    rates: Sequence[PartRate] = (),
) -> AdamWeightDecay:
    """The optimizer of `OPTIMIZERS` with this name, by default with Google's settings and
    one rate for all parts. Call `bert.set_xla_flags` before, for its speed."""
    module, _, kind = OPTIMIZERS[name].partition(":")
    own = settings or OptimizerSettings()
    return getattr(importlib.import_module(module), kind)(
        rate,
        weight_decay_rate=own.weight_decay,
        beta_1=own.adam_beta1,
        beta_2=own.adam_beta2,
        epsilon=own.adam_epsilon,
        bias_correction=own.adam_bias_correction,
        rates=[(rate.pattern, rate.factor) for rate in rates],
    )
