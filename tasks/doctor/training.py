"""Checks of what training does: sums over ranks, N ranks against one, save and resume, number formats, speed.

The trainings are bert-squad's, of a small model without dropout on questions of made-up words.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from distributed.collectives import Collectives, open_collectives
from distributed.run import Run
from distributed.world import World
from ringbase.settings import made
from tasks.bench.inputs import model_config, write_inputs
from tasks.bench.settings import LoadSettings
from tasks.bench.step import step_figures
from tasks.doctor.page import Finding, Page
from tasks.environment import cache_folder
from tasks.job import Job, set_precision
from tasks.settings import MachineSettings
from tasks.squad.program import run_squad
from tasks.squad.settings import SquadConfig

SIZE = 300_001  # numbers in a sum: odd, and more than one piece of every backend
STEPS, NUM_QUESTIONS = 4, 40
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
    with trial_files(world, output_dir) as (folder, inputs):
        inputs["global_batch_size"] = max(8, 2 * world.size)
        train = partial(train_on_trial, inputs, folder, world, collectives)
        whole = np.empty((0, 2))

        def run_once() -> Finding:
            nonlocal whole
            whole = train("whole")
            return Finding("ok", f"a small model learns SQuAD, {STEPS} steps")

        def compare(name: str, tolerance: float, training: Callable[[], np.ndarray]) -> None:
            def find() -> Finding:
                difference = float(np.max(np.abs(whole / training() - 1)))
                text = f"losses and gradients differ by {difference:.1e}" if difference else "the same bits"
                if not difference <= tolerance:
                    return Finding("failed", f"{text}, must be at most {tolerance:g}", WRONG)
                return Finding("ok", text)

            page.check(name, find)

        def resume() -> np.ndarray:
            """Goes on from the checkpoint before the last."""
            world.on_first(lambda: shutil.rmtree(max((folder / "whole/checkpoints").glob("rows-*"))))
            return train("whole")

        if not page.check("a training", run_once):
            return
        if world.size > 1:
            one = World(device=world.device)
            alone = partial(train_on_trial, inputs, folder, one, open_collectives(one), "alone")
            compare("ranks against one", ROUNDING, lambda: world.on_first(alone))
        compare("save and resume", ROUNDING if world.device.is_gpu else 0.0, resume)
        compare("fp32 --xla on", ROUNDING, lambda: train("fp32-xla", xla="on"))
        compare("bf16 --xla off", OTHER_FORMAT, lambda: train("bf16", "bf16"))
        compare("bf16 --xla on", OTHER_FORMAT, lambda: train("bf16-xla", "bf16", xla="on"))
        if world.device.is_gpu:
            compare("fp16 --xla on", OTHER_FORMAT, lambda: train("fp16-xla", "fp16", xla="on"))


def train_on_trial(
    inputs: dict[str, Any], folder: Path, world: World, collectives: Collectives, name: str,
    precision: str = "fp32", xla: str = "off",
) -> np.ndarray:  # fmt: skip
    """Trains, or goes on, in a folder of this name. Returns every step's loss and gradient norm."""
    values = {
        "do_train": True, "output_dir": str(folder / name), "max_seq_length": 64, "max_query_length": 16,
        "num_train_steps": STEPS, "num_warmup_steps": 0, "save_checkpoints_steps": STEPS // 2, "log_steps": 1,
        "xla": xla,
    }  # fmt: skip
    set_precision(precision)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.closing(Run.of(folder / name, world)) as run:
        run_squad(made(SquadConfig, inputs | values), Job(world, collectives, run))
    lines = world.on_first((folder / name / "metrics.jsonl").read_text).splitlines()
    return np.array([[line["loss"], line["gradient_norm"]] for line in map(json.loads, lines)])


@contextlib.contextmanager
def trial_files(world: World, output_dir: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder for the runs, and the flags that name the model's and the data's files on every host. All are
    removed at the end of the `with` block."""
    folder = Path(world.on_first(lambda: tempfile.mkdtemp(prefix=".bert-doctor.", dir=output_dir)))
    cache = cache_folder() / folder.name
    config = model_config("tiny", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    try:
        os.environ["RINGBERT_CACHE"] = str(cache)
        yield folder, {**world.on_each_machine(write_inputs, cache, config, NUM_QUESTIONS)}
    finally:
        for written in [cache] * (world.local_rank == 0) + [folder] * (world.rank == 0):
            shutil.rmtree(written, ignore_errors=True)


def check_speed(world: World, collectives: Collectives, machine: MachineSettings) -> Finding:
    """A few steps of BERT-base on random tokens: 32 x 384 on a GPU, 1 x 128 on a CPU."""
    values: dict[str, object] = {"batch_size": 1, "seq_length": 128, "num_warmup": 1, "num_steps": 2}
    if world.device.is_gpu:
        values = {"batch_size": 32, "seq_length": 384, "num_warmup": 3, "num_steps": 10, "xla": "on"}
    load = replace(made(LoadSettings, values | {"model_size": "base"}), machine=machine)
    figures = step_figures(load, world, collectives)
    share = figures["flop_per_s"] / figures["peak_flop_per_s"]
    text = f"{load}: {figures['examples_per_s']:.3g} examples/s, {share:.0%} of the speed of one large product"
    if world.device.is_gpu and share < LOW_SHARE:
        return Finding("warning", text, "see bert-bench step, which shows where the time of a step goes")
    return Finding("ok", text)
