"""`DistributedGradientTape`, and the mean of gradients over ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringbase.errors import InputError
from ringbert.horovod.host import Average, Compression, Sum, means_in_graph
from ringbert.horovod.operations import as_written, grouped_allreduce
from ringbert.horovod.session import Facts, Unsupported, current

# Sparse gradients of a variable up to this size are summed dense: the memory does not grow with the ranks.
MOST_DENSE_BYTES = 1 << 26


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
      local: variables whose gradients stay on their rank, by their id.
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
    local: dict[int, Any] = field(default_factory=dict, init=False)

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
            if gradient is not None and id(variable) not in self.local:
                own[place] = self._dense(gradient, variable)
            elif gradient is not None and self.scale_local_gradients:
                results[place] = tf.math.scalar_mul(1 / current().world.size, gradient)
        for place, mean in zip(
            own, self._means([*own.values()], [variables[place] for place in own]), strict=True
        ):
            results[place] = without_repeats(mean) if isinstance(mean, tf.IndexedSlices) else mean
        return results

    def _dense(self, gradient: Any, variable: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            is_small = int(np.prod(variable.shape)) * gradient.values.dtype.size <= MOST_DENSE_BYTES
            return tf.convert_to_tensor(gradient) if self.sparse_as_dense or is_small else gradient
        return gradient

    def _means(self, own: list, variables: list) -> list:
        session, key = current(), tuple(map(id, variables))
        is_dense = not any(isinstance(gradient, tf.IndexedSlices) for gradient in own)
        if own and is_dense and (means := means_in_graph(session, own, self.op)) is not None:
            return means

        def facts(*dense: tf.Tensor) -> Facts:
            session.num_sums[key] += 1
            if session.num_sums[key] != 2 or not all(hasattr(variable, "assign") for variable in variables):
                return []
            names = [getattr(variable, "path", variable.name) for variable in variables] + [""] * len(dense)
            values = [np.ravel(tf.convert_to_tensor(value).numpy()) for value in (*variables, *dense)]
            sums = (float(np.sum(value, dtype=np.float64)) for value in values)
            return list(zip(names, sums, map(float, map(np.linalg.norm, values)), strict=True))

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
        current().averaged.update({id(mean): mean for mean in means if mean is not None})
        return tf.nest.pack_sequence_as(sources, means)

    def get_local_and_global_gradients(self, target: Any, sources: Any, *args: Any) -> tuple[list, list]:
        """Pairs of variable and gradient: of variables of this rank, and of those of all ranks."""
        flat, ids = tf.nest.flatten(sources), self.gradient_mean.local
        pairs = list(zip(flat, self.gradient(target, flat, *args), strict=True))
        return [pair for pair in pairs if id(pair[0]) in ids], [pair for pair in pairs if id(pair[0]) not in ids]


@as_written
def DistributedGradientTape(gradtape: tf.GradientTape, **options: Any) -> DistributedTape:
    """A tape, new or recorded, whose `gradient` averages over ranks. The options are those of `GradientMean`."""
    if not isinstance(gradtape, tf.GradientTape):
        raise InputError(f"hvd.DistributedGradientTape needs a tf.GradientTape, got {type(gradtape).__qualname__}")
    if isinstance(gradtape, DistributedTape):
        raise InputError("this tape is distributed already: call hvd.DistributedGradientTape once")
    tape = DistributedTape.__new__(DistributedTape)
    tape.__dict__.update(gradtape.__dict__)  # with what it has recorded
    tape.gradient_mean = GradientMean(**options)
    return tape


PartialDistributedGradientTape = DistributedGradientTape  # with `local_layers`
