"""`DistributedOptimizer`, and the broadcast of variables."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ringbase.errors import InputError
from ringbert.horovod import keras_hooks
from ringbert.horovod.compression import Compression
from ringbert.horovod.gradients import GradientMean, times
from ringbert.horovod.hdf5 import is_hdf5, restore_optimizer
from ringbert.horovod.operations import Average, as_written, check_rank, grouped_broadcast, refuse_process_set
from ringbert.horovod.session import Call, current
from ringbert.horovod.tape import variables_of


class Distributed:
    """What `DistributedOptimizer` adds to the class of a Keras optimizer.

    Attributes:
      gradient_mean: averages the gradients over ranks.
      num_passes: after how many calls of `apply` the gradients are averaged and applied.
      averages_passes: whether the gradients of these calls are averaged; else they are summed.
    """

    gradient_mean: GradientMean
    num_passes = 1
    averages_passes = False
    _are_averaged = False
    _passes: "Passes | None" = None

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

    def averaged(self, grads: Sequence, variables: Sequence) -> list:
        return self.gradient_mean(list(grads), list(variables))

    def _collect(self: Any, apply: Any, grads: Sequence, variables: Sequence) -> None:
        if not self.built:
            self.build(variables)
        if self._passes is None:  # not a part of the optimizer's state, nor of what is saved with it
            object.__setattr__(self, "_passes", Passes(grads, variables))
        passes, weight = self._passes, self.gradient_mean.weight()
        passes.add(times(grads, weight), 1.0 if weight is None else weight)

        def apply_all() -> tf.Tensor:
            means = self.gradient_mean.of_products(passes.sums, variables, passes.weight)
            is_mean_of_passes = self.gradient_mean.op == Average
            if is_mean_of_passes != self.averages_passes:
                means = times(means, self.num_passes if is_mean_of_passes else 1 / self.num_passes)
            apply(means, variables)
            passes.reset()
            return tf.constant(True)

        def count() -> tf.Tensor:
            self._iterations.assign_add(1)
            return tf.constant(False)

        tf.cond(tf.equal(passes.count, self.num_passes), apply_all, count)


class Passes:
    """The sum of the gradients of several passes, in variables that no checkpoint holds."""

    def __init__(self, grads: Sequence, variables: Sequence):
        with tf.init_scope():
            self._sums = [
                None if grad is None else tf.Variable(tf.zeros(variable.shape, grad.dtype), trainable=False)
                for grad, variable in zip(grads, variables, strict=True)
            ]
            self.count = tf.Variable(0, trainable=False)
            self.weight = tf.Variable(0.0, trainable=False, dtype=tf.float64)

    @property
    def sums(self) -> list:
        return [None if total is None else total.read_value() for total in self._sums]

    def add(self, products: Sequence, weight: Any) -> None:
        for total, product in zip(self._sums, products, strict=True):
            if (total is None) != (product is None):
                raise InputError(
                    "with backward_passes_per_step all passes must have gradients of the same variables"
                )
            if total is not None:
                total.assign_add(tf.convert_to_tensor(product))
        self.weight.assign_add(tf.cast(weight, tf.float64))
        self.count.assign_add(1)

    def reset(self) -> None:
        for variable in (*filter(lambda total: total is not None, self._sums), self.count, self.weight):
            variable.assign(tf.zeros_like(variable))


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: str = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    use_locking: bool = False,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer average gradients over ranks before it applies them, in `fit` and `apply_gradients`.

    The optimizer itself is changed and returned: its state stays, and it is saved as what it was, so that plain
    Keras loads it. Call it before `model.compile`.

    Args:
      compression: `Compression.fp16` or `bf16` send half the bytes between machines.
      sparse_as_dense: sum sparse gradients dense, also those of variables of more than 64 MiB.
      op: `Average` or `Sum`.
      backward_passes_per_step: how many calls' gradients are added up on each rank before a sum over ranks.
      average_aggregated_gradients: divide by `backward_passes_per_step`.
      gradient_predivide_factor: without effect, because gradients of half precision are summed in float32.
      scale_local_gradients: divide the gradients of variables of one rank (`register_local_var`) by the ranks.
      name, device_dense, device_sparse, num_groups, groups, use_locking: without effect; all gradients are summed
        together.

    Raises InputError for something that is not a Keras optimizer, or is distributed already.
    """
    refuse_process_set(process_set)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InputError(
            f"hvd.DistributedOptimizer needs an optimizer of Keras 3, got {type(optimizer).__module__}."
            f"{type(optimizer).__qualname__}"
        )
    if isinstance(optimizer, Distributed):
        raise InputError("this optimizer is distributed already: call hvd.DistributedOptimizer once")
    if gradient_predivide_factor != 1 and op != Average:
        raise InputError("gradient_predivide_factor needs op=hvd.Average")
    if backward_passes_per_step < 1:
        raise InputError(f"backward_passes_per_step must be at least 1, got {backward_passes_per_step}")
    own = type(optimizer)
    attributes = {
        "__module__": own.__module__,
        "__qualname__": own.__qualname__,
        "__doc__": own.__doc__,
        "gradient_mean": GradientMean(
            op, compression, sparse_as_dense, scale_local_gradients, facts=facts_of(optimizer)
        ),
        "num_passes": backward_passes_per_step,
        "averages_passes": average_aggregated_gradients,
    }
    optimizer.__class__ = type(own.__name__, (Distributed, own), attributes)
    return optimizer


