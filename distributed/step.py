"""A training step: weights first, the gradient, its sum over ranks, the update."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from distributed.arrays import digest_of
from distributed.clock import StepClock
from distributed.collectives import Collectives, Sink
from distributed.elastic import Elsewhere
from distributed.gradient import (
    Compile,
    Gradient,
    Loss,
    LossGradient,
    added,
    by_xla,
    dropout_key,
    put_all,
)
from distributed.layer_sums import LayerSums, Stage, check_sums
from distributed.optimizer import (
    AllreduceOptimizer,
    StepOptimizer,
    StepResult,
    Tensors,
    broadcast_variables,
    check_replicas,
    reduce_weights,
    terms_without_targets,
)
from distributed.plan import INCOMPLETE, START, State
from distributed.rows import Batch
from ringbase.errors import InputError

# what the watchdog says of a `LayeredStep` that does not end
WITH_SUMS = "a step with its sums inside (--step whole)"


class TrainingStep(ABC):
    """The steps of a training, and in `state` how far it is: what the variables of model and
    optimizer stand for."""

    def __init__(
        self,
        gradient: Gradient,
        optimizer: StepOptimizer,
        write_back: Callable[[], None] = lambda: None,
        seed: int = 0,
        calling: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        """`write_back` gives the model the values of variables that are not its own, before it is
        measured or saved. `seed` is that of dropout. In a `with calling()` block functions of
        TensorFlow are called: `graphs_as_traced` leaves their graphs as they are."""
        self.gradient = gradient
        self.optimizer = optimizer
        self.write_back = write_back
        self.seed = seed
        self.calling = calling
        self.state = START

    @abstractmethod
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

    def compile(self, batch: Batch, num_batches: int, compares: bool = False) -> None:
        """Compiles steps of `num_batches` micro-batches of this one's shape, and with `compares`
        what `compare_ranks` computes; in the middle of a run all ranks would wait for it."""
        keys = self.keys(0, 0, num_batches)
        self._compile([batch] * num_batches, keys)
        if compares:
            self._own_tensors([batch] * num_batches, keys)

    @property
    @abstractmethod
    def compiles_alone(self) -> bool:
        """Whether `compile` needs no other rank."""

    @abstractmethod
    def _compile(self, batches: Sequence[Batch], keys: Sequence) -> None:
        """Computes a step that changes no variable."""

    def _undefined(self) -> Tensor:
        """Factors with which a step is not valid."""
        return self.optimizer.factors(dict.fromkeys(self.gradient.terms, np.nan))

    def own_weights(self, batches: Sequence[Batch]) -> dict[str, float]:
        """The weight of each loss term in this rank's micro-batches."""
        of_batches = [self.gradient.weights(batch) for batch in batches]
        return {term: sum(own[term] for own in of_batches) for term in self.gradient.terms}

    def keys(self, number: int, rank: int, num_batches: int) -> list[np.ndarray]:
        """The dropout keys of a rank's micro-batches in the step after `number` others."""
        return [dropout_key(self.seed, number, piece, rank) for piece in range(num_batches)]

    def compare_ranks(self, micro_batches: Callable[[int], Sequence[Batch]]) -> None:
        """Computes the gradients of the next step that this rank and the next one have to compute,
        and compares the bits with that one's. `micro_batches(rank)` are a rank's in that step.
        Raises InputError on every rank if some rank has found other bits: a processor or memory is
        not sound."""
        world = self.optimizer.world
        found = []
        for rank in (world.rank, (world.rank + 1) % world.size):
            batches = micro_batches(rank)
            keys = self.keys(self.state.step, rank, len(batches))
            found.append(digest_of(self._own_tensors(batches, keys)))
        everyone = world.all_gather((*found, f"rank {world.rank} on {socket.gethostname()}"))
        next_ones = [*everyone[1:], everyone[0]]
        for (_, of_next, name), (own, _, next_name) in zip(everyone, next_ones, strict=True):
            if of_next != own:
                raise InputError(
                    f"{name} and {next_name} compute different gradients of the same rows before"
                    f" step {self.state.step + 1}: one of them is not sound. Checkpoints since the"
                    " last check can be wrong: go on from an older one, without these two"
                )

    def _own_tensors(self, batches: Sequence[Batch], keys: Sequence) -> Tensors:
        """[*gradients, loss terms] of these rows alone."""
        alone = self.gradient.alone()
        ones = self.optimizer.factors(dict.fromkeys(alone.terms, 1.0))
        sink = Collectives().sink()
        with self.calling():
            alone.sums(batches, ones, keys, sink)
        return sink.totals()

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
        check_replicas(optimizer)
        return furthest


class SplitStep(TrainingStep):
    """A step in three parts: gradient, sum over ranks and update are functions of their own."""

    def take(
        self, batches: Sequence[Batch], number: int, requests: Sequence[bool], clock: StepClock
    ) -> tuple[StepResult, list[bool]]:
        optimizer = self.optimizer
        world = optimizer.world
        with clock.part("compute_s"):
            own = self.own_weights(batches)
            weights, wanted = reduce_weights(world, own, requests)
            # the sums are the same on all ranks, so all of them skip it
            if terms_without_targets(weights):
                return StepResult(optimizer.skip(len(weights)), weights), wanted
            keys = self.keys(number, world.rank, len(batches))
            sink = optimizer.sink()
            with self.calling():
                terms = self.gradient.sums(batches, optimizer.factors(weights), keys, sink)
            clock.wait_for(terms)
        with clock.part("reduce_s"), self.calling(), world.operation("the sum of the gradients"):
            total = sink.totals()
            clock.wait_for(total[-1])
        with clock.part("apply_s"), self.calling():
            numbers = optimizer.update(total)
            clock.wait_for(numbers, ends_step=True)
        return StepResult(numbers, weights), wanted

    @property
    def compiles_alone(self) -> bool:
        return self.gradient.alone() is self.gradient

    def _compile(self, batches: Sequence[Batch], keys: Sequence) -> None:
        terms = self.gradient.sums(batches, self._undefined(), keys, Collectives().sink())
        terms.numpy()  # memory runs out here or never


