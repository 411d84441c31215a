"""Steps on GPUs: compiled as a whole by XLA, for all shapes before the first one, and shown one step late.

XLA's CPU compiler stands in for that of GPUs, and `World.device` says "gpu".
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from programs import toy

from distributed.collectives import CollectivesSettings
from distributed.collectives.local import LocalCollectives
from distributed.collectives.tensorflow import TensorflowCollectives
from distributed.gradient import Ending, Gradient, dropout_key, gradient_function
from distributed.optimizer import AllreduceOptimizer
from distributed.run import Run
from distributed.settings import LoopSettings
from distributed.steps import StepClock
from distributed.train import Training, train
from distributed.world import World
from ringbert.errors import InputError

GPU = World(device="gpu")
SHAPES = (14, 5)  # rows of a batch


def batch_of(rows: int) -> dict[str, np.ndarray]:
    return toy.collate(toy.rows().take(np.arange(rows)))


def variables(optimizer: AllreduceOptimizer) -> list[np.ndarray]:
    return [variable.numpy() for variable in (*optimizer.trainable, *optimizer.state().values())]


def toy_step(applies: bool, scales_loss: bool = False) -> tuple[AllreduceOptimizer, Gradient]:
    model = toy.make_model(seed=1)
    optimizer = toy.make_optimizer(
        model, GPU, LocalCollectives(), scales_loss=scales_loss, optimizer=keras.optimizers.Adam(0.01)
    )
    return optimizer, Gradient(optimizer, toy.squared_loss(model), is_fixed=True, applies=applies)


@pytest.mark.parametrize("num_batches", [1, 3])
def test_a_step_compiled_as_a_whole_is_the_step_in_parts(num_batches):
    results = {}
    for applies in (True, False):
        optimizer, gradient = toy_step(applies, scales_loss=True)
        for number in range(3):
            batches = [batch_of(rows) for rows in (14, 14, 5)[:num_batches]]
            weights = {"loss": float(sum(len(batch["y"]) for batch in batches))}
            keys = [dropout_key(0, number, piece, 0) for piece in range(num_batches)]
            output = gradient(batches, optimizer.inverse_weights(weights), keys)
            result = optimizer.result(output, weights) if applies else optimizer.update(output, weights)
        numbers = result.losses["loss"], result.gradient_norm, result.learning_rate, result.loss_scale
        results[applies] = [*variables(optimizer), np.array(numbers)]
        assert result.applied
        assert optimizer.steps_done == 3
    for whole, parts in zip(results[True], results[False], strict=True):
        np.testing.assert_allclose(whole, parts, rtol=1e-12, atol=1e-15)  # float64, other orders of addition


@pytest.mark.parametrize("applies", [True, False])
def test_compiling_all_shapes_first_changes_nothing_and_leaves_nothing_to_compile(applies):
    optimizer, gradient = toy_step(applies, scales_loss=True)
    before = variables(optimizer)
    gradient.compile((batch_of(rows) for rows in SHAPES), num_batches=2)
    for old, new in zip(before, variables(optimizer), strict=True):
        assert old.tobytes() == new.tobytes()
    functions = list(gradient._functions.values())
    assert len(functions) == 1 + applies  # of the first micro-batch, and of the last one
    traces = [function.experimental_get_tracing_count() for function in functions]
    assert traces == [len(SHAPES)] * len(functions)
    inverse_weights = optimizer.inverse_weights({"loss": 28.0})
    for rows in SHAPES:
        output = gradient([batch_of(rows)] * 2, inverse_weights, [dropout_key(0, 0, 0, 0)] * 2)
        assert np.isfinite(output.numpy()).all()
    assert [function.experimental_get_tracing_count() for function in functions] == traces
    assert optimizer.steps_done == (len(SHAPES) if applies else 0)


def metrics_of(folder: Path, world: World, xla: str, spoilt: tuple[int, ...] = (), steps: int = 20) -> list[dict]:
    """The lines of metrics.jsonl of some steps of the toy, with a NaN in the batches `spoilt`."""
    calls = 0

    def collate(fields: dict) -> dict[str, np.ndarray]:
        nonlocal calls
        calls += 1
        batch = toy.collate(fields)
        return batch | {"y": batch["y"] * np.nan} if calls in spoilt else batch

    feed = replace(toy.feed(collate), collate_fixed=collate, collates_of_shapes=[toy.collate])
    run, model = Run(folder, True), toy.make_model(0)
    optimizer = toy.make_optimizer(model, world, LocalCollectives())
    training = Training(model=model, feed=feed, loss=toy.squared_loss(model), settings={})
    settings = LoopSettings(seed=7, log_steps=3, xla=xla, save_checkpoints_steps=4)
    plan = toy.plan_of(1, global_batch_size=14, num_train_steps=steps)
    checkpoints = toy.make_checkpoints(folder, world, model)
    try:
        state = train(settings, plan, training, optimizer, run, checkpoints)
    finally:
        checkpoints.close()
    run.close()
    assert state.step == steps
    assert optimizer.steps_done == steps - len(spoilt)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_steps_that_are_shown_late_are_logged_as_they_were(tmp_path, capsys):
    on_cpu = metrics_of(tmp_path / "cpu", World(), "off")
    assert [line["step"] for line in on_cpu] == [1, 3, 6, 9, 12, 15, 18, 20]
    for xla in ("off", "on"):
        on_gpu = metrics_of(tmp_path / f"gpu-{xla}", GPU, xla)
        for here, there in zip(on_cpu, on_gpu, strict=True):
            for name in ("step", "rows", "loss", "gradient_norm", "learning_rate"):
                assert there[name] == pytest.approx(here[name], rel=1e-10)
            assert there["examples_per_s"] > 0
            is_timed = there["step"] in (3, 6, 9, 12, 15, 18)  # every third step
            assert ("compute_s" in there) is is_timed
    printed = capsys.readouterr().err
    assert printed.count("building the training step: the first step takes longer\n") == 3  # once for each run
    assert "takes longer\nXLA compiled the step for 1 shape in" in printed


def test_a_skipped_step_is_named_although_it_is_shown_late(tmp_path, capsys):
    metrics_of(tmp_path, GPU, "on", spoilt=(5, 12))
    printed = capsys.readouterr().err
    assert printed.count("the gradient is not finite") == 2
    for step in (5, 12):
        assert f"step {step}: the gradient is not finite" in printed


@pytest.mark.parametrize("world", [World(), GPU])
def test_a_run_that_learned_nothing_fails_and_does_not_save_its_last_step(tmp_path, world):
    for steps, spoilt, reason in (
        (10, range(1, 11), "no step had a finite gradient"),
        (11, (11,), "the loss of the last step is nan"),
    ):
        folder = tmp_path / str(steps)
        with pytest.raises(InputError, match=reason):
            metrics_of(folder, world, "off", tuple(spoilt), steps)
        saved = [int(path.name.removeprefix("rows-")) // 14 for path in (folder / "checkpoints").iterdir()]
        assert sorted(saved) == [4, 8]


def test_a_sum_within_the_compiled_step_needs_nccl():
    settings = CollectivesSettings(overlap="compiled")
    model = toy.make_model(seed=1)
    with pytest.raises(InputError, match="--overlap compiled needs the backend nccl, but this run uses local"):
        AllreduceOptimizer(
            keras.optimizers.SGD(0.1), model.trainable_variables, World(size=2), LocalCollectives(),
            settings=settings,
        )  # fmt: skip


@pytest.mark.parametrize("compresses", [False, True])
def test_the_sum_over_ranks_is_an_all_reduce_of_the_compiled_step(compresses):
    """As XLA reads the step of one of two ranks: each bucket is summed over both, and the loss sums in full width.

    Nothing is sent here, so this shows what is compiled, not that NCCL runs it.
    """
    world = World(rank=0, size=2, device="gpu")
    collectives = TensorflowCollectives(world, "nccl")
    collectives._device = tf.device(None)  # there is no GPU to compile for
    model = toy.make_model(seed=1)
    settings = CollectivesSettings(overlap="compiled")
    optimizer = AllreduceOptimizer(
        keras.optimizers.Adam(0.01), model.trainable_variables, world, collectives, settings=settings
    )
    optimizer.compresses = compresses
    optimizer.layout._buckets = [[2, 3], [0, 1]]
    assert optimizer.compiles_steps
    function = gradient_function(optimizer, toy.squared_loss(model), None, Ending.APPLY)
    inverse_weights = optimizer.inverse_weights({"loss": 28.0})
    batch = {name: tf.constant(array) for name, array in batch_of(14).items()}
    read = function.experimental_get_compiler_ir(batch, inverse_weights, tf.constant([1, 2]), None)
    sums = re.findall(
        r" = (\w+)\[(\d+)\]\S* all-reduce\(.*?replica_groups=(\S+), to_apply=%add", read(stage="hlo")
    )
    number = "bf16" if compresses else "f64"
    # The variables of the toy have 8 and 1, 32 and 8 numbers; each takes whole cache lines of 16.
    expected = [(number, "32"), (number, "48"), ("f64", "16")]
    assert sorted(sums) == sorted((*each, "{{0,1}}") for each in expected)


class Pending:
    """The result of an operation that a GPU has not finished; notes when it is awaited."""

    def __init__(self, name: str, awaited: list[str]):
        self.name, self.awaited = name, awaited

    def __getitem__(self, _):
        return tf.constant([0.0]) if self.awaited.append(self.name) is None else None


def test_the_clock_waits_only_for_the_steps_that_it_times_in_parts():
    awaited: list[str] = []
    clock = StepClock(rows_per_step=8, waits=True, sample_every=3)
    for number in range(1, 7):
        for part in ("data_s", "compute_s", "reduce_s", "apply_s"):
            clock.mark(part, None if part == "data_s" else Pending(f"{part} of {number}", awaited))
    parts = ["compute_s", "reduce_s", "apply_s"]
    expected = ["apply_s of 2", *(f"{part} of 3" for part in parts)]
    assert awaited == [*expected, "apply_s of 5", *(f"{part} of 6" for part in parts)]
    assert set(clock.read()) == {"data_s", *parts, "examples_per_s"}
    assert set(clock.read()) == {"examples_per_s"}
