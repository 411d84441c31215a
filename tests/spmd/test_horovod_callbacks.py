"""Callbacks of hvd in `fit`, where formulas in NumPy or one rank are the referee."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from harness.models import same_weights
from keras import layers, optimizers

from ringbase.errors import InputError

STEPS, BATCH, RATE, EPOCHS = 4, 2, 0.5, 4
pytestmark = pytest.mark.ranks(3)


def inputs(rank):
    return np.random.default_rng(rank).normal(1, 1, [STEPS * BATCH, 3]).astype(np.float32)


def mean_output(_, outputs):
    """A loss whose gradient is the mean of the inputs, whatever the weights are."""
    return keras.ops.mean(outputs)


def linear_model(optimizer, **options):
    output = layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input([3]), output])
    model.compile(optimizer, mean_output, **options)
    return model


def fit(hvd, model, *callbacks, x=None, epochs=EPOCHS, **options):
    x = inputs(hvd.rank()) if x is None else x
    options |= {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    return model.fit(x, np.ones([len(x), 1]), epochs=epochs, callbacks=[*callbacks], **options)


class Rates(keras.callbacks.Callback):
    """The rate of each call of the training function."""

    def on_train_begin(self, logs=None):
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))


def warmup_on_paper(epochs_done, warmup_epochs, size):
    """Goyal et al. 2017, section 2.2: linear from RATE / size to RATE."""
    return RATE / size + (RATE - RATE / size) * min(epochs_done / warmup_epochs, 1)


@pytest.mark.parametrize("steps_per_execution", [1, 3, 4])
@pytest.mark.parametrize("warmup_epochs", [0.5, 1.5, 2])
def test_warmup_ends_at_its_rate(steps_per_execution, warmup_epochs, hvd):
    model = linear_model(optimizers.SGD(RATE), steps_per_execution=steps_per_execution)
    warmup, rates = hvd.callbacks.LearningRateWarmupCallback(RATE, warmup_epochs), Rates()
    logged = fit(hvd, model, warmup, rates).history["lr"]
    last_steps = [
        min(first + steps_per_execution, STEPS) for first in range(0, STEPS, steps_per_execution)
    ]
    ends = [epoch + last / STEPS for epoch in range(EPOCHS) for last in last_steps]
    on_paper = [warmup_on_paper(end, warmup_epochs, hvd.size()) for end in ends]
    np.testing.assert_allclose(rates.rates, on_paper, rtol=1e-6)  # a float32 variable
    at_ends = [warmup_on_paper(epoch, warmup_epochs, hvd.size()) for epoch in range(1, EPOCHS + 1)]
    np.testing.assert_allclose(logged, at_ends, rtol=1e-6)


def weights_on_paper(hvd, kind):
    """Horovod scales the momentum by new rate / old rate for the step at which the rate changes."""
    gradients = np.mean(
        [inputs(rank).reshape(STEPS, BATCH, 3).mean(1) for rank in range(hvd.size())], 0
    )
    weights, velocity, square, old_rate = np.zeros(3), np.zeros(3), np.zeros(3), RATE
    for step in range(2 * STEPS):
        gradient = gradients[step % STEPS].astype(np.float64)
        rate = warmup_on_paper((step + 1) / STEPS, 1.5, hvd.size())
        square = 0.9 * square + 0.1 * gradient**2
        change = rate * gradient / (np.sqrt(square + 1e-7) if kind == "rmsprop" else 1)
        velocity = 0.9 * (rate / old_rate) * velocity + change
        weights -= 0.9 * velocity + change if kind == "nesterov" else velocity
        old_rate = rate
    return weights


@pytest.mark.parametrize("scales_loss", [False, True])
def test_momentum_is_corrected_below_a_loss_scale_too(scales_loss, hvd):
    kinds = {
        "momentum": lambda: optimizers.SGD(RATE, momentum=0.9),
        "nesterov": lambda: optimizers.SGD(RATE, momentum=0.9, nesterov=True),
        "rmsprop": lambda: optimizers.RMSprop(RATE, rho=0.9, momentum=0.9),
    }
    for kind, make in kinds.items():
        optimizer = optimizers.LossScaleOptimizer(make(), 8.0) if scales_loss else make()
        model = linear_model(hvd.DistributedOptimizer(optimizer))
        fit(hvd, model, hvd.callbacks.LearningRateWarmupCallback(RATE, 1.5), epochs=2)
        weights = model.get_weights()[0][:, 0]
        np.testing.assert_allclose(weights, weights_on_paper(hvd, kind), rtol=1e-5, err_msg=kind)


def test_muon_adds_gradients_without_the_rate_and_needs_no_correction(hvd):
    weights = []
    for corrects in (True, False):
        keras.utils.set_random_seed(1)
        optimizer = optimizers.Muon(RATE, exclude_layers=["last"])
        model = keras.Sequential([keras.Input([3]), layers.Dense(4), layers.Dense(1, name="last")])
        model.compile(hvd.DistributedOptimizer(optimizer), "mse")
        warmup = hvd.callbacks.LearningRateWarmupCallback(RATE, 2, momentum_correction=corrects)
        fit(hvd, model, warmup, epochs=2)
        weights.append(model.get_weights()[0])
    np.testing.assert_array_equal(*weights)


def seeds_of(model):
    return [variable.numpy() for variable in model.variables if "seed_generator" in variable.path]


def test_random_numbers_stay_those_of_each_rank(hvd):
    """In `fit`, in a loop, and in hvd.elastic; the weights are rank 0's."""
    keras.utils.set_random_seed(5 + hvd.rank())
    noise = [layers.RandomFlip(), layers.Flatten(), layers.GaussianNoise(1.0), layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input([2, 2, 1]), *noise, layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.0)), "mse")
    before = seeds_of(model)
    hvd.broadcast_variables(model.variables, 0)
    hvd.elastic.TensorFlowKerasState(model).sync()
    np.testing.assert_array_equal(seeds_of(model), before)
    images = np.ones([STEPS * BATCH, 2, 2, 1])
    fit(hvd, model, hvd.callbacks.BroadcastGlobalVariablesCallback(0), x=images, epochs=1)
    for of_each in zip(*hvd.allgather_object(seeds_of(model)), strict=True):
        assert len({tuple(seed) for seed in of_each}) == hvd.size()
    same_weights(hvd, model)