class WholeStep(TrainingStep):
    """A step whose gradient and update XLA compiles as one function: for a rank alone on its
    GPU."""

    def __init__(
        self,
        gradient: LossGradient,
        optimizer: AllreduceOptimizer,
        *others: Any,
        compiled: Compile = by_xla,
    ):
        """`others` are those of `TrainingStep`."""
        super().__init__(gradient, optimizer, *others)
        self._loss_gradient = gradient
        self._apply = optimizer.apply
        self._whole = compiled(self._in_graph)

    def take(
        self, batches: Sequence[Batch], number: int, requests: Sequence[bool], clock: StepClock
    ) -> tuple[StepResult, list[bool]]:
        optimizer = self.optimizer
        with clock.part("compute_s"):
            weights, wanted = reduce_weights(optimizer.world, self.own_weights(batches), requests)
            if terms_without_targets(weights):
                return StepResult(optimizer.skip(len(weights)), weights), wanted
            keys = self.keys(number, optimizer.world.rank, len(batches))
            outputs = self._compute(batches, optimizer.factors(weights), keys)
            result = self._result(outputs, weights)
            clock.wait_for(result.numbers, ends_step=True)
        return result, wanted

    def _compute(self, batches: Sequence[Batch], factors: Tensor, keys: Sequence) -> Any:
        """A step as one function of its last micro-batch. Returns what `_in_graph` does."""
        *earlier, last = batches
        before = self._loss_gradient.of_batches(earlier, factors, keys[:-1])
        return self._whole(last, factors, keys[-1], before)

    def _in_graph(self, batch: Batch, factors: Tensor, key: Tensor, before: Tensors) -> Any:
        """Takes the step, after the sums `before` of its other micro-batches. Returns the numbers
        of `StepResult`."""
        own = self._loss_gradient.in_graph(batch, factors, key)
        if before:
            own = added(before, own)
        return self._updated(own, factors, self.optimizer.sink())

    def _updated(self, own: Tensors, factors: Tensor, sink: Sink) -> Tensor:
        """Sums [*gradients, loss terms] and updates. Returns the numbers of `StepResult`."""
        put_all(own, sink)
        is_valid = tf.reduce_all(tf.math.is_finite(factors))
        return self._apply(sink.totals(), is_valid)

    def _result(self, outputs: Any, weights: Mapping[str, float]) -> StepResult:
        return StepResult(outputs, weights)

    @property
    def compiles_alone(self) -> bool:
        return self.optimizer.world.size == 1

    def _compile(self, batches: Sequence[Batch], keys: Sequence) -> None:
        outputs = self._compute(batches, self._undefined(), keys)
        for output in tf.nest.flatten(outputs):
            output.numpy()  # memory runs out here or never


class LayeredStep(WholeStep):
    """A step whose gradient, sums over ranks and update are one compiled function, in which a
    layer's gradients are summed while those of the layers below are computed (`LayerSums`): for
    backends with `in_graph`.

    `staged(stage)` is the gradient's loss with a stage before each layer of the model. `names` are
    those by which a stage gets the values of the trained variables, in their order. The sums of a
    training's first step are compared with MPI's.
    """

    def __init__(
        self,
        gradient: LossGradient,
        staged: Callable[[Stage], Loss],
        names: Sequence[str],
        optimizer: AllreduceOptimizer,
        *others: Any,
        compiled: Compile = by_xla,
    ):
        """`others` are those of `TrainingStep`."""
        super().__init__(gradient, optimizer, *others, compiled=compiled)
        self._staged = staged
        self._names = names
        self._compresses = optimizer.compression == "bf16"
        self._collectives = optimizer.collectives
        self._is_checked = False

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._is_checked = False

    def _compute(self, batches: Sequence[Batch], factors: Tensor, keys: Sequence) -> Any:
        with self.optimizer.world.operation(WITH_SUMS):
            return super()._compute(batches, factors, keys)

    def _in_graph(self, batch: Batch, factors: Tensor, key: Tensor, before: Tensors) -> Any:
        """Returns the numbers of `StepResult`, and samples of the sums."""
        sums = LayerSums(self._collectives, self._names, before, self._compresses)
        gradient = replace(self._loss_gradient, loss=self._staged(sums.stage))
        own = gradient.in_graph(batch, factors, key)
        numbers = self._updated(own, factors, sums)
        return numbers, sums.samples()

    def _result(self, outputs: Any, weights: Mapping[str, float]) -> StepResult:
        world = self.optimizer.world
        numbers, samples = outputs
        if not self._is_checked:
            with world.operation(WITH_SUMS):
                found = samples.numpy()
            check_sums(found, world, self._compresses)
            self._is_checked = True
        return StepResult(numbers, weights, WITH_SUMS)
