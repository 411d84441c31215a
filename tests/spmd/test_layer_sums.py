"""A step with its sums inside, one for each layer, on TensorFlow's ring: it trains as the step with
one sum of everything does."""

import numpy as np
import pytest
from harness.batches import TASKS, batch_of, random_rows

from bert.configuration import BertConfig
from bert.heads import CLASSIFIER
from bert.model import Bert, Tracing
from bert.optimizers.choose import make_optimizer
from bert.optimizers.rate import RateSchedule
from bert.trained_words import AllWords, TrainedWords
from distributed.clock import StepClock
from distributed.gradient import LossGradient, traced_once
from distributed.optimizer import AllreduceOptimizer, check_replicas
from distributed.step import LayeredStep, SplitStep
from ringbase.errors import InputError

LAYERS = 2
SIZES = {"hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2}
CONFIG = BertConfig(vocab_size=60, intermediate_size=32, **SIZES)
RATE, STEPS = 1e-3, 3
RANKS = pytest.mark.ranks(3)


class Training:
    """A classifier with dropout whose steps are of a kind; `trains` is what it trains."""

    def __init__(self, of_kind, world, ring, trains=AllWords, optimizer="adamw", **options):
        self.task = TASKS["classifier"]
        self.model = Bert(CONFIG, CLASSIFIER, seed=1)
        self.words = trains(self.model)
        self.words.take()
        adam = make_optimizer(optimizer, RateSchedule(RATE, STEPS, 0))
        variables = self.words.variables
        self.optimizer = AllreduceOptimizer(adam, variables, world, ring, **options)
        task = self.task
        gradient = LossGradient(
            self.loss(self.words.scores), task.weights, task.terms, variables, traced_once
        )
        if of_kind is SplitStep:
            self.step = SplitStep(gradient, self.optimizer)
        else:
            names = self.words.names
            self.step = LayeredStep(
                gradient, self.staged, names, self.optimizer, compiled=traced_once
            )

    def loss(self, scores):
        return lambda batch, key: self.task.loss(scores(batch, key), batch)

    def staged(self, stage):
        return self.loss(lambda batch, key: self.words.scores(batch, key, stage))

    def take(self, number, micro_batches):
        return self.step.take(micro_batches, number, (), StepClock(1))[0].read()

    def bits(self):
        """Those of all variables, also the optimizer's."""
        variables = [*self.words.variables, *self.optimizer.state().values()]
        return b"".join(variable.numpy().tobytes() for variable in variables)

    @property
    def values(self):
        return [variable.numpy() for variable in self.words.variables]


def all_words(model):
    return AllWords(model, Tracing())


def own_words(model):
    return TrainedWords(model, np.arange(40), Tracing())


def recomputing(model):
    return AllWords(model, Tracing(recomputes=True))


def without_first_layer(model):
    """As --freeze embeddings,1 trains."""
    frozen = [name for name in model.named_tensors() if "embeddings" in name or "layer_0" in name]
    return AllWords(model, Tracing(), frozen)


def rows_of(rank, number, accumulation):
    """A rank's micro-batches of a step, of other lengths on each rank."""
    batches = []
    for piece in range(accumulation):
        lengths = [5 + rank, 9, 14 - number, 3 + piece][: 2 + rank]
        batches.append(batch_of("classifier", random_rows(lengths, 40), "by length"))
    return batches


@RANKS
@pytest.mark.parametrize(
    ("trains", "optimizer", "accumulation", "scales_loss"),
    [
        (own_words, "adamw", 2, False),
        (recomputing, "lamb", 1, True),
        (without_first_layer, "adamw", 1, False),
    ],
)
def test_it_trains_as_with_one_sum_of_everything(
    trains, optimizer, accumulation, scales_loss, world, ring
):
    """Three numbers in float32 have other last digits in another order, and a ring adds those of
    each place in an order of its own."""
    kind = {"trains": trains, "optimizer": optimizer, "scales_loss": scales_loss}
    layered = Training(LayeredStep, world, ring, **kind)
    joined = Training(SplitStep, world, ring, **kind)
    for number in range(STEPS):
        batches = rows_of(world.rank, number, accumulation)
        found, expected = layered.take(number, batches), joined.take(number, batches)
        assert found["applied"]
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-5), name
    for ours, right in zip(layered.values, joined.values, strict=True):
        # Adam's first steps go as far for a gradient near 0, whose digits are other ones
        np.testing.assert_allclose(ours, right, rtol=1e-3, atol=RATE / 20)
    check_replicas(layered.optimizer)


@RANKS
def test_it_skips_checks_and_compiles_as_any_step(world, ring):
    training = Training(LayeredStep, world, ring, all_words, scales_loss=True)
    batches = rows_of(world.rank, 0, 2)
    step, before = training.step, training.bits()
    step.compile(batches[0], 2)
    assert training.bits() == before
    step.compare_ranks(lambda rank: rows_of(rank, 0, 2))
    first = training.take(0, batches)
    assert first["applied"]

    # a rank's spoilt gradient reaches all sums: those of layers above it, too
    before = [variable.numpy() for variable in training.words.variables]
    kernel = training.model.named_tensors()["bert/encoder/layer_1/intermediate/dense/kernel"]
    sound = kernel.numpy()
    if world.rank == 1:
        kernel.assign(np.full_like(sound, np.inf))
    spoilt = training.take(1, batches)
    kernel.assign(sound)
    assert (spoilt["applied"], spoilt["loss_scale"]) == (0, first["loss_scale"] / 2)
    for old, new in zip(before, training.values, strict=True):
        assert old.tobytes() == new.tobytes()

    # a step in which no rank's rows have a label
    before = training.bits()
    has_label = np.zeros_like(batches[0]["is_example"])
    nothing = training.take(2, [batches[0] | {"is_example": has_label}])
    assert (nothing["applied"], training.bits()) == (0, before)


@RANKS
def test_sums_that_are_not_those_of_mpi_are_found_in_the_first_step(world, ring):
    """And while they are under way, the watchdog knows in which flag's step a rank waits."""
    places = set()

    class Wrong(type(ring)):
        """A ring that leaves out one rank's part of one layer."""

        def __init__(self):
            vars(self).update(vars(ring))

        def vector_sum(self, vector, place):
            places.add(world.watchdog.now[1:])
            part = vector * float(world.rank != 2) if place == 1 else vector
            return ring.vector_sum(part, place)

    training = Training(LayeredStep, world, Wrong(), all_words)
    with pytest.raises(InputError, match=r"--step whole: on rank 0 [\d,]+ of .* not those"):
        training.take(0, rows_of(world.rank, 0, 1))
    assert places == {("a step with its sums inside (--step whole)", "waiting")}


@RANKS
def test_bfloat16_is_what_crosses_the_network(world, ring):
    """Three numbers with 8 bits: the norm of all gradients has fewer wrong bits than one of them;
    the loss is exact."""
    rounded = Training(LayeredStep, world, ring, all_words, compression="bf16")
    exact = Training(LayeredStep, world, ring, all_words)
    batches = rows_of(world.rank, 0, 1)
    found, expected = rounded.take(0, batches), exact.take(0, batches)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert found["gradient_norm"] != expected["gradient_norm"]
    assert found["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=2**-7)
    check_replicas(rounded.optimizer)
