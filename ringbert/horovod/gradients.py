"""`DistributedGradientTape`, and the mean of gradients over ranks, with a comparison of variables on the way."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distributed import arrays
from ringbase.errors import InputError
from ringbert.horovod.absent import Unsupported, refuse_process_set
from ringbert.horovod.operations import as_written, over_ranks
from ringbert.horovod.session import COMPARISON, Call, current
from ringbert.horovod.sums import Average, Compression, Reduction, Sum, means_in_graph

# Sparse gradients of a variable up to this size are summed dense: the memory does not grow with the ranks.
MOST_DENSE_BYTES = 1 << 26
ROUNDING = 1e-3  # larger differences of a sum, relative to the norm, are no rounding


@dataclass(eq=False, kw_only=True)
class GradientMean:
    """Averages lists of gradients over ranks.

    Args:
      op: `Average`, or `Sum`, which does not divide.
      compression: `Compression.fp16` and `bf16` send half the bytes between machines.
      sparse_as_dense: sum sparse gradients dense, also those of variables of more than 64 MiB.
      scale_local_gradients: divide the gradients of `local` by the number of ranks, because an average does so to
        a part of the loss that only one rank has.
      gradient_predivide_factor: without effect, because gradients of half precision are summed in float32.
      local: variables whose gradients stay on their rank, by their id.
    """

    op: str = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    scale_local_gradients: bool = True
    gradient_predivide_factor: float = 1.0
    process_set: Any = None
    local: dict[int, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        refuse_process_set(self.process_set)
        if self.op not in (Average, Sum):
            raise Unsupported(f"gradients can be averaged or summed (op=hvd.Average or hvd.Sum), got op={self.op}")
        if self.gradient_predivide_factor != 1 and self.op != Average:
            raise InputError("gradient_predivide_factor needs op=hvd.Average")

    def __call__(self, gradients: Sequence, variables: Sequence) -> list:
        """The means over ranks of gradients of `variables`; None stays None.

        Raises InputError if the gradients differ in shape or dtype among the ranks, or if the variables have
        different values when they get their second gradient: by then they should have been broadcast.
        """
        results, shared = list(gradients), []
        for place, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if id(variable) in self.local:
                results[place] = times(gradient, 1 / current().world.size if self.scale_local_gradients else 1)
            elif gradient is not None:
                shared.append(place)
        own = [self._dense(results[place], variables[place]) for place in shared]
        for place, mean in zip(shared, self._means(own, [variables[n] for n in shared]), strict=True):
            results[place] = without_repeats(mean) if isinstance(mean, tf.IndexedSlices) else mean
        return results

    def _dense(self, gradient: Any, variable: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        num_bytes = int(np.prod(variable.shape)) * gradient.values.dtype.size
        return (
            tf.convert_to_tensor(gradient) if self.sparse_as_dense or num_bytes <= MOST_DENSE_BYTES else gradient
        )

    def _means(self, own: list, variables: list) -> list:
        session, key = current(), tuple(map(id, variables))
        is_dense = own and not any(isinstance(gradient, tf.IndexedSlices) for gradient in own)
        if is_dense and (means := means_in_graph(session, own, self.op)) is not None:
            return means

        def compare(*dense: tf.Tensor) -> None:
            session.num_sums[key] += 1
            if session.num_sums[key] == 2 and all(hasattr(variable, "assign") for variable in variables):
                compare_values(variables, dense)

        return over_ranks(own, Reduction(self.op), self.compression, "gradients", compare)


def without_repeats(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Slices whose indices differ. Keras 3 takes the square of each slice for the square of their sum."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def times(gradient: Any, factor: float) -> Any:
    """A gradient, dense, sparse or None, multiplied by a number."""
    if gradient is None or factor == 1:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def compare_values(variables: Sequence, gradients: Sequence) -> None:
    """Raises InputError unless the variables have about the same values on all ranks.

    Gradients should differ: a note says that the ranks probably train on the same data.
    """
    session = current()
    values = [np.ravel(tf.convert_to_tensor(value).numpy()) for value in (*variables, *gradients)]
    sums = np.array([np.sum(value, dtype=np.float64) for value in values])
    own = np.concatenate([sums, -sums, [np.linalg.norm(value) for value in values]])
    call = Call(COMPARISON, kind=(own.size,))
    largest = session.meet(call, lambda: arrays.reduced(session.world.comm, own, "MAX"))
    high, negated_low, norm = np.split(largest, 3)
    differs = high + negated_low > ROUNDING * norm
    for variable in (variable for variable, is_other in zip(variables, differs, strict=False) if is_other):
        raise InputError(
            f"{getattr(variable, 'path', variable.name)} has different values on the ranks at its second "
            "gradient: use hvd.callbacks.BroadcastGlobalVariablesCallback(0), or hvd.broadcast_variables when "
            "all variables exist"
        )
    if not any(differs) and any(norm[len(variables) :]):
        session.world.say(
            "note: all ranks have the same gradients, so they probably train on the same data: give each rank "
            "its part, such as dataset.shard(hvd.size(), hvd.rank()) or x[hvd.rank()::hvd.size()]"
        )


class DistributedTape(tf.GradientTape):
    """A gradient tape whose `gradient` averages over ranks."""

    gradient_mean: GradientMean

    def register_local_source(self, source: Any) -> None:
        """Lets the gradients of a variable stay on their rank, divided by the number of ranks unless
        scale_local_gradients=False."""
        self.gradient_mean.local[id(source)] = source

    @as_written
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **options: Any) -> Any:
        """As `tf.GradientTape.gradient`, averaged over ranks; the same on every rank."""
        gradients = super().gradient(target, sources, output_gradients, **options)
        flat = tf.nest.flatten(gradients, expand_composites=False)
        means = self.gradient_mean(flat, tf.nest.flatten(sources))
        current().averaged.update({id(mean): mean for mean in means if mean is not None})
        return tf.nest.pack_sequence_as(sources, means)

    def get_local_and_global_gradients(self, target: Any, sources: Any, *args: Any) -> tuple[list, list]:
        """Pairs of gradient's variable and gradient: of variables of this rank, and of those of all ranks."""
        flat, local = tf.nest.flatten(sources), self.gradient_mean.local
        pairs = list(zip(flat, self.gradient(target, flat, *args), strict=True))
        return [pair for pair in pairs if id(pair[0]) in local], [
            pair for pair in pairs if id(pair[0]) not in local
        ]


