"""Optimizers that are made of others, copied, or loaded train on several ranks as plain Keras does
on one."""

import copy
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
from harness.models import same_weights, weights_of
from harness.mpi import HANGS_S
from keras import optimizers

from ringbase.errors import InputError

GLOBAL_BATCH, STEPS = 12, 4
# float64: sums over ranks round in another order.
TOLERANCE = {"rtol": 1e-12, "atol": 1e-14}
pytestmark = [
    pytest.mark.ranks(3),
    pytest.mark.usefixtures("float64"),
    # A copy of an optimizer has no state: plain Keras says so too.
    pytest.mark.filterwarnings("ignore:Skipping variable loading"),
]


def make_model():
    keras.utils.set_random_seed(1)
    hidden = keras.layers.Dense(5, activation="tanh", name="encoder")
    return keras.Sequential([keras.Input([6]), hidden, keras.layers.Dense(3, name="head")])


def share(hvd=None):
    """The arguments of `fit` for this rank's rows of each global batch; for all of them without
    hvd."""
    rank, size = (hvd.rank(), hvd.size()) if hvd else (0, 1)
    draw = np.random.default_rng(5)
    x, y = draw.normal(size=[STEPS * GLOBAL_BATCH, 6]), draw.normal(size=[STEPS * GLOBAL_BATCH, 3])
    options = {"batch_size": GLOBAL_BATCH // size, "shuffle": False, "verbose": 0}
    return {"x": x[rank::size], "y": y[rank::size], **options}


def compiled(optimizer):
    model = make_model()
    model.compile(optimizer, keras.losses.MeanSquaredError())
    return model


def trained_alone(optimizer, epochs=2):
    """The weights that plain Keras gives, with the whole batches."""
    model = compiled(optimizer)
    model.fit(**share(), epochs=epochs)
    return weights_of(model)


def two_optimizers(wrapper=lambda optimizer: optimizer):
    parts = [wrapper(optimizers.SGD(0.1, momentum=0.9)), wrapper(optimizers.Adam(0.01))]
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(parts[0], {".*encoder/.*": parts[1]}))


def by_function():
    parts = [optimizers.SGD(0.1), optimizers.Adam(0.01, gradient_accumulation_steps=2)]
    return optimizers.MultiOptimizer(lambda variable: parts["encoder" in variable.path])


@keras.saving.register_keras_serializable("test_horovod_optimizers")
class OwnSGD(optimizers.SGD):
    """A user's optimizer."""


KINDS = {
    "own": lambda: OwnSGD(0.1, momentum=0.9),
    "adam": lambda: optimizers.Adam(0.01, global_clipnorm=0.1),
    "scaled": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1, momentum=0.9)),
    "two": two_optimizers,
    "scaled two": lambda: optimizers.LossScaleOptimizer(two_optimizers()),
    "by function": by_function,
}


@pytest.mark.parametrize("kind", ["two", "scaled two", "by function", "parts"])
def test_a_multi_optimizer_averages(kind, hvd):
    alone = trained_alone(KINDS["two" if kind == "parts" else kind]())
    if kind == "parts":
        optimizer = two_optimizers(hvd.DistributedOptimizer)
        named = "parts of this MultiOptimizer are distributed already"
        with pytest.raises(InputError, match=named):
            hvd.DistributedOptimizer(optimizer)
    else:
        optimizer = hvd.DistributedOptimizer(KINDS[kind]())
        with pytest.raises(InputError, match="not for a MultiOptimizer"):
            hvd.DistributedOptimizer(two_optimizers(), backward_passes_per_step=2)
    model = compiled(optimizer)
    model.fit(**share(hvd), epochs=2)
    np.testing.assert_allclose(same_weights(hvd, model), alone, **TOLERANCE)


def compiled_as(model):
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    clone.compile_from_config(model.get_compile_config())
    return clone


# From an optimizer, a model with another one.
COPIES = {
    "deepcopy": lambda optimizer: compiled(copy.deepcopy(optimizer)),
    "pickle": lambda optimizer: compiled(pickle.loads(pickle.dumps(optimizer))),
    "from_config": lambda optimizer: compiled(type(optimizer).from_config(optimizer.get_config())),
    "serialize": lambda optimizer: compiled(
        optimizers.deserialize(optimizers.serialize(optimizer))
    ),
    "clone_model": lambda optimizer: compiled_as(compiled(optimizer)),
    "deepcopy of a model": lambda optimizer: copy.deepcopy(compiled(optimizer)),
    "pickle of a model": lambda optimizer: pickle.loads(pickle.dumps(compiled(optimizer))),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["adam", "scaled", "two", "own"])
