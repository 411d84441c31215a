"""`DistributedGradientTape`."""

from typing import Any

import keras
import tensorflow as tf

from ringbase.errors import InputError
from ringbert.horovod.compression import Compression
from ringbert.horovod.gradients import GradientMean
from ringbert.horovod.operations import Average, as_written, refuse_process_set
from ringbert.horovod.session import current


class DistributedTape(tf.GradientTape):
    """A gradient tape whose `gradient` averages over ranks."""

    gradient_mean: GradientMean

    def register_local_source(self, source: Any) -> None:
        """Lets the gradients of a variable stay on their rank, divided by the number of ranks unless
        scale_local_gradients=False."""
        mean = self.gradient_mean
        self.gradient_mean = mean_of_tapes(mean, {**mean.local, id(source): source})

    @as_written
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **options: Any) -> Any:
        """As `tf.GradientTape.gradient`, averaged over ranks; the same on every rank."""
        gradients = super().gradient(target, sources, output_gradients, **options)
        flat = tf.nest.flatten(gradients, expand_composites=False)
        means = self.gradient_mean(flat, tf.nest.flatten(sources))
        current().averaged.update({id(mean): mean for mean in means if mean is not None})
        return tf.nest.pack_sequence_as(sources, means)


@as_written
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """A tape, new or recorded, whose `gradient` averages over ranks. The arguments are those of
    `DistributedOptimizer`."""
    refuse_process_set(process_set)
    if not isinstance(gradtape, tf.GradientTape):
        raise InputError(f"hvd.DistributedGradientTape needs a tf.GradientTape, got {type(gradtape).__qualname__}")
    if isinstance(gradtape, DistributedTape):
        raise InputError("this tape is distributed already: call hvd.DistributedGradientTape once")
    if gradient_predivide_factor != 1 and op != Average:
        raise InputError("gradient_predivide_factor needs op=hvd.Average")
    tape = DistributedTape.__new__(DistributedTape)
    tape.__dict__.update(gradtape.__dict__)  # with what it has recorded
    tape.gradient_mean = mean_of_tapes(GradientMean(op, compression, sparse_as_dense, scale_local_gradients), {})
    return tape


def mean_of_tapes(like: GradientMean, local: dict[int, Any]) -> GradientMean:
    """The average that all tapes with these options share, because a tape lives for one step."""
    options = (like.op, like.compression, like.sparse_as_dense, like.scales_local)
    return current().means_of_tapes.setdefault((*options, *local), GradientMean(*options, dict(local)))


@as_written
def PartialDistributedGradientTape(gradtape: tf.GradientTape, *args: Any, **options: Any) -> DistributedTape:
    """As `DistributedGradientTape`; the gradients of `local_layers`, a layer or several, stay on their rank."""
    layers = options.pop("local_layers", None)
    tape = DistributedGradientTape(gradtape, *args, **options)
    for variable in variables_of(layers):
        tape.register_local_source(variable)
    return tape


def variables_of(layers: Any) -> list[Any]:
    """The trainable variables of None, a layer or several. Raises InputError: something else, or not built."""
    layers = [] if layers is None else [layers] if isinstance(layers, keras.layers.Layer) else list(layers)
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer) or not layer.built:
            raise InputError(f"local_layers must be layers of Keras that are built, got {layer!r:.100}")
    return [variable for layer in layers for variable in layer.trainable_weights]
