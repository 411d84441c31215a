"""The gradient of a loss that joins the rows of all ranks: every text of the global batch is a
negative of every other, so the loss is no sum of the ranks' losses. It is exact on any number of
ranks and micro-batches (Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory
Limited Setup", GradCache):

1. the vectors of all own micro-batches, one gather over ranks;
2. the gradient of the loss with respect to the own vectors, computed from all of them;
3. the backward pass of the sum of vectors times that gradient, and then a step as any other.

Each rank computes its own rows and columns of the matrix of scores, so the cost falls with the
ranks; the log-sums of rows and columns travel in a second small gather. Vectors are float32. NumPy
computes scores and slopes on the host, also where the vectors come from a GPU.

Shapes, as suffixes: A own anchors, N anchors of all ranks, C own candidates, M candidates of all
ranks, W the width of a vector.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf
from numpy import ndarray
from tensorflow import Tensor

from distributed.collectives import Sink
from distributed.gradient import Compile, gradients_of, put_all, summed
from distributed.optimizer import PART, Tensors
from distributed.rows import Batch
from distributed.world import World

ANCHOR, POSITIVE = 0, 1  # slots of a row's texts; further ones are its hard negatives
SLOPES = "slopes"  # of the loss by the vectors, among the arrays of a batch
MASKED = -1e30  # the score of what is no negative
LOSS = "loss"
LEFT_OUT = f"{LOSS}{PART}left_out"  # how many candidates an anchor's positive makes no negatives
SHORTEST = 1e-6  # length that a part of a vector is divided by at least, so that it stays finite


class Vectors(NamedTuple):
    """Vectors [n, W] of texts, and of each text: the row that it belongs to, its slot in it, and
    int64 digests of the text itself and of its row's anchor and positive: equal for equal texts.
    Where rows have labels that of the anchor stands for the label: positives of rows with the same
    are right for each other."""

    values: ndarray
    row: ndarray
    slot: ndarray
    digest: ndarray
    anchor: ndarray
    positive: ndarray

    def chosen(self, which: ndarray) -> "Vectors":
        return Vectors(*(array[which] for array in self))


def _joined(parts):
    return Vectors(*map(np.concatenate, zip(*parts, strict=True)))


class JointLoss(Protocol):
    """A loss of the vectors of all ranks."""

    @property
    def terms(self) -> Sequence[str]:
        """The names of what is summed: first the loss, then what is only logged."""

    def gradient(self, own: Vectors, world: World) -> tuple[ndarray, ndarray]:
        """The gradient of the loss over all ranks with respect to the own vectors, [n, W], and this
        rank's part of each sum, float64 [terms]. All ranks call it together."""


