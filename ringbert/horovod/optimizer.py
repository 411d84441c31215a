"""`DistributedOptimizer`, `SyncBatchNormalization`, models from files, and the places where Keras 3 must know of
them."""

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.trainers import trainer

from ringbase.errors import InputError
from ringbert.horovod.gradients import GradientMean, are_means
from ringbert.horovod.operations import Compression, allreduce
from ringbert.horovod.session import as_written, current, is_initialized, rank, size


class Distributed:
    """What `DistributedOptimizer` adds to the class of a Keras optimizer."""

    gradient_mean: GradientMean
    factor = 1.0  # of accumulated gradients, of which Keras takes the mean
    has_means = False  # a LossScaleOptimizer averages gradients before it looks whether they are finite
    _to_average: Sequence | None = None  # the variables whose gradients `_clip_gradients` averages

    @as_written
    def _backend_apply_gradients(self: Any, grads: Sequence, trainable_variables: Sequence) -> None:
        is_done = self.has_means or are_means(grads)
        object.__setattr__(self, "_to_average", None if is_done else trainable_variables)
        if self.gradient_accumulation_steps:  # Keras adds no sparse gradients
            grads = [tf.convert_to_tensor(grad) for grad in grads]
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self: Any, grads: Sequence) -> Sequence:
        """Keras calls it right before it uses gradients, so not in steps that only accumulate them."""
        if self.factor != 1:
            grads = [grad * self.factor for grad in grads]
        if self._to_average is not None:
            grads = self.gradient_mean(grads, self._to_average)
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def register_local_var(self, var: Any) -> None:
        """Lets the gradients of a variable stay on their rank."""
        self.gradient_mean.local[id(var)] = var


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    use_locking: bool = False,
    **options: Any,
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer average gradients over ranks before it applies them, in `fit` and `apply_gradients`.

    The optimizer itself is changed and returned: its state stays, and it is saved as what it was, so that plain
    Keras loads it. Call it before `model.compile`. The gradients of `backward_passes_per_step` calls are added up
    on each rank before a sum over ranks, by the optimizer's gradient_accumulation_steps, and divided by it with
    `average_aggregated_gradients`. `name` and `use_locking` are without effect; the options are those of
    `GradientMean`.

    Raises InputError for something that is not a Keras optimizer, or is distributed already.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise InputError(f"hvd.DistributedOptimizer needs an optimizer of Keras 3, got {kind}")
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if isinstance(inner, Distributed):
        raise InputError("this optimizer is distributed already: call hvd.DistributedOptimizer once")
    own = type(inner)
    attributes = {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")}
    attributes["gradient_mean"] = GradientMean(**options)
    if backward_passes_per_step > 1:
        if inner.built:
            raise InputError("backward_passes_per_step needs a new optimizer, which has applied no gradients")
        inner.gradient_accumulation_steps = backward_passes_per_step * (inner.gradient_accumulation_steps or 1)
        attributes["factor"] = 1 if average_aggregated_gradients else backward_passes_per_step
        attributes["iterations"] = property(lambda self: self._iterations)  # as Horovod, Keras counts the updates
    inner.__class__ = type(own.__name__, (Distributed, own), attributes)
    return optimizer


PartialDistributedOptimizer = DistributedOptimizer  # with `local_layers`


@keras.saving.register_keras_serializable(package="ringbert")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """As `keras.layers.BatchNormalization`, with the mean and variance of the batches of all ranks in training.

    As in Horovod, all ranks' batches count the same. Its arguments are those of Keras; `fused` is without effect.
    """

    def __init__(self, fused: bool = False, **options: Any):
        super().__init__(**options)

    def _moments(self, inputs: tf.Tensor, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
        mean, variance = super()._moments(inputs, mask)
        if size() == 1:
            return mean, variance
        own = tf.stack([mean, variance + tf.square(mean)])
        mean, mean_of_square = tf.unstack(allreduce(own, name=f"moments of {self.name}"))
        return mean, mean_of_square - tf.square(mean)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> keras.Model:
    """As `keras.models.load_model`, with an optimizer that is distributed, in the state in which it was saved.

    `custom_optimizers`: classes of optimizers that the file names. `legacy_opts` is without effect.
    """
    objects = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        if Path(filepath).suffix in (".h5", ".hdf5"):
            _restore_optimizer(model, filepath)
        DistributedOptimizer(model.optimizer, compression=compression)
        model.jit_compile = model.jit_compile and trainer.model_supports_jit(model)
    return model


def _restore_optimizer(model: keras.Model, path: Any) -> None:
    """Keras 3.15 builds the optimizer of an HDF5 file for no variables: `fit` fails with "Unknown variable"."""
    model.optimizer = optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    optimizer.build(model.trainable_variables)
    with h5py.File(path) as file:
        saved = load_optimizer_weights_from_hdf5_group(file) if "optimizer_weights" in file else []
        if [value.shape for value in saved] == [tuple(variable.shape) for variable in optimizer.variables]:
            optimizer.set_weights([value[()] for value in saved])
        elif saved:
            warnings.warn(f"{path}: the optimizer's state is of another Keras; it starts anew", stacklevel=3)


# ---- what Keras 3 has no argument for, and names of Keras 2 that the scripts of Horovod's guides use ------------

# Arguments of `compile` and `fit`.
OBSOLETE = {"experimental_run_tf_function", "workers", "use_multiprocessing", "max_queue_size"}


class CallableList(list):
    """A list that returns itself when it is called: `optimizer.variables()` is `optimizer.variables`."""

    def __call__(self) -> "CallableList":
        return self


def _replace(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Lets `owner.name` be `wrapper(original, …)`."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(lambda *args, **options: wrapper(original, *args, **options)))


def _supports_jit(original: Callable[..., bool], model: keras.Model) -> bool:
    """XLA cannot compile a sum that MPI computes on the host."""
    optimizer = getattr(model, "optimizer", None)
    is_distributed = isinstance(getattr(optimizer, "inner_optimizer", optimizer), Distributed)
    sums_on_host = is_distributed and is_initialized() and not current().collectives.in_graph
    return not sums_on_host and original(model)


def _without_obsolete(original: Callable[..., Any], model: keras.Model, *args: Any, **options: Any) -> Any:
    """Arguments that Keras 3 has dropped are ignored with a note."""
    dropped = sorted(OBSOLETE & options.keys())
    if dropped and not (is_initialized() and rank()):
        place = f"{original.__name__}(…, {', '.join(dropped)}=…)"
        print(f"note: {place} does not exist in Keras 3: ignored", file=sys.stderr)
    return original(model, *args, **{name: value for name, value in options.items() if name not in dropped})


def _averaged_first(
    original: Callable[..., None], optimizer: Any, grads: Sequence, trainable_variables: Any = None
) -> None:
    """The ranks' gradients are averaged before one looks whether they are finite, so that all ranks agree."""
    inner = optimizer.inner_optimizer
    if isinstance(inner, Distributed):
        variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        grads = inner.gradient_mean(list(grads), list(variables))
        object.__setattr__(inner, "has_means", True)
    original(optimizer, grads, trainable_variables)


_replace(trainer, "model_supports_jit", _supports_jit)
# On the base class: a class with a `compile` of its own is not compiled when it is loaded.
_replace(trainer.Trainer, "compile", _without_obsolete)
_replace(TensorFlowTrainer, "fit", _without_obsolete)
_replace(LossScaleOptimizer, "apply", _averaged_first)
for _owner in (BaseOptimizer, LossScaleOptimizer):
    _owner.lr = _owner.learning_rate
    _owner.variables = property(lambda self, get=_owner.variables.fget: CallableList(get(self)))  # type: ignore[misc]
