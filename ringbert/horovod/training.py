"""What trains: the tape, the optimizer, models from files, and the places where Keras 3 must know
of them."""

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import h5py  # type: ignore[import-untyped]
import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.optimizers.multi_optimizer import MultiOptimizer
from keras.src.saving import object_registration
from keras.src.trainers import trainer

from ringbase.errors import InputError
from ringbert.horovod.operations import (
    OF_BACKEND,
    SUMS,
    Average,
    Compression,
    allreduce,
    checked_op,
    grouped_allreduce,
)
from ringbert.horovod.process_sets import ProcessSet, session_of
from ringbert.horovod.session import PAGE, as_written, current, is_initialized

# Sparse gradients of a variable up to this size are summed dense: the memory does not grow with the
# ranks.
MOST_DENSE_BYTES = 1 << 26

# Keras 3.15 writes these names of losses into HDF5 files, and does not find them when it reads.
SHORT_LOSSES = ("mse", "mae", "mape", "msle", "bce", "kld")

# In its configuration a distributed optimizer's name ends with this and its options.
MARK = ".hvd."

# Arguments that Horovod's versions take by position, after the tape, or the optimizer and its name.
# `horovod.tensorflow` has `use_locking` before those of an optimizer.
POSITIONS = ("device_dense", "device_sparse", "compression", "sparse_as_dense")
POSITIONS_OF_TAPE = (*POSITIONS, "op", "gradient_predivide_factor", "num_groups", "groups")

# What a tape has averaged, by its id; an optimizer does not average it again.
means_of_tapes: Any = weakref.WeakValueDictionary()


@dataclass(eq=False, kw_only=True)
class GradientMean:
    """Averages lists of gradients over ranks. Its fields are options of the tape and the
    optimizer."""

    op: str = Average  # or Sum, which does not divide
    compression: Any = Compression.none  # fp16 and bf16 send half the bytes between machines
    sparse_as_dense: bool = False  # also sparse gradients of variables of more than 64 MiB
    local_layers: Any = None  # a layer, or several, whose gradients stay on their rank
    # as an average does with a part of the loss that only one rank has
    scale_local_gradients: bool = True
    # Without effect: all gradients are summed together, those of half precision in float32.
    gradient_predivide_factor: float = 1.0
    device_dense: str = ""
    device_sparse: str = ""
    num_groups: int = 0
    groups: Any = None
    process_set: ProcessSet | None = None  # the ranks, if not all
    # variables of this rank, by their id
    local: dict = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        checked_op(self.op, SUMS, "a sum of gradients")
        for layer in () if self.local_layers is None else tf.nest.flatten(self.local_layers):
            if not isinstance(layer, keras.layers.Layer) or not layer.built:
                raise InputError(
                    f"local_layers must be layers of Keras that are built, got {layer!r:.100}"
                )
            self.local |= {id(variable): variable for variable in layer.trainable_weights}

    @property
    def has_own_compressor(self) -> bool:
        """Whether the user's class compresses, which works on the host."""
        return self.compression not in (Compression.none, *OF_BACKEND)

    def __call__(self, gradients: Sequence, variables: Sequence) -> list:
        """The means over ranks of gradients of `variables`; None stays None.

        Raises InputError if the gradients differ in shape or dtype among the ranks.
        """
        results = list(gradients)
        own = {}
        for place, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if id(variable) not in self.local:
                is_sparse = isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense
                if is_sparse and np.prod(variable.shape) * gradient.dtype.size > MOST_DENSE_BYTES:
                    own[place] = gradient
                else:
                    own[place] = tf.convert_to_tensor(gradient)
            elif self.scale_local_gradients:
                size = session_of(self.process_set).world.size
                results[place] = tf.math.scalar_mul(1 / size, gradient)
        means = self._means([*own.values()])
        for place, mean in zip(own, means, strict=True):
            results[place] = mean
        return results

    def _means(self, own: list) -> list:
        session = session_of(self.process_set)
        is_sparse = any(isinstance(gradient, tf.IndexedSlices) for gradient in own)
        is_on_host = tf.executing_eagerly() or session.collectives is session.host
        if is_sparse or is_on_host or self.has_own_compressor or not own:
            options = {"op": self.op, "compression": self.compression, "name": "gradients"}
            return grouped_allreduce(own, **options, process_set=self.process_set)
        dtypes = [value.dtype for value in own]
        wide = tf.float64 if tf.float64 in dtypes else tf.float32
        widened = [tf.cast(value, wide) for value in own]
        totals = session.collectives.all_reduce_sum(widened)
        divisor = session.world.size if self.op == Average else 1
        means = [total / divisor for total in totals]
        return [*map(tf.cast, means, dtypes)]


