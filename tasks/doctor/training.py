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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from distributed.collectives import Collectives
from distributed.collectives.local import LocalCollectives
from distributed.run import Run
from distributed.world import World
from ringbase.settings import made
from tasks.bench.inputs import model_config, write_inputs
from tasks.bench.settings import LoadSettings
from tasks.bench.step import step_figures
from tasks.doctor.machines import nearest_folder
from tasks.doctor.page import Finding, not_tested
from tasks.environment import cache_folder
from tasks.job import Job, set_precision
from tasks.settings import MachineSettings
from tasks.squad.program import run_squad
from tasks.squad.settings import SquadConfig

SIZE = 300_001  # numbers in a sum: odd, and more than one piece of every backend
STEPS, NUM_QUESTIONS = 4, 40
# How far losses and gradient norms may be apart, as a share: sums in another order; other number formats.
TOLERANCES = {"fp32": 1e-3, "bf16": 3e-2, "fp16": 3e-2}
LOW_SHARE = 0.2  # of the largest product's speed
WRONG = (
    "training cannot be right here: update the driver and TensorFlow with its CUDA libraries, try another GPU, "
    "--device cpu, --backend mpi or another --precision, and report it with this page"
)
Losses = list[tuple[float, float]]  # loss and gradient norm of each step


def check_sums(world: World, collectives: Collectives) -> Finding:
    """The backend's sum and broadcast of float32 against NumPy's, and the same bits on every rank."""
    if world.size == 1:
        return not_tested("there is one rank")
    parts = [np.random.default_rng(rank).standard_normal(SIZE).astype(np.float32) for rank in range(world.size)]
    with world.operation("a sum on trial"):
        total = np.array(collectives.all_reduce_sum([tf.constant(parts[world.rank])])[0])
        sent = np.array(collectives.broadcast(tf.constant(parts[world.rank])))
    bound = world.size * np.finfo(np.float32).eps * np.sum(np.abs(parts), axis=0, dtype=np.float64)
    error = float(np.max(np.abs(total - np.sum(parts, axis=0, dtype=np.float64)) / bound))
    world.agree({"the bits of a sum over ranks": hashlib.sha256(total.tobytes()).hexdigest()})
    if not error <= 1:
        return Finding("failed", f"{collectives.name}: {error:.3g} times the error that rounding allows", WRONG)
    if not np.array_equal(sent, parts[0]):
        return Finding("failed", f"{collectives.name}: a broadcast of rank 0's numbers gives others", WRONG)
    return Finding("ok", f"{collectives.name}: sum and broadcast as NumPy's, the same bits on every rank")


class Trials:
    """Trainings of a small model, the same on every number of ranks.

    Args:
      folder: where rank 0 writes the runs.
      inputs: the flags that name the model's and the data's files, which exist on every host.
    """

    def __init__(self, world: World, collectives: Collectives, folder: Path, inputs: dict[str, str]):
        self.world, self.collectives, self.folder, self.inputs = world, collectives, folder, inputs
        self._whole: Losses = []

    def check_ranks(self) -> Finding:
        """The same global batches on all ranks and on one."""
        self._whole = self._train("together", self.world, self.collectives, "fp32")
        if self.world.size == 1:
            return not_tested("there is one rank")
        alone = World(device=self.world.device)
        single = self.world.on_first(self._train, "single", alone, LocalCollectives(), "fp32")
        return self._compared(f"{self.world.size} ranks and one", single, TOLERANCES["fp32"])

    def check_resume(self) -> Finding:
        """A run that lost its last checkpoint, and so goes on from the one before, against the whole run."""
        self.world.on_first(lambda: shutil.rmtree(max((self.folder / "together/checkpoints").glob("rows-*"))))
        resumed = self._train("together", self.world, self.collectives, "fp32")
        text = f"{STEPS} steps, and {STEPS // 2} steps, a checkpoint and {STEPS // 2} more"
        return self._compared(text, resumed, TOLERANCES["fp32"] if self.world.device.is_gpu else 0.0)

    def check_precision(self, precision: str, xla: str) -> Finding:
        """The same training in another number format, or compiled by XLA as a whole, against that in float32."""
        losses = self._train(f"{precision}-{xla}", self.world, self.collectives, precision, xla)
        return self._compared(f"{precision} --xla {xla} and fp32", losses, TOLERANCES[precision])

    def _train(
        self, name: str, world: World, collectives: Collectives, precision: str, xla: str = "off"
    ) -> Losses:
        """Trains, or goes on, in a folder of this name. Returns every step's loss and gradient norm."""
        values = {
            "do_train": True, "output_dir": str(self.folder / name), "max_seq_length": 64, "max_query_length": 16,
            "global_batch_size": max(8, 2 * self.world.size), "num_train_steps": STEPS, "num_warmup_steps": 0,
            "save_checkpoints_steps": STEPS // 2, "log_steps": 1, "xla": xla,
        }  # fmt: skip
        set_precision(precision)
        config = made(SquadConfig, self.inputs | values)
        with (
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.closing(Run(Path(config.output_dir).expanduser(), world.rank == 0)) as run,
        ):
            run_squad(config, Job(world, collectives, run))
        return world.on_first(losses_of, Path(config.output_dir, "metrics.jsonl"))

    def _compared(self, what: str, losses: Losses, tolerance: float) -> Finding:
        """Whether a training has the same losses and gradient norms as the first one, to rounding."""
        difference = float(np.max(np.abs(np.array(self._whole) / np.array(losses) - 1)))
        text = f"{what}: losses and gradients differ by {difference:.1e}"
        if not difference <= tolerance:
            return Finding("failed", f"{text}, must be at most {tolerance:g}", WRONG)
        return Finding("ok", text if difference else f"{what}: the same bits")


def losses_of(metrics: Path) -> Losses:
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [(line["loss"], line["gradient_norm"]) for line in lines]


@contextlib.contextmanager
def trials(world: World, collectives: Collectives, output_dir: Path) -> Iterator[Trials]:
    """Trials whose files are removed at the end of the `with` block."""
    nearest = nearest_folder(output_dir)
    folder = Path(world.on_first(lambda: tempfile.mkdtemp(prefix=".bert-doctor.", dir=nearest)))
    cache = cache_folder() / folder.name
    config = model_config("tiny", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    try:
        inputs = world.on_each_machine(write_inputs, cache, config, NUM_QUESTIONS)
        os.environ["RINGBERT_CACHE"] = str(cache)
        yield Trials(world, collectives, folder, inputs)
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
    flop, peak = figures["flop_per_s"], figures["peak_flop_per_s"]
    text = (
        f"{load}: {figures['examples_per_s']:.3g} examples/s over all ranks; {flop / 1e9:.0f} GFLOP/s per rank, "
        f"{flop / peak:.0%} of the {peak / 1e9:.0f} of one large product"
    )
    if world.device.is_gpu and flop < LOW_SHARE * peak:
        return Finding("warning", text, "see bert-bench step, which shows where the time of a step goes")
    return Finding("ok", text)
