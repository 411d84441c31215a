"""Sums over ranks inside a compiled step, one for each layer of the backward pass.

A sum of all gradients waits for the last of them. Here a layer's gradients are summed while those
of the layers below are computed, and the embeddings' last.

XLA's scheduler moves a sum to the end of the backward pass unless something there needs it. So what
a layer passes down needs the sum of a layer above it. And each sum needs the one before it: so all
ranks make them in one order, also those whose batches have other shapes, for which XLA has compiled
another function. NCCL would wait without end for a sum that another rank makes later.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from numpy import ndarray
from tensorflow import Tensor

from distributed.collectives import Collectives
from distributed.world import World
from ringbase.errors import InputError

# How many sums are under way while a layer's gradients are computed; others were not compiled.
UNDER_WAY = 1
SAMPLES = 1024  # numbers of each sum that `check_sums` compares
BF16_ROUNDING = 2.0**-7

# What stands before a layer: gets the layer's input and its variables' values by name, and returns
# the same values.
Stage = Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]


class LayerSums:
    """The sink of one step in a graph, in which `stage` stands before each layer of the model.

    `names` are those of the trained variables, in their order. `before` are the gradients and loss
    sums of the micro-batches before this one, [] of none. With `compresses` gradients, but no loss
    sums, are sent and added up as bfloat16.
    """

    def __init__(
        self,
        collectives: Collectives,
        names: Sequence[str],
        before: Sequence[Tensor],
        compresses: bool,
    ):
        self._collectives = collectives
        self._index_of = {name: index for index, name in enumerate(names)}
        self._before = before
        self._compresses = compresses
        self._own: dict[int, Tensor] = {}
        self._of_layers: dict[int, Tensor] = {}  # the sums of gradients, by index of variable
        self._sums: list[Tensor] = []  # of vectors, in the order in which they are made
        self._samples: list[Tensor] = []  # of each vector before and after its sum, [2, n]

    def stage(
        self, hidden: Tensor, tensors: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Stands before a layer, which alone reads these tensors. Their gradients are summed over
        ranks as soon as they are known."""
        trained = {name: value for name, value in tensors.items() if name in self._index_of}
        if not trained:
            return hidden, dict(tensors)
        indices = [self._index_of[name] for name in trained]

        @tf.custom_gradient
        def before_layer(hidden: Tensor, *values: Tensor) -> tuple[list[Tensor], Callable]:
            def gradient(d_hidden: Tensor, *d_values: Tensor) -> list[Tensor]:
                totals = self._add_up(indices, d_values, self._compresses)
                self._of_layers |= dict(zip(indices, totals, strict=True))
                if len(self._sums) > UNDER_WAY:
                    d_hidden = after(d_hidden, self._sums[-1 - UNDER_WAY])
                return [d_hidden, *totals]

            return [tf.identity(hidden), *map(tf.identity, values)], gradient

        hidden, *values = before_layer(hidden, *trained.values())
        return hidden, dict(tensors) | dict(zip(trained, values, strict=True))

    def put(self, index: int, tensor: Tensor) -> None:
        """Takes a tensor of the backward pass. A gradient that a stage has summed comes as its
        sum."""
        self._own[index] = tensor

    def totals(self) -> list[Tensor]:
        """The sums over ranks of [*gradients, loss terms]. After those of the layers one sum is
        made of the other gradients, and one of the loss terms."""
        *gradients, terms = sorted(self._own)
        others = [index for index in gradients if index not in self._of_layers]
        totals = dict(self._of_layers)
        for indices, compresses in ((others, self._compresses), ([terms], False)):
            own = [self._own[index] for index in indices]
            totals |= dict(zip(indices, self._add_up(indices, own, compresses), strict=True))
        return [totals[index] for index in sorted(totals)]

    def samples(self) -> Tensor:
        """Numbers of all sums for `check_sums`, [2, n]: what this rank has sent, and what came."""
        return tf.concat(self._samples, 1)

    def _add_up(
        self, indices: Sequence[int], tensors: Sequence[Tensor], compresses: bool
    ) -> list[Tensor]:
        """The sums over ranks of these tensors and of those before, as one vector."""
        if not tensors:
            return []
        parts = []
        for index, tensor in zip(indices, tensors, strict=True):
            own = tensor + self._before[index] if self._before else tensor
            parts.append(tf.reshape(own, [-1]))
        if self._sums:
            # Not all of them: XLA would have each gradient wait while it is computed.
            place = min(range(len(parts)), key=lambda place: parts[place].shape[0])
            parts[place] = after(parts[place], self._sums[-1])
        dtype = parts[0].dtype
        sent_as = tf.bfloat16 if compresses else dtype
        sent = tf.cast(tf.concat(parts, 0), sent_as)
        received = self._collectives.vector_sum(sent, len(self._sums))
        total = tf.cast(received, dtype)
        self._sums.append(total)
        sizes = [part.shape[0] for part in parts]
        totals = tf.split(total, sizes)
        self._sample(parts, totals, sent_as)
        return [
            tf.reshape(each, tensor.shape) for each, tensor in zip(totals, tensors, strict=True)
        ]

    def _sample(self, parts: list[Tensor], totals: list[Tensor], sent_as: tf.DType) -> None:
        # Not of the vector: NCCL writes the sum over it, so XLA would copy it before.
        step = max(1, sum(part.shape[0] for part in parts) // SAMPLES)
        for part, total in zip(parts, totals, strict=True):
            sent = tf.cast(tf.cast(part[::step], sent_as), part.dtype)
            self._samples.append(tf.stack([sent, total[::step]]))


def after(tensor: Tensor, vector: Tensor) -> Tensor:
    """The same values, which no compiler can compute before the vector is there. They are NaN if
    its first number is not finite: such a step changes nothing anyway."""
    zero = 0.0 * vector[0]
    return tensor + tf.cast(zero, tensor.dtype)


def check_sums(samples: ndarray, world: World, compresses: bool) -> None:
    """Raises InputError on every rank unless the sums in `LayerSums.samples` are those of MPI. All
    ranks call it together."""
    sent, received = samples.astype(np.float64)
    rounding = BF16_ROUNDING if compresses else np.finfo(samples.dtype).eps
    sums = world.all_reduce_sum([*sent, *np.abs(sent)], "the check of the sums of --step whole")
    right, magnitude = np.split(sums, 2)
    # one rounding for each rank whose number is added, and one of the result
    allowed = (world.size + 1) * rounding * magnitude
    is_finite = np.isfinite(magnitude)
    is_wrong = is_finite & ~(np.abs(received - right) <= allowed)
    found = world.all_gather(int(is_wrong.sum()))
    for rank, number in enumerate(found):
        if number:
            raise InputError(
                f"--step whole: on rank {rank} {number:,} of {len(sent):,} sums of gradients are"
                " not those that MPI computes: train without --step whole, and report it"
            )