class DistributedTape(tf.GradientTape):
    """A gradient tape whose `gradient` averages over ranks."""

    gradient_mean: GradientMean

    def register_local_source(self, source) -> None:
        """Lets the gradients of a variable stay on their rank."""
        self.gradient_mean.local[id(source)] = source

    @as_written
    def gradient(self, target, sources, output_gradients=None, **options) -> Any:
        """As `tf.GradientTape.gradient`, averaged over ranks; the same on every rank."""
        gradients = super().gradient(target, sources, output_gradients, **options)
        variables = tf.nest.flatten(sources)
        means = self.gradient_mean(tf.nest.flatten(gradients), variables)
        means_of_tapes.update({id(mean): mean for mean in means if mean is not None})
        return tf.nest.pack_sequence_as(sources, means)

    def get_local_and_global_gradients(self, target, sources, *args) -> tuple[list, list]:
        """Pairs of variable and gradient: of variables of this rank, and of those of all ranks."""
        variables = tf.nest.flatten(sources)
        gradients = self.gradient(target, variables, *args)
        of_rank, of_all = list[tuple](), list[tuple]()
        for variable, gradient in zip(variables, gradients, strict=True):
            pairs = of_rank if id(variable) in self.gradient_mean.local else of_all
            pairs.append((variable, gradient))
        return of_rank, of_all


def by_position(what: str, names: Sequence[str], values: Sequence) -> dict[str, Any]:
    """Arguments that a script gives by position, as in some version of Horovod."""
    if len(values) > len(names):
        raise InputError(
            f"{what}: give arguments after {names[-1]} by name, as op=hvd.Sum: their order was"
            f" another one in other versions of Horovod ({PAGE})"
        )
    return dict(zip(names, values, strict=False))


@as_written
def DistributedGradientTape(gradtape: tf.GradientTape, *positional, **options) -> DistributedTape:
    """A tape, new or recorded, whose `gradient` averages over ranks. The options are those of
    `GradientMean`."""
    options |= by_position("hvd.DistributedGradientTape", POSITIONS_OF_TAPE, positional)
    tape = DistributedTape.__new__(DistributedTape)
    tape.__dict__.update(gradtape.__dict__)  # with what it has recorded
    tape.gradient_mean = GradientMean(**options)
    return tape


