"""Training steps against NumPy: the gradient of all micro-batches together, clipped as by
tf.clip_by_global_norm, applied as by Google, or skipped if they are not finite; on GPUs and CPUs,
compiled in parts or as a whole."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from harness.batches import TASKS, batch_of, random_rows
from harness.google import google_rate, google_step

from bert.configuration import BertConfig
from bert.heads import CLASSIFIER
from bert.model import Bert, Tracing
from bert.optimizers.adamw import AdamWeightDecay
from bert.optimizers.rate import RateSchedule
from bert.trained_words import WORDS, AllWords, TrainedWords
from distributed.arrays import host_view
from distributed.clock import StepClock
from distributed.collectives import Collectives
from distributed.devices import Device
from distributed.gradient import LossGradient, by_xla, summed, traced_once
from distributed.optimizer import AllreduceOptimizer, StepResult
from distributed.step import SplitStep, WholeStep
from distributed.world import World

RATE, STEPS, WARMUP = 0.05, 6, 2
SHAPE = 128, 260  # of the kernel: so large that the optimizer compiles its update
# a GPU's steps are compiled by XLA, here for the CPU; "step" as one function
KINDS = ["cpu", "gpu", "step"]


class Trainer:
    """A linear layer with squared errors, trained from zero; `kind` is one of KINDS."""

    def __init__(self, kind, scales_loss=False):
        self.num_traced = 0  # how often a function with the loss was traced
        shapes = {"dense.kernel": SHAPE, "dense.bias": SHAPE[1:]}
        self.kernel, self.bias = (
            keras.Variable(np.zeros(s, np.float32), name=n) for n, s in shapes.items()
        )
        self.optimizer = AllreduceOptimizer(
            AdamWeightDecay(RateSchedule(RATE, STEPS, WARMUP)),
            [self.kernel, self.bias],
            World(device=Device("cpu" if kind == "cpu" else "gpu")),
            Collectives(),
            scales_loss=scales_loss,
        )
        variables = self.optimizer.trainable
        of_kind, compiled = (WholeStep, by_xla) if kind == "step" else (SplitStep, traced_once)
        gradient = LossGradient(self.loss, self.weights, ("loss",), variables, compiled)
        self.one = of_kind(gradient, self.optimizer)

    def loss(self, batch, key):
        self.num_traced += 1
        off = batch["x"] @ self.kernel.value + self.bias.value - batch["y"]
        return {"loss": tf.reduce_sum(tf.square(off))}

    def weights(self, batch):
        return {"loss": float(len(batch["x"]))}

    def step(self, number, micro_batches):
        return self.one.take(micro_batches, number, (), StepClock(1))[0].read()

    def three_steps(self):
        """The loss scale after three steps."""
        for number in range(3):
            result = self.step(number, batches_of(number, [8, 8]))
        return result["loss_scale"]

    @property
    def values(self):
        return [self.kernel.numpy(), self.bias.numpy()]


def batches_of(number, sizes):
    draw = np.random.default_rng(number).standard_normal
    return [{"x": draw((size, SHAPE[0]), "f"), "y": draw((size, SHAPE[1]), "f")} for size in sizes]


def formula_step(number, batch, states):
    """The same training in NumPy, in one batch per step; `states` are value and moments of kernel
    and bias."""
    off = batch["x"] @ states[0][0] + states[1][0] - batch["y"]
    gradients = [2 * batch["x"].T @ off / len(off), 2 * off.mean(0)]
    norm = np.sqrt(sum(np.square(gradient, dtype=np.float64).sum() for gradient in gradients))
    rate = google_rate(number, RATE, STEPS, WARMUP)
    for place, gradient in enumerate(gradients):
        clipped = (gradient * (1 / max(norm, 1))).astype(np.float32)
        (value, *moments) = states[place]
        states[place] = google_step(value, clipped, *moments, rate, place == 0)
    return {
        "loss": np.square(off, dtype=np.float64).mean(0).sum(),
        "gradient_norm": norm,
        "learning_rate": rate,
    }


def test_of_micro_batches_one_gradient_is_kept_besides_their_sum():
    """A second one would be memory where there is least."""
    made = []

    def gradients():
        for number in range(4):
            gc.collect()
            # the first one is the sum itself as long as it is alone
            assert sum(part() is not None for part in made) <= (number == 1)
            part = tf.fill([8], float(number))
            made.append(weakref.ref(part))
            yield [part]
            del part

    (total,) = summed(gradients())
    assert total.numpy().tolist() == [6.0] * 8


def test_what_a_check_computes_is_compiled_before_the_first_step():
    """In the middle of a run all ranks would wait for it, on a GPU for minutes."""
    trainer = Trainer("step")
    (batch,) = batches_of(0, [8])
    trainer.one.compile(batch, 1, compares=True)
    trainer.step(0, [batch])
    num_traced = trainer.num_traced
    assert num_traced == 2  # the whole step, and the gradient alone
    trainer.one.compare_ranks(lambda rank: [batch])
    assert trainer.num_traced == num_traced


@pytest.mark.parametrize(
    ("kind", "scales_loss"), [("cpu", True), ("gpu", False), ("step", False), ("step", True)]
)
@pytest.mark.parametrize("sizes", [[33], [14, 14, 5]])
def test_steps_are_the_formula_of_the_big_batch(kind, sizes, scales_loss):
    trainer = Trainer(kind, scales_loss)
    states = [[np.zeros(s, np.float32)] * 3 for s in (SHAPE, SHAPE[1:])]
    for number in range(4):
        micro_batches = batches_of(number, sizes)
        big = {
            name: np.concatenate([batch[name] for batch in micro_batches]) for name in ("x", "y")
        }
        result, expected = trainer.step(number, micro_batches), formula_step(number, big, states)
        assert result["applied"]
        for name, value in expected.items():  # float32 sums
            assert result[name] == pytest.approx(value, rel=1e-5), name
        assert expected["gradient_norm"] > 1  # it is clipped
    for ours, (right, *_) in zip(trainer.values, states, strict=True):
        # Adam divides by the root of the square: where a gradient nearly cancels, so do its digits.
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-5)
    assert trainer.optimizer.optimizer.iterations.numpy() == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_that_is_not_finite_changes_nothing_but_halves_the_loss_scale(kind):
    trainer = Trainer(kind, scales_loss=True)
    scale = trainer.three_steps()
    before = trainer.values
    spoilt = batches_of(3, [8, 8])
    spoilt[0]["y"][2, 3] = np.inf
    result = trainer.step(3, spoilt)
    assert (result["applied"], result["loss_scale"]) == (0, scale / 2)
    for old, new in zip(before, trainer.values, strict=True):
        assert old.tobytes() == new.tobytes()
    assert trainer.optimizer.optimizer.iterations.numpy() == 3
    assert trainer.step(4, batches_of(4, [8, 8]))["applied"]
    assert np.isfinite(trainer.values[0]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_without_targets_changes_nothing_not_even_the_loss_scale(kind):
    trainer = Trainer(kind, scales_loss=True)
    scale = trainer.three_steps()
    variables = [*trainer.optimizer.state().values(), *trainer.optimizer.trainable]
    before = [variable.numpy() for variable in variables]
    result = trainer.step(3, batches_of(3, [0, 0]))
    assert (result["applied"], result["loss_scale"]) == (0, scale)
    assert np.isnan(result["loss"])
    for old, new in zip(before, variables, strict=True):
        assert old.tobytes() == new.numpy().tobytes()
    assert trainer.step(4, batches_of(4, [8, 0]))["applied"]


@pytest.mark.parametrize(
    ("of_kind", "compiled", "grouping"),
    [(SplitStep, traced_once, "by length"), (WholeStep, by_xla, "compiled")],
)
def test_words_that_no_text_has_keep_their_embeddings(of_kind, compiled, grouping):
    """Beside a training of all words, as Google's, where the others decay. What texts have is the
    same in both."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=60, intermediate_size=64, **sizes, **rates)
    task, rows = TASKS["classifier"], random_rows([5, 9, 14, 3], 40)
    batch = batch_of("classifier", rows, grouping)

    def values_after(steps, trains_all):
        model = Bert(config, CLASSIFIER, seed=1)
        ids = np.concatenate([row.input_ids for row in rows])
        words = AllWords(model, Tracing()) if trains_all else TrainedWords(model, ids, Tracing())
        words.take()
        adam, world = (
            AdamWeightDecay(RateSchedule(RATE, STEPS, WARMUP)),
            World(device=Device("cpu")),
        )
        optimizer = AllreduceOptimizer(adam, words.variables, world, Collectives())

        def loss(batch, key):
            return task.loss(words.scores(batch, key), batch)

        gradient = LossGradient(loss, task.weights, task.terms, words.variables, compiled)
        step = of_kind(gradient, optimizer, words.write_back)
        for number in range(steps):
            step.take([batch], number, (), StepClock(1))
        step.write_back()
        # reads of the table share its memory: predictions would copy it for each batch
        one, other = (host_view(model.named_tensors()[WORDS].value) for _ in "12")
        assert np.shares_memory(one, other)
        return {name: variable.numpy() for name, variable in model.named_tensors().items()}

    start, google, ours = values_after(0, True), values_after(4, True), values_after(4, False)
    # not 0: no token
    others = np.setdiff1d(np.arange(1, 60), np.concatenate([row.input_ids for row in rows]))
    kept = np.prod([1 - 0.01 * google_rate(number, RATE, STEPS, WARMUP) for number in range(4)])
    assert len(others) > 20
    np.testing.assert_allclose(google[WORDS][others], start[WORDS][others] * kept, rtol=1e-6)
    np.testing.assert_array_equal(ours[WORDS][others], start[WORDS][others])
    google[WORDS][others] = start[WORDS][others]
    for name, right in google.items():
        np.testing.assert_allclose(ours[name], right, rtol=1e-4, atol=1e-5, err_msg=name)
    assert np.abs(google[WORDS] - start[WORDS]).max() > 0.01


@pytest.mark.slow
def test_the_loss_scale_doubles_after_2000_finite_steps_and_is_never_below_1():
    """As torch.amp.GradScaler and keras.optimizers.LossScaleOptimizer. A skipped step starts the
    count again."""
    trainer = Trainer("cpu", scales_loss=True)
    finite = [*map(tf.zeros_like, trainer.values), tf.zeros([1])]
    spoilt = [finite[0] * np.nan, *finite[1:]]

    def scale_after(total):
        return StepResult(trainer.optimizer.update(total), {"loss": 1.0}).read()["loss_scale"]

    assert scale_after(finite) > 1
    assert [scale_after(spoilt) for _ in range(30)][-1] == 1
    scales = [scale_after(finite) for _ in range(2000)]
    assert scales[-2:] == [1, 2]
