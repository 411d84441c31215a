"""The training step: weights, gradient (compiled), sum over ranks (in plain sight), update
(compiled)."""

import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from distributed.arrays import digest_of
from distributed.elastic import Elsewhere
from distributed.optimizer import (
    AllreduceOptimizer,
    StepResult,
    Tensors,
    broadcast_variables,
    terms_without_targets,
)
from distributed.plan import INCOMPLETE, START, State
from distributed.rows import Batch
from ringbase.errors import InputError

See = Callable[[str, float, float], None]  # name, begin and end of a part of a step

by_xla = partial(tf.function, jit_compile=True, autograph=False)


@dataclass(eq=False)
class StepClock:
    """Measures the wall-clock seconds of each part of a step, and rows per second over all ranks.
    On a GPU operations return before they are done: there, with `waits`, every `every`-th step is
    timed part by part, by waits that leave the GPU idle in between. All steps count for the rows
    per second. `see` gets each part with its begin and end."""

    rows_per_step: int
    waits: bool = False
    every: int = 1
    see: See = lambda *_: None

    def __post_init__(self) -> None:
        self._number = 0  # of steps
        self._last_s = time.perf_counter()
        self._reset()

    def _reset(self) -> None:
        self._parts: dict[str, float] = defaultdict(float)
        self._seconds, self._steps, self._timed_steps = 0.0, 0, 0

    def mark(self, part: str, result: Tensor | None = None) -> None:
        """Adds the time since the last mark to `part`, which computed `result`; "apply_s" ends a
        step."""
        ends = part == "apply_s"
        is_timed = (self._number + 1) % self.every == 0
        # The step before a timed one is awaited too: its work must not count as the timed one's.
        is_before = ends and (self._number + 2) % self.every == 0
        if self.waits and result is not None and (is_timed or is_before):
            result[:1].numpy()
        seconds = self.skip(part.removesuffix("_s"))
        self._seconds += seconds
        if is_timed:
            self._parts[part] += seconds
            self._timed_steps += ends
        self._number += ends
        self._steps += ends

    def skip(self, name: str = "pause") -> float:
        """Ends the time in which this was done, without adding it to a part. Returns its
        seconds."""
        began_s, self._last_s = self._last_s, time.perf_counter()
        self.see(name, began_s, self._last_s)
        return self._last_s - began_s

    def read(self, resets: bool = True) -> dict[str, float]:
        """Mean seconds of each part per timed step since the last reset, and rows per second over
        all steps."""
        num_timed = max(self._timed_steps, 1)
        values = {name: round(total_s / num_timed, 5) for name, total_s in self._parts.items()}
        num_rows = self._steps * self.rows_per_step
        values["examples_per_s"] = round(num_rows / max(self._seconds, 1e-9), 5)
        if resets:
            self._reset()
        return values


