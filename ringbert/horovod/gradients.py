"""`DistributedGradientTape`, and the mean of gradients over ranks."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringbase.errors import InputError
from ringbert.horovod.operations import Average, Compression, Sum, grouped_allreduce
from ringbert.horovod.session import Facts, Unsupported, as_written, current

# Sparse gradients of a variable up to this size are summed dense: the memory does not grow with the ranks.
MOST_DENSE_BYTES = 1 << 26

# What a tape has averaged, by its id; an optimizer does not average it again.
_means: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def are_means(gradients: Sequence) -> bool:
    return all(gradient is None or _means.get(id(gradient)) is gradient for gradient in gradients)


@dataclass(eq=False, kw_only=True)
class GradientMean:
    """Averages lists of gradients over ranks. Its fields are options of the tape and the optimizer.

    Args:
      op: `Average`, or `Sum`, which does not divide.
      compression: `Compression.fp16` and `bf16` send half the bytes between machines.
      sparse_as_dense: sum sparse gradients dense, also those of variables of more than 64 MiB.
      local_layers: a layer, or several, whose gradients stay on their rank.
      scale_local_gradients: divide these by the number of ranks, because an average does so to a part of the loss
        that only one rank has.
      gradient_predivide_factor, device_dense, device_sparse, num_groups, groups: without effect, because all
        gradients are summed together, those of half precision in float32.
    """

    op: str = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    local_layers: Any = None
    scale_local_gradients: bool = True
    gradient_predivide_factor: float = 1.0
    device_dense: str = ""
    device_sparse: str = ""
    num_groups: int = 0
    groups: Any = None
    local: dict[int, Any] = field(default_factory=dict, init=False)  # variables of this rank, by their id

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum):
            raise Unsupported(f"gradients can be averaged or summed (op=hvd.Average or hvd.Sum), got op={self.op}")
        for layer in () if self.local_layers is None else tf.nest.flatten(self.local_layers):
            if not isinstance(layer, keras.layers.Layer) or not layer.built:
                raise InputError(f"local_layers must be layers of Keras that are built, got {layer!r:.100}")
            self.local |= {id(variable): variable for variable in layer.trainable_weights}

    def __call__(self, gradients: Sequence, variables: Sequence) -> list:
        """The means over ranks of gradients of `variables`; None stays None.

        Raises InputError if the gradients differ in shape or dtype among the ranks, or if the variables have
        different values when they get their second gradient: by then they should have been broadcast.
        """
        results, own = list(gradients), {}
        for place, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if id(variable) not in self.local:
                own[place] = gradient if self._stays_sparse(gradient, variable) else tf.convert_to_tensor(gradient)
            elif self.scale_local_gradients:
                results[place] = tf.math.scalar_mul(1 / current().world.size, gradient)
        means = self._means([*own.values()], [variables[place] for place in own])
        for place, mean in zip(own, means, strict=True):
            results[place] = without_repeats(mean) if isinstance(mean, tf.IndexedSlices) else mean
        return results

    def _stays_sparse(self, gradient: Any, variable: Any) -> bool:
        if self.sparse_as_dense or not isinstance(gradient, tf.IndexedSlices):
            return False
        return int(np.prod(variable.shape)) * gradient.values.dtype.size > MOST_DENSE_BYTES

    def _means(self, own: list, variables: list) -> list:
        session, key = current(), tuple(map(id, variables))
        is_sparse = any(isinstance(gradient, tf.IndexedSlices) for gradient in own)
        if own and not (is_sparse or tf.executing_eagerly() or session.collectives is session.host):
            wide = tf.float64 if any(value.dtype == tf.float64 for value in own) else tf.float32
            totals = session.collectives.all_reduce_sum([tf.cast(value, wide) for value in own])
            divisor = session.world.size if self.op == Average else 1
            return [tf.cast(total / divisor, value.dtype) for total, value in zip(totals, own, strict=True)]

        def facts(*dense: tf.Tensor) -> Facts:
            session.num_sums[key] += 1
            if session.num_sums[key] != 2 or not all(hasattr(variable, "assign") for variable in variables):
                return []
            named = [(getattr(variable, "path", variable.name), variable) for variable in variables]
            named += [("", gradient) for gradient in dense]
            values = ((name, tf.cast(value, tf.float64).numpy()) for name, value in named)
            return [(name, float(value.sum()), float(np.linalg.norm(value))) for name, value in values]

        return grouped_allreduce(own, op=self.op, compression=self.compression, name="gradients", facts=facts)


def without_repeats(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Slices whose indices differ. Keras 3 takes the square of each slice for the square of their sum."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


class DistributedTape(tf.GradientTape):
    """A gradient tape whose `gradient` averages over ranks."""

    gradient_mean: GradientMean

    def register_local_source(self, source: Any) -> None:
        """Lets the gradients of a variable stay on their rank."""
        self.gradient_mean.local[id(source)] = source

    @as_written
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **options: Any) -> Any:
        """As `tf.GradientTape.gradient`, averaged over ranks; the same on every rank."""
        gradients = super().gradient(target, sources, output_gradients, **options)
        flat = tf.nest.flatten(gradients, expand_composites=False)
        means = self.gradient_mean(flat, tf.nest.flatten(sources))
        _means.update({id(mean): mean for mean in means if mean is not None})
        return tf.nest.pack_sequence_as(sources, means)

    def get_local_and_global_gradients(self, target: Any, sources: Any, *args: Any) -> tuple[list, list]:
        """Pairs of variable and gradient: of variables of this rank, and of those of all ranks."""
        flat, ids = tf.nest.flatten(sources), self.gradient_mean.local
        pairs = list(zip(flat, self.gradient(target, flat, *args), strict=True))
        return [pair for pair in pairs if id(pair[0]) in ids], [pair for pair in pairs if id(pair[0]) not in ids]


@as_written
def DistributedGradientTape(gradtape: tf.GradientTape, **options: Any) -> DistributedTape:
    """A tape, new or recorded, whose `gradient` averages over ranks. The options are those of `GradientMean`."""
    tape = DistributedTape.__new__(DistributedTape)
    tape.__dict__.update(gradtape.__dict__)  # with what it has recorded
    tape.gradient_mean = GradientMean(**options)
    return tape


PartialDistributedGradientTape = DistributedGradientTape  # with `local_layers`
