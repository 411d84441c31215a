"""`DistributedOptimizer`, and models: their broadcast, and loading them from a file."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import keras
import numpy as np
import tensorflow as tf
from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group
from keras.src.trainers import trainer

from ringbase.errors import InputError
from ringbert.horovod.gradients import GradientMean, times, variables_of
from ringbert.horovod.operations import as_written, broadcast_variables
from ringbert.horovod.session import current
from ringbert.horovod.sums import Compression


class Distributed:
    """What `DistributedOptimizer` adds to the class of a Keras optimizer."""

    gradient_mean: GradientMean
    num_passes = 1  # after how many calls of `apply` the gradients are averaged and applied
    averages_passes = False  # else the gradients of these calls are summed
    _are_averaged = False
    _sums: list | None = None

    @as_written
    def apply(self: Any, grads: Sequence, trainable_variables: Sequence | None = None) -> None:
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        grads = list(grads)
        apply = super().apply  # type: ignore[misc]
        averaged = current().averaged
        if self._are_averaged or all(grad is None or averaged.get(id(grad)) is grad for grad in grads):
            apply(grads, variables)
        elif self.num_passes == 1:
            apply(self.gradient_mean(grads, variables), variables)
        else:
            self._collect(apply, grads, variables)

    def register_local_var(self, var: Any) -> None:
        """Lets the gradients of a variable stay on their rank, divided by the number of ranks unless
        scale_local_gradients=False."""
        self.gradient_mean.local[id(var)] = var

    def _collect(self: Any, apply: Any, grads: Sequence, variables: Sequence) -> None:
        """Adds up the gradients of several passes, in variables that no checkpoint holds."""
        if not self.built:
            self.build(variables)
        if self._sums is None:
            with tf.init_scope():
                zeros = [
                    None if g is None else tf.zeros(v.shape, g.dtype)
                    for g, v in zip(grads, variables, strict=True)
                ]
                sums = [None if zero is None else tf.Variable(zero, trainable=False) for zero in zeros]
                object.__setattr__(self, "_sums", [*sums, tf.Variable(0, trainable=False)])
        *sums, count = self._sums
        if [total is None for total in sums] != [grad is None for grad in grads]:
            raise InputError("with backward_passes_per_step all passes must have gradients of the same variables")
        for total, grad in zip(sums, grads, strict=True):
            if total is not None:
                total.assign_add(tf.convert_to_tensor(grad))

        def apply_all() -> tf.Tensor:
            factor = 1 / self.num_passes if self.averages_passes else 1
            own = [None if total is None else total.read_value() for total in sums]
            apply([times(mean, factor) for mean in self.gradient_mean(own, variables)], variables)
            for variable in filter(lambda variable: variable is not None, self._sums):
                variable.assign(tf.zeros_like(variable))
            return tf.constant(True)

        def count_pass() -> tf.Tensor:
            self._iterations.assign_add(1)
            return tf.constant(False)

        tf.cond(tf.equal(count.assign_add(1), self.num_passes), apply_all, count_pass)


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    num_groups: int = 0,
    groups: Any = None,
    use_locking: bool = False,
    **options: Any,
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer average gradients over ranks before it applies them, in `fit` and `apply_gradients`.

    The optimizer itself is changed and returned: its state stays, and it is saved as what it was, so that plain
    Keras loads it. Call it before `model.compile`.

    Args:
      backward_passes_per_step: how many calls' gradients are added up on each rank before a sum over ranks.
      average_aggregated_gradients: divide by `backward_passes_per_step`.
      name, device_dense, device_sparse, num_groups, groups, use_locking: without effect; all gradients are summed
        together.
      options: those of `GradientMean`.

    Raises InputError for something that is not a Keras optimizer, or is distributed already.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise InputError(f"hvd.DistributedOptimizer needs an optimizer of Keras 3, got {kind}")
    if isinstance(optimizer, Distributed):
        raise InputError("this optimizer is distributed already: call hvd.DistributedOptimizer once")
    if backward_passes_per_step < 1:
        raise InputError(f"backward_passes_per_step must be at least 1, got {backward_passes_per_step}")
    own = type(optimizer)
    attributes = {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")} | {
        "gradient_mean": GradientMean(**options),
        "num_passes": backward_passes_per_step,
        "averages_passes": average_aggregated_gradients,
    }
    optimizer.__class__ = type(own.__name__, (Distributed, own), attributes)
    return optimizer


def PartialDistributedOptimizer(
    optimizer: keras.optimizers.Optimizer, *, local_layers: Any = None, **options: Any
) -> keras.optimizers.Optimizer:
    """As `DistributedOptimizer`; the gradients of `local_layers`, a layer or several, stay on their rank."""
    distributed = DistributedOptimizer(optimizer, **options)
    for variable in variables_of(local_layers):
        distributed.register_local_var(variable)
    return distributed


def broadcast_model(model: keras.Model, root_rank: int = 0, local_variables: Sequence = ()) -> None:
    """Gives every rank the weights and the optimizer's state of rank `root_rank`.

    `local_variables` keep their values.
    """
    optimizer, kept = getattr(model, "optimizer", None), {id(variable) for variable in local_variables}
    variables = [variable for variable in model.variables if id(variable) not in kept]
    broadcast_variables([*variables, *(optimizer.variables if optimizer else ())], root_rank)


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
    """Gives a model of an HDF5 file its optimizer's state.

    Keras 3.15 builds the optimizer for no variables, so that `fit` fails with "Unknown variable".
    """
    model.optimizer = optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    optimizer.build(model.trainable_variables)
    with h5py.File(path, "r") as file:
        saved = load_optimizer_weights_from_hdf5_group(file) if "optimizer_weights" in file else []
        values = [np.asarray(value) for value in saved]
    if [tuple(variable.shape) for variable in optimizer.variables] == [value.shape for value in values]:
        optimizer.set_weights(values)
    elif values:
        warnings.warn(f"{path}: the optimizer's state is of another Keras; it starts anew", stacklevel=3)