def facts_of(optimizer: keras.optimizers.Optimizer) -> dict[str, str]:
    """What the ranks' optimizers must have in common. The rate may differ: rank 0 may have loaded a later one."""
    config = optimizer.get_config()
    kept = {name: str(config[name]) for name in sorted(config) if name not in ("name", "learning_rate")}
    return {"the optimizer": type(optimizer).__name__} | {f"the optimizer's {name}": kept[name] for name in kept}


@as_written
def broadcast_variables(variables: Sequence, root_rank: int = 0, process_set: Any = None) -> None:
    """Gives every rank the values of rank `root_rank`."""
    refuse_process_set(process_set)
    session, variables = current(), list(variables)
    check_rank(session, root_rank)
    values = [tf.convert_to_tensor(variable) for variable in variables]
    received = grouped_broadcast(values, root_rank, "variables")
    for variable, value in zip(variables, received, strict=True):
        variable.assign(value)


def broadcast_model(model: keras.Model, root_rank: int = 0, local_variables: Sequence = ()) -> None:
    """Gives every rank the weights and the optimizer's state of rank `root_rank`.

    `local_variables` keep their values.
    """
    optimizer, kept = getattr(model, "optimizer", None), {id(variable) for variable in local_variables}
    if isinstance(optimizer, Distributed):
        session, facts = current(), optimizer.gradient_mean.facts
        session.meet(Call("the comparison of the optimizers"), lambda: session.world.agree(facts))
    variables = [variable for variable in model.variables if id(variable) not in kept]
    broadcast_variables([*variables, *(optimizer.variables if optimizer else ())], root_rank)


def PartialDistributedOptimizer(optimizer: keras.optimizers.Optimizer, *args: Any, **options: Any) -> Any:
    """As `DistributedOptimizer`; the gradients of `local_layers`, a layer or several, stay on their rank."""
    layers = options.pop("local_layers", None)
    distributed = DistributedOptimizer(optimizer, *args, **options)
    for variable in variables_of(layers):
        distributed.register_local_var(variable)
    return distributed


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
        if is_hdf5(filepath):
            restore_optimizer(model, filepath)
        DistributedOptimizer(model.optimizer, compression=compression)
        if model.jit_compile and not keras_hooks.supports_jit(model):
            model.jit_compile = False
    return model