@dataclass(frozen=True)
class InBatchLoss:
    """The cross-entropy of each anchor's positive among the positives and hard negatives of all
    rows: the sum over anchors of log sum_j exp(s_ij) - s_ip, where s is the product of two vectors
    divided by the temperature. With `both_ways` the mean of that and of the same for each positive
    among all anchors. A text that equals the positive, or that stands beside an equal anchor or
    one of the same label, is no negative. With a `margin` nor is a candidate whose product with the
    anchor is above that of the anchor's positive minus the margin, because it may be right, too
    (Solatorio 2024, "GISTEmbed", with the model itself as the guide); with `both_ways` nor an
    anchor whose product with the positive is.
    """

    temperature: float = 0.05
    both_ways: bool = False
    margin: float | None = None

    @property
    def terms(self) -> Sequence[str]:
        return (LOSS,) if self.margin is None else (LOSS, LEFT_OUT)

    def gradient(self, own: Vectors, world: World) -> tuple[ndarray, ndarray]:
        """The gradient of the loss over all ranks with respect to the own vectors, [n, W], and the
        loss of the own anchors, with a margin also how many candidates are left out for them. All
        ranks call it together."""
        everyone = _joined(world.all_gather(own))
        limits = None if self.margin is None else Limits.of(everyone, self.margin)
        is_anchor = own.slot == ANCHOR
        is_anchor_of_all = everyone.slot == ANCHOR
        own_a = own.chosen(is_anchor)
        own_c = own.chosen(~is_anchor)
        all_a = everyone.chosen(is_anchor_of_all)
        all_c = everyone.chosen(~is_anchor_of_all)
        scores_AM, left_out = self._scores(own_a, all_c, limits)
        scores_NC, _ = self._scores(all_a, own_c, limits)
        sums_A = _log_sums(scores_AM, 1)
        sums_C = _log_sums(scores_NC, 0)
        gathered = world.all_gather((sums_A, sums_C))
        sums_N, sums_M = map(np.concatenate, zip(*gathered, strict=True))

        is_own_AM = _pairs(own_a, all_c)
        is_own_NC = _pairs(all_a, own_c)
        is_positive_M = all_c.slot == POSITIVE
        is_positive_C = own_c.slot == POSITIVE
        way = 0.5 if self.both_ways else 1.0
        own_scores = scores_AM[is_own_AM].sum(dtype=np.float64)
        loss = way * (sums_A.sum() - own_scores)
        if self.both_ways:
            own_scores = scores_NC[is_own_NC].sum(dtype=np.float64)
            loss += way * (sums_C[is_positive_C].sum() - own_scores)

        def slopes(scores, is_own, sums_of_anchors, sums_of_candidates, is_positive):
            there = way * (np.exp(scores - sums_of_anchors[:, None]) - is_own)
            if not self.both_ways:
                return there
            probs = np.exp(scores - sums_of_candidates) * is_positive
            return there + way * (probs - is_own)

        slopes_AM = slopes(scores_AM, is_own_AM, sums_A, sums_M, is_positive_M)
        slopes_NC = slopes(scores_NC, is_own_NC, sums_N, sums_C, is_positive_C)
        result = np.zeros_like(own.values)
        result[is_anchor] = slopes_AM @ all_c.values / self.temperature
        result[~is_anchor] = slopes_NC.T @ all_a.values / self.temperature
        return result, np.array([loss, left_out])[: len(self.terms)]

    def _scores(self, anchors, candidates, limits):
        """float32 [anchors, candidates]; those that are no negatives have `MASKED`. And how many of
        these the limits have left out."""
        products = anchors.values @ candidates.values.T
        scores = products / np.float32(self.temperature)
        digest_A1 = anchors.digest[:, None]
        positive_A1 = anchors.positive[:, None]
        is_same = (candidates.digest == digest_A1) | (candidates.digest == positive_A1)
        is_beside = (candidates.anchor == anchors.anchor[:, None]) & (candidates.slot == POSITIVE)
        is_other = ~_pairs(anchors, candidates)
        is_masked = (is_same | is_beside) & is_other
        left_out = 0
        if limits:
            is_above = products > limits.of_rows(anchors.row)[:, None]
            if self.both_ways:
                of_candidates = limits.of_rows(candidates.row)
                is_above |= (products > of_candidates) & (candidates.slot == POSITIVE)
            is_above &= is_other & ~is_masked
            left_out = is_above.sum()
            is_masked |= is_above
        return np.where(is_masked, np.float32(MASKED), scores), left_out


class Limits(NamedTuple):
    """Of each row, ascending, the highest product that its anchor has with a negative."""

    rows: ndarray
    products: ndarray

    @classmethod
    def of(cls, vectors: Vectors, margin: float) -> "Limits":
        """Those of the anchors and positives among the vectors of all ranks: the same bits on each
        of them."""
        parts = []
        for slot in (ANCHOR, POSITIVE):
            of_slot = vectors.chosen(vectors.slot == slot)
            parts.append(of_slot.chosen(np.argsort(of_slot.row)))
        anchors, positives = parts
        products = (anchors.values * positives.values).sum(1)
        return cls(anchors.row, products - np.float32(margin))

    def of_rows(self, rows: ndarray) -> ndarray:
        return self.products[np.searchsorted(self.rows, rows)]


@dataclass(frozen=True)
class NestedLoss:
    """The sum of a joint loss of the vectors, and of the same loss of their first numbers, for each
    of `sizes` (Kusupati et al. 2022, "Matryoshka Representation Learning"): one forward pass, and
    exact as the loss itself. With `normalizes` the parts are made unit vectors, too. Sizes that
    are no part of the vectors add nothing.
    """

    whole: JointLoss
    sizes: Sequence[int]
    normalizes: bool

    @property
    def terms(self) -> Sequence[str]:
        return self.whole.terms

    def gradient(self, own: Vectors, world: World) -> tuple[ndarray, ndarray]:
        """The gradient of the sum with respect to the own vectors, [n, W], and this rank's part of
        each sum over the sizes. All ranks call it together."""
        total, sums = self.whole.gradient(own, world)
        width = own.values.shape[1]
        for size in self.sizes:
            if size >= width:
                continue
            part = own.values[:, :size]
            if self.normalizes:
                lengths = np.maximum(np.linalg.norm(part, axis=1, keepdims=True), SHORTEST)
                part = part / lengths
            of_part, sums_of_part = self.whole.gradient(own._replace(values=part), world)
            if self.normalizes:  # its part along the vector changes nothing
                along = (of_part * part).sum(1, keepdims=True)
                of_part = (of_part - part * along) / lengths
            total[:, :size] += of_part
            sums = sums + sums_of_part
        return total, sums


