"""What every program sets up before its own work: ranks, backend, run folder."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import keras
import tensorflow as tf

from distributed import elastic, phases, records
from distributed.collectives import Collectives, open_collectives
from distributed.run import Run, versions
from distributed.world import World
from ringbase.settings import Settings, flat
from tasks.engine import Engine
from tasks.environment import result_file
from tasks.settings import MachineSettings

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


@dataclass(frozen=True)
class Job:
    """What a running program works with: its ranks, the backend that sums over them, its output folder, and its
    model with what is compiled for it.

    `goes_on`: the run continues what this job has saved, whatever `--resume` says: after a restart or a loss.
    """

    world: World
    collectives: Collectives
    run: Run
    engine: Engine = field(default_factory=Engine)
    goes_on: bool = False

    def resume(self, wanted: str) -> str:
        """The value of `--resume`: a job that goes on continues, also if it began with `never`."""
        return "auto" if self.goes_on and wanted == "never" else wanted

    def finish(self, trains: bool, result: Mapping[str, object]) -> None:
        """Writes the file of `result_file`. The command is complete when it exists."""
        facts = {"seconds": round(self.run.seconds(), 1), "world_size": self.world.size}
        self.run.write_json(result_file(trains), {**result, **facts})


def run_on_ranks(
    program: str, config: Settings, machine: MachineSettings, folder: str | Path, work: Callable[[Job], object]
) -> None:
    """Joins the ranks and calls `work(job)` on each; rank 0 writes `folder`. Errors end all ranks.

    `config` must be the same on all ranks. In an elastic world, a loss of ranks that `work` does not handle makes
    the survivors call it again. It then continues from what it has written.
    """
    with World.join(machine.device, program, stalls=machine.stalls) as world:
        phases.ended("ranks")
        elastic.enable(world)
        goes_on = os.environ.get(records.HAS_SAVED) == "1"
        loss: Exception | None = None
        while True:
            try:
                if loss is not None:
                    goes_on |= after_loss(world, loss)
                with open_job(config, machine, folder, world, goes_on) as job:
                    work(job)
                    elastic.commit(world)
                return
            except Exception as error:
                if not (isinstance(error, elastic.Elsewhere) or elastic.is_loss(world, error)):
                    raise
                loss = error


def after_loss(world: World, loss: Exception) -> bool:
    """Joins the other survivors. Returns whether the job has begun to train, and now continues that."""
    if not isinstance(loss, elastic.Elsewhere):
        elastic.recover(world, loss, ("program",))
    has_trained = any(world.all_gather(world.has_trained))
    world.say(f"{elastic.message(world)} from what is saved")
    return has_trained


@contextlib.contextmanager
def open_job(
    config: Settings, machine: MachineSettings, folder: str | Path, world: World, goes_on: bool
) -> Iterator[Job]:
    """Opens the backend and the run's folder, and tells the user where the job runs."""
    products = set_precision(machine.precision, machine.tf32)
    collectives = open_collectives(world, machine.backend.backend)
    world.agree({"the configuration": flat(config), "the versions of packages": versions()})
    with contextlib.closing(Run.of(folder, world)) as run, contextlib.closing(collectives):
        if "output_dir" in flat(config):  # the folder belongs to this run alone
            world.on_first(run.lock)
            world.watchdog.stacks = run.folder / "stacks"
        run.say(f"{world}, backend {collectives.name}, {machine.precision}")
        for note in filter(None, (*world.notes, products)):
            run.say(note)
        phases.ended("backend")
        yield Job(world, collectives, run, goes_on=goes_on)


def set_precision(precision: str, tf32: bool = False) -> str | None:
    """Sets the Keras dtype policy of models created from now on. Variables stay float32.

    Call it when the rank has its device. Returns a note for the user if that is a GPU.
    """
    keras.config.set_dtype_policy(POLICIES[precision])
    if not tf.config.get_visible_devices("GPU"):
        return None
    # The setting covers XLA too, which without TF32 gives up Triton's products of all types. So bf16 and fp16 keep
    # TensorFlow's default: TF32 has as many bits as they have, or more.
    tf32 = tf32 or precision != "fp32"
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    return "float32 products are computed in " + ("TF32" if tf32 else "float32; --tf32 is faster and less exact")
