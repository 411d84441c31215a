"""What Keras 3 has no argument for, at the few places where it must know that gradients are summed; and names of
Keras 2 that the scripts of Horovod's guides use.

`optimizer.variables()` is the list `optimizer.variables`, and `optimizer.lr` is `optimizer.learning_rate`.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.trainers import trainer

from ringbert.horovod.optimizer import Distributed
from ringbert.horovod.session import current, is_initialized

# Arguments of `compile` and `fit` in the scripts of Horovod's guides.
OBSOLETE = {"experimental_run_tf_function", "workers", "use_multiprocessing", "max_queue_size"}


class CallableList(list):
    """A list that returns itself when it is called."""

    def __call__(self) -> "CallableList":
        return self


def install() -> None:
    """Sets the hooks."""
    trainer.model_supports_jit = _supports_jit(trainer.model_supports_jit)
    # On the base class: a class with a `compile` of its own is not compiled when it is loaded.
    trainer.Trainer.compile = _without_obsolete(trainer.Trainer.compile)
    TensorFlowTrainer.fit = _without_obsolete(TensorFlowTrainer.fit)
    LossScaleOptimizer.apply = _averaged_first(LossScaleOptimizer.apply)
    for owner in (BaseOptimizer, LossScaleOptimizer):
        owner.variables = property(functools.partial(_callable_list, owner.variables.fget))
    BaseOptimizer.lr = property(
        lambda optimizer: optimizer.learning_rate,
        lambda optimizer, rate: setattr(optimizer, "learning_rate", rate),
    )


def _callable_list(variables: Callable[[Any], list], optimizer: Any) -> CallableList:
    return CallableList(variables(optimizer))


def _supports_jit(original: Any) -> Any:
    """XLA cannot compile a sum that MPI computes on the host."""

    def supports(model: keras.Model) -> bool:
        optimizer = getattr(model, "optimizer", None)
        is_distributed = isinstance(getattr(optimizer, "inner_optimizer", optimizer), Distributed)
        if is_distributed and is_initialized() and not current().collectives.in_graph:
            return False
        return original(model)

    return supports


def _without_obsolete(original: Any) -> Any:
    """Arguments that Keras 3 has dropped are ignored with a note."""

    @functools.wraps(original)
    def call(self: keras.Model, *args: Any, **options: Any) -> Any:
        dropped = OBSOLETE & options.keys()
        if dropped and (not is_initialized() or current().world.rank == 0):
            names = ", ".join(sorted(dropped))
            print(f"note: {original.__name__}(…, {names}=…) does not exist in Keras 3: ignored", file=sys.stderr)
        return original(self, *args, **{name: value for name, value in options.items() if name not in dropped})

    return call


def _averaged_first(original: Any) -> Any:
    """The ranks' gradients are averaged before one looks whether they are finite, so that all ranks agree."""

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        inner = self.inner_optimizer
        if not isinstance(inner, Distributed):
            original(self, grads, trainable_variables)
            return
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        means = inner.gradient_mean(list(grads), list(variables))
        object.__setattr__(inner, "_are_averaged", True)
        try:
            original(self, means, trainable_variables)
        finally:
            object.__setattr__(inner, "_are_averaged", False)

    return apply