@dataclass(eq=False)
class TrainingStep:
    """The steps of a training, and in `state` how far it is: what the variables of model and
    optimizer stand for.

    `loss(batch, dropout key int32 [2])` gives the sum of each loss term over the batch, not its
    mean, and `weights(batch)` how much the batch has of each term (rows, masked tokens, …), by
    which it is divided. `Training` in tasks/runs makes both. `write_back` gives the model the
    values of variables that are not its own, before it is measured or saved. `seed` is that of
    dropout. `compiled`: "graph" traces the gradient once for all shapes of batches, and "as traced"
    leaves it so (see `graphs_as_traced`). With "gradient" XLA compiles it for each shape, and with
    "step" it compiles gradient, sum over ranks and update as one function: for a rank alone on its
    GPU, or a backend with `in_graph`.
    """

    loss: Callable[[Batch, Tensor], Mapping[str, Tensor]]
    weights: Callable[[Batch], Mapping[str, float]]
    optimizer: AllreduceOptimizer
    write_back: Callable[[], None] = lambda: None
    compiled: Literal["graph", "as traced", "gradient", "step"] = "graph"
    seed: int = 0

    def __post_init__(self) -> None:
        self.state = START
        self._traced = by_xla if self.compiled in ("gradient", "step") else traced_once
        self._gradient = self._traced(self._forward_backward)
        self._step = by_xla(self._compiled_step)

    def take(
        self, batches: Sequence[Batch], number: int, requests: Sequence[bool], clock: StepClock
    ) -> tuple[StepResult, list[bool]]:
        """The step after `number` others, on this rank's micro-batches. All ranks take it together
        and end it with bit-identical variables. Returns its result, and which of `requests` (to
        stop, to save a checkpoint) any rank makes.

        A step in which a loss term has no target on any rank is skipped: the mean of that term is
        not defined.

        If a rank of an elastic world dies in it, each survivor has either taken the whole step or
        none of it.
        """
        optimizer = self.optimizer
        own_weights = [self.weights(batch) for batch in batches]
        own_sums = {term: sum(own[term] for own in own_weights) for term in optimizer.loss_terms}
        weights, wanted = optimizer.reduce_weights(own_sums, requests)
        keys = self._keys(number, optimizer.world.rank, len(batches))
        # the sums are the same on all ranks, so all of them skip it
        if terms_without_targets(weights):
            numbers = optimizer.skip()
        elif self.compiled == "step":
            numbers = self._take_compiled(batches, optimizer.inverse_weights(weights), keys)
        else:
            with self._tracing():
                own = self._own_sums(batches, optimizer.inverse_weights(weights), keys)
                clock.mark("compute_s", own[-1])  # the loss sums, for which a timed step waits
                total = optimizer.all_reduce(own)
                clock.mark("reduce_s", total[-1])
                numbers = optimizer.update(total)
                clock.mark("apply_s", numbers)
            return StepResult(numbers, weights), wanted
        # one function has done all: the first part gets its time
        for part in ("compute_s", "reduce_s", "apply_s"):
            clock.mark(part, numbers)
        return StepResult(numbers, weights), wanted

    def _keys(self, number: int, rank: int, num_batches: int) -> list[np.ndarray]:
        """The dropout keys of a rank's micro-batches in the step after `number` others."""
        return [dropout_key(self.seed, number, piece, rank) for piece in range(num_batches)]

    def _tracing(self) -> AbstractContextManager[None]:
        return graphs_as_traced() if self.compiled == "as traced" else nullcontext()

    def _own_sums(
        self, batches: Sequence[Batch], inverse_weights: Tensor, keys: Sequence
    ) -> Tensors:
        """[*gradients, loss sums] over this rank's micro-batches."""
        pairs = zip(batches, keys, strict=True)
        return summed(self._gradient(batch, inverse_weights, key) for batch, key in pairs)

    def _forward_backward(
        self, batch: dict[str, Tensor], inverse_weights: Tensor, key: Tensor
    ) -> Tensors:
        """[*gradients, loss sums] of one batch, in the graph."""
        optimizer = self.optimizer
        with tf.GradientTape() as tape:
            terms = self.loss(batch, key)
            in_order = [tf.cast(terms[term], optimizer.dtype) for term in optimizer.loss_terms]
            sums = tf.stack(in_order)
            total = tf.reduce_sum(sums * inverse_weights)
        return [*self._gradients(tape, total), sums]

    def _gradients(self, tape, target, slopes=None) -> Tensors:
        """Those of the trainable variables, for these gradients of the target; sparse ones become
        dense."""
        variables = [variable.value for variable in self.optimizer.trainable]
        gradients = tape.gradient(target, variables, slopes, unconnected_gradients="zero")
        return [*map(tf.convert_to_tensor, gradients)]

    def _take_compiled(
        self, batches: Sequence[Batch], inverse_weights: Tensor, keys: Sequence
    ) -> Tensor:
        """A step as one function of its last micro-batch. Returns the numbers of `StepResult`."""
        *earlier, last = batches
        before = self._own_sums(earlier, inverse_weights, keys[:-1])
        with self.optimizer.world.operation("a step with its sum over ranks"):
            return self._step(last, inverse_weights, keys[-1], before)

    def _compiled_step(self, batch, inverse_weights, key, before) -> Tensor:
        own = self._forward_backward(batch, inverse_weights, key)
        if before:
            own = added(before, own)
        total = self.optimizer.all_reduce(own)
        is_valid = tf.reduce_all(tf.math.is_finite(inverse_weights))
        return self.optimizer.apply(total, is_valid)

    def compile(self, batch: Batch, num_batches: int, compares: bool = False) -> None:
        """Compiles steps of `num_batches` micro-batches of this one's shape, and with `compares`
        what `compare_ranks` computes; in the middle of a run all ranks would wait for it."""
        optimizer = self.optimizer
        keys = self._keys(0, 0, num_batches)
        # NaN: the step is not valid, so no variable changes
        undefined = tf.constant([np.nan] * len(optimizer.loss_terms), optimizer.dtype)
        is_whole = self.compiled == "step"
        compute = self._take_compiled if is_whole else self._own_sums
        results = compute([batch] * num_batches, undefined, keys)
        results[-1].numpy()  # memory runs out here or never
        if is_whole and compares:  # the gradient alone is another function
            self._own_sums([batch], undefined, keys[:1])

    def compare_ranks(self, micro_batches: Callable[[int], Sequence[Batch]]) -> None:
        """Computes the gradients of the next step that this rank and the next one have to compute,
        and compares the bits with that one's. `micro_batches(rank)` are a rank's in that step.
        Raises InputError on every rank if some rank has found other bits: a processor or memory is
        not sound."""
        world = self.optimizer.world
        found = []
        for rank in (world.rank, (world.rank + 1) % world.size):
            batches = micro_batches(rank)
            keys = self._keys(self.state.step, rank, len(batches))
            with self._tracing():
                found.append(digest_of(self._sums_to_compare(batches, keys)))
        everyone = world.all_gather((*found, f"rank {world.rank} on {socket.gethostname()}"))
        next_ones = [*everyone[1:], everyone[0]]
        for (_, of_next, name), (own, _, next_name) in zip(everyone, next_ones, strict=True):
            if of_next != own:
                raise InputError(
                    f"{name} and {next_name} compute different gradients of the same rows before"
                    f" step {self.state.step + 1}: one of them is not sound. Checkpoints since the"
                    " last check can be wrong: go on from an older one, without these two"
                )

    def _sums_to_compare(self, batches: Sequence[Batch], keys: Sequence) -> Tensors:
        ones = tf.ones([len(self.optimizer.loss_terms)], self.optimizer.dtype)
        return self._own_sums(batches, ones, keys)

    def begin(self, seed: int) -> None:
        """Begins a training, with what is compiled for an earlier one. The values of the model are
        the caller's."""
        if self.state is not START:
            self.optimizer.reset()
        self.seed, self.state = seed, START

    def begin_at(self, state: State) -> None:
        """Where the training begins. Rank 0 has the values of that state; until `synchronize` has
        given them to the others, a state of theirs stands for nothing: if rank 0 died before, they
        would train from other values."""
        self.state = state if self.optimizer.world.rank == 0 else INCOMPLETE

    def synchronize(self) -> State:
        """Gives all ranks the variables and the state of the rank that is furthest. Returns the
        state, which is valid, because an update is deterministic and follows a complete sum. Raises
        Elsewhere if that rank died while the others received its values."""
        optimizer = self.optimizer
        world = optimizer.world
        states = world.all_gather(self.state)
        furthest = max(states, key=lambda state: (state.step, state.evaluated))
        if furthest == INCOMPLETE:
            raise Elsewhere
        root = states.index(furthest)
        if world.rank != root:
            self.state = INCOMPLETE
        variables = [*optimizer.trainable, *optimizer.state().values()]
        broadcast_variables(variables, world, root)
        self.state = furthest
        optimizer.check_replicas()
        return furthest