@as_written
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    *,
    device_dense: str = "",
    device_sparse: str = "",
    num_groups: int = 0,
    groups: Any = None,
    **options: Any,
) -> DistributedTape:
    """A tape, new or recorded, whose `gradient` averages over ranks. The arguments are those of
    `DistributedOptimizer`."""
    if not isinstance(gradtape, tf.GradientTape):
        raise InputError(f"hvd.DistributedGradientTape needs a tf.GradientTape, got {type(gradtape).__qualname__}")
    if isinstance(gradtape, DistributedTape):
        raise InputError("this tape is distributed already: call hvd.DistributedGradientTape once")
    tape = DistributedTape.__new__(DistributedTape)
    tape.__dict__.update(gradtape.__dict__)  # with what it has recorded
    tape.gradient_mean = GradientMean(**options)
    return tape


@as_written
def PartialDistributedGradientTape(
    gradtape: tf.GradientTape, *, local_layers: Any = None, **options: Any
) -> DistributedTape:
    """As `DistributedGradientTape`; the gradients of `local_layers`, a layer or several, stay on their rank."""
    tape = DistributedGradientTape(gradtape, **options)
    for variable in variables_of(local_layers):
        tape.register_local_source(variable)
    return tape


def variables_of(layers: Any) -> list[Any]:
    """The trainable variables of None, a layer or several. Raises InputError: something else, or not built."""
    layers = [] if layers is None else [layers] if isinstance(layers, keras.layers.Layer) else list(layers)
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer) or not layer.built:
            raise InputError(f"local_layers must be layers of Keras that are built, got {layer!r:.100}")
    return [variable for layer in layers for variable in layer.trainable_weights]