def _pairs(anchors, candidates):
    """Whether a candidate is the positive of an anchor's row, bool [anchors, candidates]."""
    same_row = candidates.row == anchors.row[:, None]
    return same_row & (candidates.slot == POSITIVE)


def _log_sums(scores, axis):
    """log sum exp, float64; MASKED where nothing is summed."""
    highest = scores.max(axis, initial=MASKED, keepdims=True)
    sums = np.exp(scores - highest).sum(axis, dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_sums = np.log(sums) + highest.squeeze(axis)
    return np.maximum(log_sums, MASKED)


@dataclass(frozen=True)
class SumOfVectors:
    """The sum of a rank's own vectors: a loss that other ranks' rows do not change."""

    terms: Sequence[str] = (LOSS,)

    def gradient(self, own: Vectors, world: World) -> tuple[ndarray, ndarray]:
        sums = np.zeros(len(self.terms))
        sums[0] = own.values.sum(dtype=np.float64)
        return np.ones_like(own.values), sums


class Passes:
    """The compiled passes of a model that gives vectors. `vectors(batch, dropout key)` gives one
    for each row of attention, float32 [B, W]."""

    def __init__(
        self,
        vectors: Callable[[Batch, Tensor], Tensor],
        variables: Sequence[keras.Variable],
        compiled: Compile,
    ):
        self._plain_vectors = vectors
        self.variables = variables
        self.vectors = compiled(vectors)
        self.pull = compiled(self._pulled)

    def _pulled(self, batch: Batch, key: Tensor) -> Tensors:
        """The gradients of the sum of vectors times slopes, in the graph."""
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(self._plain_vectors(batch, key) * batch[SLOPES])
        return gradients_of(tape, total, self.variables)


@dataclass(frozen=True, eq=False)
class JointGradient:
    """That of a joint loss. `texts(batch)` gives the arrays of `Vectors` besides the values, for
    the rows of attention that have a text, and which rows these are."""

    loss: JointLoss
    passes: Passes
    texts: Callable[[Batch], tuple[Sequence[ndarray], ndarray]]
    weights: Callable[[Batch], Mapping[str, float]]
    world: World

    @property
    def terms(self) -> Sequence[str]:
        return self.loss.terms

    def sums(self, batches: Sequence[Batch], factors: Tensor, keys: Sequence, sink: Sink) -> Tensor:
        parts, places = [], []
        is_one = len(batches) == 1
        # of one micro-batch the pass is kept; of several it is computed again, with the same masks
        with tf.GradientTape(watch_accessed_variables=is_one) as tape:
            for batch, key in zip(batches, keys, strict=True):
                vectors_BW = self.passes.vectors(batch, key)
                columns, has_text = self.texts(batch)
                parts.append(Vectors(vectors_BW.numpy()[has_text], *columns))
                places.append(has_text)
        with self.world.operation("the joint loss"):
            slopes, sums = self.loss.gradient(_joined(parts), self.world)
        slopes *= factors.numpy()[0]
        of_batches = []
        for has_text in places:
            own, slopes = np.split(slopes, [has_text.sum()])
            slopes_BW = np.zeros((len(has_text), own.shape[1]), np.float32)
            slopes_BW[has_text] = own
            of_batches.append(slopes_BW)
        if is_one:
            slopes_BW = tf.constant(of_batches[0])
            total = gradients_of(tape, vectors_BW, self.passes.variables, slopes_BW)
        else:
            parts_of_sum = zip(batches, of_batches, keys, strict=True)
            total = summed(
                self.passes.pull(batch | {SLOPES: slopes_BW}, key)
                for batch, slopes_BW, key in parts_of_sum
            )
        terms = tf.constant(sums, factors.dtype)
        put_all([*total, terms], sink)
        return terms

    def alone(self) -> "JointGradient":
        return replace(self, loss=SumOfVectors(self.terms))
