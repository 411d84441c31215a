"""Jobs with hvd: a wrong use in a graph is one line over all ranks, names without a counterpart
say so, each call gives NumPy's numbers, and old scripts run unchanged."""

import functools
import importlib
import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from harness.jobs import launch, program, run
from harness.mpi import ROOT

import ringbert.horovod as hvd
import ringbert.horovod.tensorflow.keras  # noqa: F401  (a submodule of hvd)
from ringbase.errors import InputError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "num_ranks", "backend", "named"),
    [
        ("right", 1, "auto", None),  # without a launcher
        ("right", 2, "ring", None),
        ("jit", 2, "auto", "jit_compile=True needs NCCL"),
        ("early", 2, "auto", r"rank 0: the end of the script.*rank 1: hvd\.allreduce"),
    ],
)
def test_a_script_trains_and_a_wrong_use_in_a_graph_is_one_line(case, num_ranks, backend, named):
    done = run(launch(num_ranks, *program("horovod_use.py", case)), RINGBERT_BACKEND=backend)
    assert (done.status, "Traceback" in done.stderr) == (int(named is not None), False), str(done)
    if named:
        (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
        assert re.match(rf"horovod_use\.py: error: .*{named}", line), line


@pytest.mark.parametrize("name", ["Adasum_", "run", "spark", "start_timeline", "data", "torch"])
def test_what_has_no_counterpart_may_be_named_and_says_so_where_it_is_used(name):
    if name == "Adasum_":

        @tf.function
        def mean(x, is_adasum=False):
            op = hvd.Adasum if is_adasum else hvd.Average
            return (x, op) if x > 0 else (-x, op)  # which needs AutoGraph

        assert mean(tf.constant(-2.0))[0] == 2
        use = functools.partial(hvd.DistributedOptimizer, keras.optimizers.SGD(), op=hvd.Adasum)
        named = r"op='Adasum' \(docs/horovod\.md\)"
    else:
        assert getattr(hvd, name) is getattr(hvd.tensorflow.keras, name)
        use, named = getattr(hvd, name), rf"hvd\.{name} has no counterpart .*\(docs/horovod\.md\)"
        with pytest.raises(NotImplementedError, match=named):
            print(getattr(hvd, name).attribute)
    with pytest.raises(NotImplementedError, match=named) as caught:
        use()
    assert isinstance(caught.value, InputError)


MODULES = "torch mxnet spark.common runner run.runner tensorflow.data common.util"


@pytest.mark.parametrize("name", MODULES.split())
def test_a_module_without_a_counterpart_is_not_found_and_says_why(name):
    with pytest.raises(ModuleNotFoundError, match=r"horovod\.\w+.* has no counterpart") as caught:
        importlib.import_module(f"ringbert.horovod.{name}")
    assert isinstance(caught.value, InputError)


def test_arguments_that_versions_of_horovod_order_differently_are_refused():
    callbacks = hvd.callbacks
    uses = {
        "initial_lr=5.0, or warmup_epochs=5": lambda: callbacks.LearningRateWarmupCallback(5),
        "multiplier=": lambda: callbacks.LearningRateScheduleCallback(0.1),
        "start_epoch=": lambda: callbacks.LearningRateScheduleCallback(lambda epoch: 1.0, 30),
        "after sparse_as_dense by name": lambda: hvd.DistributedOptimizer(
            keras.optimizers.SGD(), None, False, "", "", hvd.Compression.none, False, 2
        ),
        "needs an optimizer of Keras 3": lambda: hvd.DistributedOptimizer(
            tf.compat.v1.train.AdamOptimizer()
        ),
    }
    for named, use in uses.items():
        with pytest.raises(InputError, match=rf"{named}.*docs/horovod\.md") as caught:
            use()
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_each_call_gives_numpys_numbers():
    """On the general number of ranks; tests/soak/horovod has others."""
    assert run(launch(3, *program("horovod_calls.py"))).json()["checks"] > 100


# -- scripts of 2018 to 2022, unchanged ------------------------------------------------------------

ROWS, BATCH = 128, 16  # of all ranks


def plain_training(model, optimizer, loss, data, epochs=1, rates=None):
    """What Keras gives on one rank with the batches of all; the losses of the steps."""
    losses = []
    for epoch in range(epochs):
        for step in range(ROWS // BATCH):
            x, y = (part[step * BATCH :][:BATCH] for part in data)
            if rates:
                optimizer.learning_rate = rates(epoch + (step + 1) * BATCH / ROWS)
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(loss(y, model(x, training=True)))
            gradients = tape.gradient(value, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            losses.append(float(value))
    return losses


def years_on_paper(synthetic):
    x, y = synthetic.digits(ROWS)
    targets = keras.utils.to_categorical(y, 10)
    flat = keras.losses.sparse_categorical_crossentropy
    plain = synthetic.perceptron()
    losses = plain_training(plain, keras.optimizers.SGD(0.1), flat, (x, y))
    weights = synthetic.fingerprint(plain.get_weights())
    yield "year_2019", {"weights": weights, "loss": losses}
    yield "year_2020", {"weights": weights, "batch": 8}
    yield "year_2022", {"weights": weights, "loss": losses}

    first = keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    synthetic.set_weights(first)
    cross, rate = keras.losses.categorical_crossentropy, 0.04

    def rates(epoch):
        return rate * (0.5 + min(epoch / 2, 1) / 2) if epoch <= 3 else 0.1 * rate

    losses = plain_training(first, keras.optimizers.SGD(), cross, (x, targets), 4, rates)
    yield (
        "year_2018",
        {
            "weights": synthetic.fingerprint(first.get_weights()),
            "lr": [rates(epoch) for epoch in (1, 2, 3, 4)],
            "loss": np.reshape(losses, [4, -1]).mean(1).tolist(),
            "score": float(tf.reduce_mean(cross(targets, first(x)))),
            "epsilon": 1e-7,
        },
    )

    adam = synthetic.perceptron()
    optimizer, square = keras.optimizers.Adam(), keras.losses.mean_squared_error
    plain_training(
        adam, optimizer, square, (x, targets), 2, lambda epoch: 0.001 * (1 + min(epoch, 1))
    )
    yield "year_2019_keras", {"weights": synthetic.fingerprint(adam.get_weights())}

    of_ranks = []
    for seed in range(2):
        own = synthetic.perceptron()
        x, y = synthetic.digits(64, seed=seed)
        optimizer = keras.optimizers.SGD(0.1)
        for start in range(0, 64, BATCH):
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(flat(y[start:][:BATCH], own(x[start:][:BATCH])))
            gradients = tape.gradient(value, own.trainable_variables)
            optimizer.apply_gradients(zip(gradients, own.trainable_variables))
        of_ranks.append(synthetic.fingerprint(own.get_weights()))
    yield "year_2021", {"of_ranks": of_ranks}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Do not pass an `input_shape`")
def test_scripts_of_five_years_run_unchanged_and_give_kerass_numbers(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "horovod")
    import synthetic

    on_paper = dict(years_on_paper(synthetic))
    names = sorted(on_paper)
    done = run(launch(2, *program("horovod_years.py", *names), flags=("--horovod",)))
    for name, numbers in done.json().items():
        assert numbers.keys() == on_paper[name].keys()
        for key, number in numbers.items():
            np.testing.assert_allclose(
                number, on_paper[name][key], rtol=2e-4, atol=2e-4, err_msg=f"{name} {key}"
            )


@pytest.mark.slow
def test_a_restarted_job_goes_on_from_its_last_commit(tmp_path):
    disturbed, alone = (
        run(
            launch(ranks, *program("horovod_commits.py", 8), flags=("--restarts=1",)),
            RINGBERT_CACHE=str(tmp_path),
            RINGBERT_RESTART=restart,
        )
        for ranks, restart in ((2, "0"), (1, "1"))
    )
    assert "state.other: not kept for a restart" in disturbed.stderr
    assert disturbed.json()["begun"] == [3]  # 5 steps were done, and 3 committed
    assert alone.json()["begun"] == [0]
    assert disturbed.json()["steps"] == alone.json()["steps"] == 8
    for found, expected in zip(disturbed.json()["weights"], alone.json()["weights"], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert not [*(tmp_path / "commits").iterdir()]


@pytest.mark.slow
def test_where_horovod_is_installed_it_stops_unless_told(tmp_path):
    installed = tmp_path / "site" / "horovod" / "tensorflow"
    installed.mkdir(parents=True)
    for folder in installed, installed.parent:
        (folder / "__init__.py").touch()
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport horovod.tensorflow as hvd\nhvd.init()\nprint(hvd.size(), sys.argv)\n"
    )
    path = f"{ROOT}:{tmp_path / 'site'}"
    command = [sys.executable, "-m", "ringbert.horovod"]
    done = run([*command, script, "--a"], PYTHONPATH=path)
    assert done.status == 1
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    assert f"Horovod is installed ({installed.parent})" in line
    done = run([*command, "--always", script, "--a"], PYTHONPATH=path)
    assert done.stdout == f"1 ['{script}', '--a']\n"