class Distributed:
    """What `DistributedOptimizer` adds to the class of a Keras optimizer."""

    keras_class: type
    gradient_mean: GradientMean
    passes: int  # `backward_passes_per_step`
    factor: int  # of accumulated gradients, of which Keras takes the mean
    # a LossScaleOptimizer averages gradients before it looks whether they are finite
    has_means = False
    _to_average: Sequence | None = None  # the variables whose gradients `_clip_gradients` averages

    @property
    def iterations(self: Any):
        """As Horovod, all passes; Keras counts the updates."""
        return self._iterations if self.passes > 1 else super().iterations  # type: ignore[misc]

    def averaged(self: Any, grads, trainable_variables) -> list:
        """The means over ranks of gradients that `apply` gets, unless they are means already."""
        if self.is_averaged(grads):
            return list(grads)
        known = self._trainable_variables if trainable_variables is None else trainable_variables
        return self.gradient_mean(list(grads), list(known))

    def is_averaged(self, grads) -> bool:
        return self.has_means or all(means_of_tapes.get(id(grad)) is grad for grad in grads)

    def apply(self: Any, grads, trainable_variables=None):
        if isinstance(self, MultiOptimizer):  # its parts clip and update, it does not
            grads = self.averaged(grads, trainable_variables)
        super().apply(grads, trainable_variables)  # type: ignore[misc]

    @as_written
    def _backend_apply_gradients(self: Any, grads, trainable_variables):
        to_average = None if self.is_averaged(grads) else trainable_variables
        object.__setattr__(self, "_to_average", to_average)
        if self.gradient_accumulation_steps:  # Keras adds no sparse gradients
            grads = [tf.convert_to_tensor(grad) for grad in grads]
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self: Any, grads):
        """Keras calls it right before it uses gradients, so not in steps that only accumulate
        them."""
        if self.factor != 1:
            grads = [grad * self.factor for grad in grads]
        if self._to_average is not None:
            grads = self.gradient_mean(grads, self._to_average)
        return super()._clip_gradients(grads)  # type: ignore[misc]

    def register_local_var(self, var) -> None:
        """Lets the gradients of a variable stay on their rank."""
        self.gradient_mean.local[id(var)] = var

    def get_config(self: Any):
        """That of the Keras optimizer, with the options in its name for `_distributed_again`."""
        options = f"{self.gradient_mean.op}.{self.passes}.{self.factor}"
        return super().get_config() | {"name": f"{self.name}{MARK}{options}"}  # type: ignore[misc]


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    *positional,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    use_locking: bool = False,
    **options,
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer average gradients over ranks before it applies them, in `fit` and
    `apply_gradients`.

    The optimizer itself is changed and returned: its state stays, and it is saved as what it was,
    so that plain Keras loads it. Call it before `model.compile`. The gradients of
    `backward_passes_per_step` calls are added up on each rank before a sum over ranks, and divided
    by it with `average_aggregated_gradients`. `name` and `use_locking` are without effect; the
    options are those of `GradientMean`.

    A copy, and what is loaded from a file, is distributed too. It keeps `op` and the passes;
    another call can give it more options.
    """
    patch_keras()
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InputError(
            f"hvd.DistributedOptimizer needs an optimizer of Keras 3, got {type(optimizer)}"
            f" ({PAGE})"
        )
    if positional and isinstance(positional[0], bool):
        positional = positional[1:]
    options |= by_position("hvd.DistributedOptimizer", POSITIONS, positional)
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if any(isinstance(part, Distributed) for part in getattr(inner, "optimizers", ())):
        raise InputError("the parts of this MultiOptimizer are distributed already: that is enough")
    passes, old_passes = backward_passes_per_step, 1
    factor = 1 if average_aggregated_gradients else passes
    keras_class = type(inner)
    if isinstance(inner, Distributed):
        keras_class, old_passes = inner.keras_class, inner.passes
        options = {"op": inner.gradient_mean.op} | options
        if passes == 1:
            passes, factor = inner.passes, inner.factor
    if passes != old_passes:
        if inner.built or old_passes > 1:
            raise InputError(
                "backward_passes_per_step needs a new optimizer, which has applied no gradients"
            )
        if isinstance(inner, MultiOptimizer):
            instead = "give its parts gradient_accumulation_steps"
            raise InputError(f"backward_passes_per_step is not for a MultiOptimizer: {instead}")
        inner.gradient_accumulation_steps = passes * (inner.gradient_accumulation_steps or 1)
    # With `_unpickle_model` a pickle names Keras' class.
    names = ("__module__", "__qualname__", "__doc__", "_unpickle_model")
    attributes = {name: getattr(keras_class, name) for name in names}
    attributes |= {"keras_class": keras_class, "passes": passes, "factor": factor}
    attributes["gradient_mean"] = GradientMean(**options)
    inner.__class__ = type(keras_class.__name__, (Distributed, keras_class), attributes)
    registered = object_registration.GLOBAL_CUSTOM_NAMES
    if keras_class in registered:  # a user's own, which files and copies name so
        registered[type(inner)] = registered[keras_class]
    return optimizer


@keras.saving.register_keras_serializable(package="ringbert")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """As `keras.layers.BatchNormalization`, with the mean and variance of the batches of all ranks
    in training.

    As in Horovod, all ranks' batches count the same. Its arguments are those of Keras; `fused` is
    without effect.
    """

    def __init__(self, fused: bool = False, **options):
        super().__init__(**options)

    def _moments(self, inputs, mask):
        mean, variance = super()._moments(inputs, mask)
        mean_of_all = allreduce(mean, name="mean of a batch")
        # Not the mean of squares less the square of the mean, whose digits would cancel.
        spread = variance + tf.math.squared_difference(mean, mean_of_all)
        return mean_of_all, allreduce(spread, name="variance of a batch")


def load_model(
    filepath,
    custom_optimizers=None,
    custom_objects=None,
    compression=Compression.none,
    legacy_opts: bool = False,
) -> keras.Model:
    """As `keras.models.load_model`, with an optimizer that is distributed, in the state in which it
    was saved.

    `custom_optimizers`: classes of optimizers that the file names. `legacy_opts` is without effect.
    """
    patch_keras()
    shorts = [*SHORT_LOSSES, *map(str.upper, SHORT_LOSSES)]
    objects = {name: keras.losses.get(name) for name in shorts}
    objects |= {kind.__name__: kind for kind in custom_optimizers or ()}
    objects |= custom_objects or {}
    model = keras.models.load_model(filepath, objects)
    if getattr(model, "optimizer", None) is not None:
        if Path(filepath).suffix in (".h5", ".hdf5"):
            _restore_optimizer(model, filepath)
        DistributedOptimizer(model.optimizer, compression=compression)
        model.jit_compile = model.jit_compile and trainer.model_supports_jit(model)
    return model


def _restore_optimizer(model: keras.Model, path) -> None:
    """Keras 3.15 builds the optimizer of an HDF5 file for no variables, so that `fit` fails."""
    config = model.optimizer.get_config()
    model.optimizer = optimizer = type(model.optimizer).from_config(config)
    optimizer.build(model.trainable_variables)
    variables = optimizer.variables  # set_weights forgets those in a LossScaleOptimizer
    shapes = [variable.shape for variable in variables]
    with h5py.File(path) as file:
        saved = load_optimizer_weights_from_hdf5_group(file) if "optimizer_weights" in file else []
        # If not, the file is of another Keras, and Keras has warned that the optimizer starts anew.
        if [value.shape for value in saved] == shapes:
            for variable, value in zip(variables, saved, strict=True):
                variable.assign(value[()])


class CallableList(list):
    """A list that returns itself when it is called: `optimizer.variables()` is
    `optimizer.variables`."""

    def __call__(self) -> "CallableList":
        return self


def _supports_jit(original: Callable[..., bool], model: keras.Model) -> bool:
    """XLA cannot compile a sum that MPI computes on the host, or a compressor there."""
    optimizer = getattr(model, "optimizer", None)
    inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
    is_distributed = isinstance(inner, Distributed) and is_initialized()
    if is_distributed and (
        not session_of(inner.gradient_mean.process_set).collectives.in_xla
        or inner.gradient_mean.has_own_compressor
    ):
        return False
    return original(model)


def _without_obsolete(original: Callable, *args, **options):
    """Arguments of `compile` and `fit` that Keras 3 has dropped are ignored with a note."""
    obsolete = {"experimental_run_tf_function", "workers", "use_multiprocessing", "max_queue_size"}
    dropped = sorted(obsolete & options.keys())
    if dropped and not (is_initialized() and current().world.rank):
        place = f"{original.__name__}(…, {', '.join(dropped)}=…)"
        print(f"note: {place} does not exist in Keras 3: ignored", file=sys.stderr)
    for name in dropped:
        del options[name]
    return original(*args, **options)


def _averaged_first(
    original: Callable, optimizer, grads: Sequence, trainable_variables=None
) -> None:
    """The ranks' gradients are averaged before one looks whether they are finite, so that all ranks
    agree."""
    inner = optimizer.inner_optimizer
    if isinstance(inner, Distributed):
        object.__setattr__(inner, "has_means", False)
        grads = inner.averaged(grads, trainable_variables)
        object.__setattr__(inner, "has_means", True)
    original(optimizer, grads, trainable_variables)


def _distributed_again(original):
    """A `from_config` that makes a distributed optimizer from the configuration of one.

    Copies, pickles and files all go through it.
    """

    def from_config(cls, config, custom_objects=None):
        cls = getattr(cls, "keras_class", cls)
        name, mark, options = str(config.get("name", "")).rpartition(MARK)
        if not mark:
            return original(cls, config, custom_objects)
        op, passes, factor = options.split(".")
        num_passes = int(passes)
        config = config | {"name": name}
        if num_passes > 1:
            steps = config["gradient_accumulation_steps"] // num_passes
            config["gradient_accumulation_steps"] = steps if steps > 1 else None
        return DistributedOptimizer(
            original(cls, config, custom_objects),
            op=op,
            backward_passes_per_step=num_passes,
            average_aggregated_gradients=factor == "1",
        )

    return classmethod(functools.wraps(original)(from_config))


class Patch(NamedTuple):
    """An attribute of Keras that is replaced."""

    owner: Any
    name: str
    made: Callable[[Any], Any]  # what takes its place, from the owner
    why: str


def _around(name: str, wrapper: Callable[..., Any]) -> Callable[[Any], Any]:
    """What makes the function `name` of an owner `wrapper(original, …)`."""

    def made(owner):
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args, **options):
            return wrapper(original, *args, **options)

        return wrapped

    return made


def _loaded(owner):
    return _distributed_again(owner.from_config.__func__)


def _callable_variables(owner):
    get = owner.variables.fget
    return property(lambda self: CallableList(get(self)))


OBSOLETE = "arguments that Keras 3 has dropped stand in old scripts"
CALLED = "old scripts call what is a list in Keras 3"
OLD_NAME = "Horovod's guides use this name of Keras 2"
LOADED = "what is loaded or copied from a distributed optimizer is distributed"
OPTIMIZERS = (BaseOptimizer, LossScaleOptimizer, MultiOptimizer)
# What Keras 3 has no argument for, and names of Keras 2.
PATCHES = (
    Patch(
        trainer,
        "model_supports_jit",
        _around("model_supports_jit", _supports_jit),
        "XLA cannot compile a sum on the host, and Keras would try",
    ),
    # On the base class: a class with a `compile` of its own is not compiled when it is loaded.
    Patch(trainer.Trainer, "compile", _around("compile", _without_obsolete), OBSOLETE),
    Patch(TensorFlowTrainer, "fit", _around("fit", _without_obsolete), OBSOLETE),
    Patch(
        LossScaleOptimizer,
        "apply",
        _around("apply", _averaged_first),
        "all ranks must agree on whether a step is skipped",
    ),
    *(
        Patch(
            owner,
            "from_config",
            _loaded,
            LOADED,
        )
        for owner in (BaseOptimizer, MultiOptimizer)
    ),
    *(Patch(owner, "lr", lambda owner: owner.learning_rate, OLD_NAME) for owner in OPTIMIZERS),
    *(Patch(owner, "variables", _callable_variables, CALLED) for owner in OPTIMIZERS),
)


@functools.cache
def patch_keras() -> None:
    """Makes the replacements of `PATCHES`, once: at `hvd.init`, or before it at the first
    distributed optimizer."""
    for patch in PATCHES:
        setattr(patch.owner, patch.name, patch.made(patch.owner))