@tf.function(autograph=False)
def added(some: Tensors, more: Tensors) -> Tensors:
    """The sums of tensors in pairs."""
    return [a + b for a, b in zip(some, more, strict=True)]


def summed(parts: Iterable[Tensors]) -> Tensors:
    """The sum of lists of tensors; [] of none. While one is computed the sum alone is kept."""
    total: Tensors = []
    for part in parts:
        total = added(total, part) if total else part
        del part  # else it would live while the next one is computed
    return total


def traced_once(function: Callable) -> Callable:
    """`function(batch, *others)` as a graph for batches of any size, with the arrays of the first
    one."""
    traced = None

    def of_any_size(array):
        return tf.TensorSpec([None] * array.ndim, array.dtype)

    def call(batch, *others):
        nonlocal traced
        if traced is None:
            fixed = [tf.TensorSpec(other.shape, other.dtype) for other in others]
            specs = [tf.nest.map_structure(of_any_size, batch), *fixed]
            traced = tf.function(function, input_signature=specs, autograph=False)
        return traced(batch, *others)

    return call


def dropout_key(seed: int, step: int, micro_batch: int, rank: int) -> np.ndarray:
    """int32 [2], a hash of the arguments: the random seed of one forward pass."""
    sequence = np.random.SeedSequence([seed, step, micro_batch, rank])
    return sequence.generate_state(2, np.uint32).view(np.int32)


@contextmanager
def graphs_as_traced() -> Iterator[None]:
    """TensorFlow's graph optimizer (Grappler), which takes seconds when a function is first called,
    is off within the block: docs/measured.md."""
    choose = tf.config.optimizer.set_experimental_options
    choose({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        choose({"disable_meta_optimizer": False})
