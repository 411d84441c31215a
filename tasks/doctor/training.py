"""Checks of what training does: sums over ranks, N ranks against one, save and resume, number formats, speed.

The trainings are those of the programs, of a small model without dropout on random tokens.
"""

import contextlib
import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from distributed.collectives import Collectives, open_collectives
from distributed.order import Order
from distributed.run import Run
from distributed.world import World
from ringbase.settings import made
from tasks.bench.settings import LoadSettings
from tasks.bench.step import model_config, random_rows, step_figures
from tasks.doctor.page import Finding, Page
from tasks.fit import TrainingData, fit
from tasks.job import Job, set_precision
from tasks.settings import MachineSettings, TrainingSettings
from tasks.squad.task import SpanTask
from tasks.start import Start, newest_checkpoint

SIZE = 300_001  # numbers in a sum: odd, and more than one piece of every backend
STEPS, LENGTH = 4, 64  # of a training; tokens of its rows
# How far losses and gradient norms may be apart, as a share: sums in another order; other number formats.
ROUNDING, OTHER_FORMAT = 1e-3, 3e-2
LOW_SHARE = 0.2  # of the speed of one large product
WRONG = (
    "training cannot be right here: update the driver and TensorFlow with its CUDA libraries, try another GPU, "
    "--device cpu, --backend mpi or another --precision, and report it with this page"
)


def check_sums(world: World, collectives: Collectives) -> Finding:
    """The backend's sum of float32 against NumPy's, and the same bits on every rank."""
    parts = [np.random.default_rng(rank).standard_normal(SIZE).astype(np.float32) for rank in range(world.size)]
    with world.operation("a sum on trial"):
        total = np.array(collectives.all_reduce_sum([tf.constant(parts[world.rank])])[0])
    bound = world.size * np.finfo(np.float32).eps * np.sum(np.abs(parts), axis=0, dtype=np.float64)
    error = float(np.max(np.abs(total - np.sum(parts, axis=0, dtype=np.float64)) / bound))
    world.agree({"the bits of a sum over ranks": hashlib.sha256(total.tobytes()).hexdigest()})
    if not error <= 1:
        return Finding("failed", f"the error is {error:.3g} times what rounding allows", WRONG)
    return Finding("ok", "NumPy's to rounding, with the same bits on every rank")


def check_trainings(world: World, collectives: Collectives, output_dir: Path, page: Page) -> None:
    """The losses and gradient norms of a training, and of others that must have the same to rounding."""
    tf.get_logger().setLevel("ERROR")  # each model is traced once, which looks like retracing
    folder = Path(world.on_first(lambda: tempfile.mkdtemp(prefix=".bert-doctor.", dir=output_dir)))
    num_rows, expected = max(8, 2 * world.size), np.empty((0, 2))
    train = partial(train_on_trial, folder, num_rows, world, collectives)

    def run_once() -> Finding:
        nonlocal expected
        expected = train()
        return Finding("ok", f"a small model trains, {STEPS} steps")

    def compare(name: str, tolerance: float, training: Callable[[], np.ndarray]) -> None:
        def find() -> Finding:
            difference = float(np.max(np.abs(expected / training() - 1)))
            text = f"losses and gradients differ by {difference:.1e}" if difference else "the same bits"
            if not difference <= tolerance:
                return Finding("failed", f"{text}, must be at most {tolerance:g}", WRONG)
            return Finding("ok", text)

        page.check(name, find)

    def resume() -> np.ndarray:
        """Goes on from the checkpoint before the last."""
        world.on_first(lambda: shutil.rmtree(max(folder.glob(f"{world.size}-fp32-off/checkpoints/rows-*"))))
        return train()

    try:
        if not page.check("a training", run_once):
            return
        if world.size > 1:
            one = World(device=world.device)
            alone = partial(train_on_trial, folder, num_rows, one, open_collectives(one))
            compare("ranks against one", ROUNDING, lambda: world.on_first(alone))
        compare("save and resume", ROUNDING if world.device.is_gpu else 0.0, resume)
        compare("fp32 --xla on", ROUNDING, partial(train, "fp32", "on"))
        for precision, xla in (("bf16", "off"), ("bf16", "on"), *[("fp16", "on")] * world.device.is_gpu):
            compare(f"{precision} --xla {xla}", OTHER_FORMAT, partial(train, precision, xla))
    finally:
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def train_on_trial(
    folder: Path, num_rows: int, world: World, collectives: Collectives, precision: str = "fp32", xla: str = "off"
) -> np.ndarray:
    """Trains, or goes on from the last checkpoint. Returns every step's loss and gradient norm."""
    values = {
        "global_batch_size": num_rows, "num_train_steps": STEPS, "num_warmup_steps": 0, "log_steps": 1,
        "save_checkpoints_steps": STEPS // 2, "xla": xla,
    }  # fmt: skip
    config = model_config("tiny", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    rows = random_rows(num_rows, LENGTH, config.vocab_size)
    set_precision(precision)
    output_dir = folder / f"{world.size}-{precision}-{xla}"
    with contextlib.redirect_stderr(io.StringIO()), contextlib.closing(Run(output_dir, world.rank == 0)) as run:
        job, start = Job(world, collectives, run), Start(config)
        job.make_model(config, "span", seed=0)
        if saved := world.on_first(newest_checkpoint, "auto", output_dir, run.say):
            start = replace(start, weights=saved.path, checkpoint=saved.path, state=saved.state)
        data = TrainingData(rows=rows, order=Order(num_rows, seed=0), key="random tokens")
        fit(SpanTask(LENGTH), data, start, made(TrainingSettings, values), job)
    lines = world.on_first((output_dir / "metrics.jsonl").read_text).splitlines()
    return np.array([[line["loss"], line["gradient_norm"]] for line in map(json.loads, lines)])


def check_speed(world: World, collectives: Collectives, machine: MachineSettings) -> Finding:
    """A few steps of BERT-base on random tokens: 32 x 384 on a GPU, 1 x 128 on a CPU."""
    values: dict[str, object] = {"batch_size": 1, "seq_length": 128, "num_warmup": 1, "num_steps": 2}
    if world.device.is_gpu:
        values = {"batch_size": 32, "seq_length": 384, "xla": "on"}
    load = replace(made(LoadSettings, values | {"model_size": "base"}), machine=machine)
    figures = step_figures(load, world, collectives)
    share = figures["flop_per_s"] / figures["peak_flop_per_s"]
    text = f"{load}: {figures['examples_per_s']:.3g} examples/s, {share:.0%} of the speed of one large product"
    if world.device.is_gpu and share < LOW_SHARE:
        return Finding("warning", text, "see bert-bench step, which shows where the time of a step goes")
    return Finding("ok", text)
