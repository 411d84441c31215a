"""Names of Keras 2's optimizers that the scripts of Horovod's guides use, for the optimizers of Keras 3.

`optimizer.variables()` is the list `optimizer.variables`, and `optimizer.lr` is `optimizer.learning_rate`.
"""

from typing import Any

from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer


class CallableList(list):
    """A list that returns itself when it is called."""

    def __call__(self) -> "CallableList":
        return self


def install() -> None:
    """Adds the names to the classes of Keras, once."""
    if isinstance(getattr(BaseOptimizer, "lr", None), property):
        return
    for owner in (BaseOptimizer, LossScaleOptimizer):
        if "variables" in vars(owner):
            owner.variables = _callable(owner.variables)
    BaseOptimizer.lr = property(_learning_rate, _set_learning_rate)


def _callable(variables: property) -> property:
    getter = variables.fget
    assert getter is not None
    return property(lambda optimizer: CallableList(getter(optimizer)), doc=variables.__doc__)


def _learning_rate(optimizer: Any) -> Any:
    return optimizer.learning_rate


def _set_learning_rate(optimizer: Any, rate: Any) -> None:
    optimizer.learning_rate = rate