def test_what_cannot_be_used_is_one_line(hvd):
    model = keras.Sequential([keras.Input([3]), layers.Dense(1)])
    with pytest.raises(InputError, match=r"no optimizer: call model\.compile"):
        hvd.elastic.KerasState(model)
    with pytest.raises(InputError, match="layers of Keras that are built, got 'dense'"):
        hvd.DistributedGradientTape(tf.GradientTape(), local_layers=["dense"])


class Adversaries(keras.Model):
    """Two networks with an optimizer each. The second one is built, and trained, after two steps of
    the first."""

    def __init__(self, *optimizers_of_both):
        super().__init__()
        self.first, self.second = [layers.Dense(2) for _ in range(2)]
        self.one, self.others = optimizers_of_both[0], [optimizers_of_both[1]]

    def train_step(self, data):
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.first(data[0]) ** 2)
            gradients = tape.gradient(loss, self.first.trainable_variables)
            self.one.apply_gradients(zip(gradients, self.first.trainable_variables, strict=True))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.second(self.first(data[0])) - 1) ** 2)
        gradients = tape.gradient(loss, self.second.trainable_variables)
        self.others[0].apply_gradients(zip(gradients, self.second.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("is_restored", [False, True])
def test_two_optimizers_of_a_model_begin_alike(is_restored, hvd):
    """Also when only rank 0 has restored their state; without, the model is built in its first
    step."""
    keras.utils.set_random_seed(7 + hvd.rank())
    both = [hvd.DistributedOptimizer(optimizers.Adam(0.01)) for _ in range(2)]
    model = Adversaries(*both)
    model.compile(steps_per_execution=1 if is_restored else 2)
    if is_restored:
        model.first.build([None, 3])
        model.second.build([None, 2])
        model.built = True
        for optimizer, layer in zip(both, (model.first, model.second), strict=True):
            optimizer.build(layer.trainable_variables)
            for variable in optimizer.variables if hvd.rank() == 0 else ():
                if variable.shape.rank:
                    variable.assign(tf.ones_like(variable) / 2)
    fit(hvd, model, hvd.callbacks.BroadcastGlobalVariablesCallback(0), epochs=2)
    same_weights(hvd, model)


def test_an_optimizer_that_only_one_rank_has_built_is_named(hvd):
    model = Adversaries(*(hvd.DistributedOptimizer(optimizers.Adam(0.01)) for _ in range(2)))
    model.compile()
    model.first.build([None, 3])
    model.built = True
    if hvd.rank() == 0:
        model.one.build(model.first.trainable_variables)
    with pytest.raises(InputError, match=r"state of model\.one"):
        fit(hvd, model, hvd.callbacks.BroadcastGlobalVariablesCallback(0))


def plateau(**options):
    return keras.callbacks.ReduceLROnPlateau("loss", patience=0, factor=0.5, **options)


def test_what_cannot_work_is_refused_on_every_rank_with_its_cause(hvd):
    warmup = hvd.callbacks.LearningRateWarmupCallback(RATE, 2)
    staircase = hvd.callbacks.LearningRateScheduleCallback(RATE, 0.1)
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    means = hvd.callbacks.MetricAverageCallback()
    schedule = optimizers.schedules.CosineDecay(0.1, 10)
    scheduled = optimizers.LossScaleOptimizer(optimizers.SGD(schedule))
    several = optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD(0.1)))
    stop = keras.callbacks.EarlyStopping("loss", patience=0)
    uses = [
        (optimizers.SGD(schedule), [warmup], "SGD: its learning_rate must be a number"),
        (scheduled, [staircase], "LossScaleOptimizer: its learning_rate must be a number"),
        (several, [warmup], "MultiOptimizer: its learning_rate must be a number"),
        (optimizers.SGD(0.1), [first], "first epoch of fit.*BackupAndRestore"),
        (
            optimizers.SGD(0.1),
            [plateau(), means],
            "the learning rate .*ReduceLROnPlateau.*rank 1: 0.05",
        ),
        (optimizers.SGD(0.1), [stop, means], "stop_training .*EarlyStopping.*rank 1: True"),
    ]
    for optimizer, callbacks, named in uses:
        model = linear_model(optimizer)
        x = inputs(hvd.rank()) * (hvd.rank() != 1)  # rank 1's loss stays 0, and the others' falls
        start = hvd.rank() if callbacks == [first] else 0
        with pytest.raises(InputError, match=named) as caught:
            fit(hvd, model, *callbacks, x=x, initial_epoch=start)
        assert "\n" not in str(caught.value)
    model = linear_model(hvd.DistributedOptimizer(optimizers.SGD(0.1)))
    fit(hvd, model, first, means, plateau(min_delta=1e9), stop)
    rates = hvd.allgather_object(float(model.optimizer.learning_rate))
    assert max(rates) == min(rates) < 0.1


def test_backup_and_restore_on_every_rank_goes_on_where_it_was(hvd, session_folder):
    """`session_folder` is another one on each rank."""
    folder = session_folder / f"of {hvd.size()} ranks"

    def begun(epochs, *callbacks):
        keras.utils.set_random_seed(1 + hvd.rank())
        hidden = layers.Dense(4, activation="tanh")  # Keras does not back up random numbers
        model = keras.Sequential([keras.Input([3]), hidden, layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(optimizers.Adam(0.1)), "mse")
        first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        history = fit(hvd, model, first, *callbacks, epochs=epochs)
        return history.epoch, model.get_weights()

    def backup():
        return keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)

    _, whole = begun(EPOCHS)
    begun(2, backup())
    epochs, resumed = begun(EPOCHS, backup())
    assert epochs == list(range(2, EPOCHS))
    for weight, other in zip(whole, resumed, strict=True):
        np.testing.assert_array_equal(weight, other)