def test_copies_stay_distributed(kind, hvd):
    alone = trained_alone(KINDS[kind](), epochs=1)
    for name, made in COPIES.items():
        model = made(hvd.DistributedOptimizer(KINDS[kind]()))
        model.fit(**share(hvd))
        np.testing.assert_allclose(same_weights(hvd, model), alone, **TOLERANCE, err_msg=name)
        again = compiled(hvd.DistributedOptimizer(model.optimizer, op=hvd.Sum))
        assert again.optimizer is model.optimizer


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("op", "mean", "suffix"),
    [("average", True, ".keras"), ("average", False, ".h5"), ("sum", False, ".keras")],
)
def test_a_loaded_model_goes_on_exactly_as_if_it_had_not_stopped(op, mean, suffix, hvd, folder):
    options = {"backward_passes_per_step": 2, "average_aggregated_gradients": mean, "op": op}
    schedule = optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
    for number, optimizer in enumerate(
        (
            OwnSGD(0.05),
            optimizers.SGD(schedule, momentum=0.9, nesterov=True),
            optimizers.Adam(0.01, gradient_accumulation_steps=2),
            optimizers.LossScaleOptimizer(optimizers.RMSprop(0.01, momentum=0.9)),
        )
    ):
        whole = compiled(hvd.DistributedOptimizer(optimizer, **options))
        whole.fit(**share(hvd))
        path = folder / f"{number}{suffix}"
        if hvd.rank() == 0:
            whole.save(path)
        hvd.barrier()
        loaded = hvd.load_model(path)
        for model in (whole, loaded):
            model.fit(**share(hvd), epochs=2, initial_epoch=1)
        assert int(loaded.optimizer.iterations) == int(whole.optimizer.iterations) == 2 * STEPS
        np.testing.assert_array_equal(same_weights(hvd, loaded), same_weights(hvd, whole))


def test_gradients_that_are_still_added_up_stay_with_their_rank(hvd):
    """A second `fit`, which broadcasts again, begins between two passes of one step."""
    options = {"backward_passes_per_step": 3, "average_aggregated_gradients": True}
    first = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model = compiled(hvd.DistributedOptimizer(optimizers.SGD(0.1), **options))
    for _ in range(3):
        model.fit(**share(hvd), callbacks=first)
    alone = trained_alone(optimizers.SGD(0.1, gradient_accumulation_steps=3), epochs=3)
    np.testing.assert_allclose(same_weights(hvd, model), alone, **TOLERANCE)


PLAIN = """
import sys, keras, numpy
keras.config.set_floatx("float64")
model = keras.models.load_model(sys.argv[1])
optimizer = model.optimizer
assert type(optimizer) is keras.optimizers.Adam and int(optimizer.iterations) == 2, optimizer
numpy.savez(sys.argv[2], *[variable.numpy() for variable in optimizer.variables])
model.fit(numpy.ones([4, 6]), numpy.ones([4, 3]), verbose=0)
"""


@pytest.mark.ranks(2)
def test_plain_keras_loads_what_was_saved(hvd, folder):
    """In a process of its own: where hvd is imported, what is loaded is distributed, also by
    Keras."""
    options = {"backward_passes_per_step": 2}
    model = compiled(hvd.DistributedOptimizer(optimizers.Adam(0.01), **options))
    model.fit(**share(hvd))
    path, variables = folder / "model.keras", folder / "variables.npz"
    if hvd.rank() == 0:
        model.save(path)
        environment = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-c", PLAIN, path, variables]
        subprocess.run(command, env=environment, check=True, timeout=HANGS_S)
        theirs = np.load(variables).values()
        for ours, loaded in zip(model.optimizer.variables, theirs, strict=True):
            np.testing.assert_array_equal(ours.numpy(), loaded)
    hvd.barrier()
    loaded = keras.models.load_model(path)
    for one in (model, loaded):
        one.fit(**share(hvd))
    np.testing.assert_array_equal(same_weights(hvd, loaded), same_weights(hvd, model))
