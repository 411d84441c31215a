"""What Keras 3 has no argument for, at the few places where its `fit` must know that gradients are summed.

Each hook acts only on models whose optimizer is distributed.
"""

import functools
import sys
from typing import Any

import keras
import tensorflow as tf
from keras.src import tree
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.trainers import trainer
from keras.src.trainers.data_adapters.data_adapter_utils import unpack_x_y_sample_weight

from ringbase.errors import InputError
from ringbert.horovod.gradients import GradientMean, examples
from ringbert.horovod.session import current, is_initialized

# Arguments of `compile` and `fit` in the scripts of Horovod's guides.
OBSOLETE = {"experimental_run_tf_function", "workers", "use_multiprocessing", "max_queue_size"}
_installed = False


def install() -> None:
    """Sets the hooks, once."""
    global _installed
    if _installed:
        return
    _installed = True
    trainer.model_supports_jit = _supports_jit(trainer.model_supports_jit)
    TensorFlowTrainer.train_step = _weighted(TensorFlowTrainer.train_step)
    # On the base class: a class with a `compile` of its own is not compiled when it is loaded.
    trainer.Trainer.compile = _without_obsolete(trainer.Trainer.compile)
    TensorFlowTrainer.fit = _without_obsolete(TensorFlowTrainer.fit)
    LossScaleOptimizer.apply = _averaged_first(LossScaleOptimizer.apply)


def supports_jit(model: keras.Model) -> bool:
    """Whether XLA can compile a model's training step."""
    return trainer.model_supports_jit(model)


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer averages gradients over ranks, itself or in a LossScaleOptimizer."""
    return is_distributed_itself(optimizer) or is_distributed_itself(getattr(optimizer, "inner_optimizer", None))


def is_distributed_itself(optimizer: Any) -> bool:
    return isinstance(getattr(optimizer, "gradient_mean", None), GradientMean)


def _supports_jit(original: Any) -> Any:
    """XLA cannot compile a sum that MPI computes on the host."""

    @functools.wraps(original)
    def supports(model: keras.Model) -> bool:
        if is_distributed(getattr(model, "optimizer", None)) and is_initialized():
            session = current()
            if session.world.size > 1 and session.collectives.name != "nccl":
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


def _weighted(original: Any) -> Any:
    """Ranks whose batch has more examples weigh more, so that the mean is that over all examples."""

    @functools.wraps(original)
    def train_step(self: keras.Model, data: Any) -> Any:
        if not is_distributed(self.optimizer):
            return original(self, data)
        with examples(_divisor_of_loss(self, data)):
            return original(self, data)

    return train_step


def _divisor_of_loss(model: keras.Model, data: Any) -> tf.Tensor | None:
    """What this batch's loss is divided by, up to a factor that all ranks share; None if it is not known."""
    reductions = {
        getattr(loss, "reduction", "sum_over_batch_size") for loss in tree.flatten(model.loss) if loss is not None
    }
    x, _, sample_weight = unpack_x_y_sample_weight(data)
    if reductions == {"sum_over_batch_size"}:
        return tf.shape(next(part for part in tree.flatten(x) if part is not None))[0]
    if reductions == {"mean_with_sample_weight"}:
        if sample_weight is None:
            return tf.shape(next(part for part in tree.flatten(x) if part is not None))[0]
        return tf.reduce_sum(sample_weight) if isinstance(sample_weight, tf.Tensor) else None
    return None


def _averaged_first(original: Any) -> Any:
    """The ranks' gradients are averaged before one looks whether they are finite, so that all ranks agree."""

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        if not is_distributed_itself(self.inner_optimizer):
            original(self, grads, trainable_variables)
            return
        inner = self.inner_optimizer
        if inner.num_passes > 1:
            raise InputError(
                "backward_passes_per_step needs an optimizer without loss scaling: give Keras' optimizer "
                "gradient_accumulation_steps instead"
            )
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        object.__setattr__(inner, "_are_averaged", True)
        try:
            original(self, inner.averaged(grads, variables), trainable_variables)
        finally:
            object.__setattr__(inner, "_are_averaged", False)

    return apply
