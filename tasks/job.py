"""What every program sets up before its own work: ranks, backend, run folder."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import keras
import tensorflow as tf
from transformers import BertConfig

from bert.model import Bert
from distributed import elastic, launcher, phases
from distributed.collectives import Collectives, open_collectives
from distributed.gradient import OutOfMemory, TrainingStep
from distributed.predict import Forward, traced_once
from distributed.run import Run
from distributed.versions import versions
from distributed.world import World
from ringbase.errors import InputError
from ringbase.settings import Settings, flat
from tasks.environment import result_file
from tasks.settings import MachineSettings

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


class Workspace:
    """A model with what TensorFlow has traced and compiled for it, which the runs of several seeds share.

    Attributes:
      forward: batch -> the scores of the model's head, as a graph.
      step: that of the last training; None before the first.
    """

    def __init__(self) -> None:
        self._model: Bert | None = None
        self.forward: Forward
        self.step: TrainingStep | None = None

    @property
    def model(self) -> Bert:
        assert self._model is not None, "no model yet"
        return self._model

    def take(self, model: Bert) -> None:
        """Makes this the model. If the last one has the same configuration, it gets the values of this one."""
        known = self._model
        if known is None or (known.head_name, known.config.to_dict()) != (model.head_name, model.config.to_dict()):
            self._model, self.step, self.forward = model, None, traced_once(model)
            return
        for variable, value in zip(known.variables, model.variables, strict=True):
            variable.assign(value)


@dataclass(frozen=True)
class Job:
    """What a running program works with.

    Attributes:
      collectives: the backend that sums over the ranks.
      run: the output folder.
      config: the program's flags, for run.json.
      goes_on: the run continues what this job has saved, whatever `--resume` says: after a restart or a death.
      has_trained: set once a training has begun, after which a death makes the job go on.
    """

    world: World
    collectives: Collectives
    run: Run
    config: Mapping[str, object] = field(default_factory=dict)
    workspace: Workspace = field(default_factory=Workspace)
    goes_on: bool = False
    has_trained: Event = field(default_factory=Event)

    @property
    def model(self) -> Bert:
        return self.workspace.model

    def make_model(self, config: BertConfig, head: str, seed: int) -> None:
        """Makes the job's model, with the initial values of `seed`."""
        self.workspace.take(Bert(config, head, seed))

    def resume(self, wanted: str) -> str:
        """The value of `--resume`: a job that goes on continues, also if it began with `never`."""
        return "auto" if self.goes_on and wanted == "never" else wanted

    def finish(self, trains: bool, scores: Mapping[str, float], more: Mapping[str, object] | None = None) -> None:
        """Writes the file of `result_file`: the command is complete when it exists. Says so."""
        facts = {"seconds": round(self.run.seconds(), 1), "world_size": self.world.size}
        self.run.write_json(result_file(trains), {"scores": scores, **(more or {}), **facts})
        self.run.say(
            f"done: {self.run.folder}" + "".join(f", {name} {value:.4g}" for name, value in scores.items())
        )


def run_on_ranks(
    program: str, config: Settings, machine: MachineSettings, folder: str | Path, work: Callable[[Job], object]
) -> None:
    """Joins the ranks and calls `work(job)` on each; rank 0 writes `folder`. Errors end all ranks.

    `config` must be the same on all ranks. In an elastic world the survivors of a death call `work` again, unless
    it handles the death itself. It then continues from what it has written.
    """
    with World.join(machine.device, program, stalls=machine.stalls) as world:
        phases.ended("ranks")
        elastic.enable(world)
        has_trained = Event()
        if os.environ.get(launcher.HAS_SAVED) == "1":
            has_trained.set()

        def attempt() -> None:
            goes_on = any(world.all_gather(has_trained.is_set()))
            with open_job(flat(config), machine, folder, world) as job:
                work(replace(job, goes_on=goes_on, has_trained=has_trained))
                world.barrier()  # nobody leaves while another may need to repeat the work

        try:
            elastic.surviving(world, "", attempt)
        except OutOfMemory as error:
            raise InputError(f"{error}: lower the batch size of predictions, or --max_seq_length") from error


@contextlib.contextmanager
def open_job(
    config: Mapping[str, object], machine: MachineSettings, folder: str | Path, world: World
) -> Iterator[Job]:
    """Opens the backend and the run's folder, and tells the user where the job runs."""
    products = set_precision(machine.precision, machine.tf32)
    collectives = open_collectives(world, machine.backend.backend)
    world.agree({"the configuration": config, "the versions of packages": versions()})
    with contextlib.closing(Run.of(folder, world)) as run:
        if "output_dir" in config:  # the folder belongs to this run alone
            world.on_first(run.lock)
            world.watchdog.stacks = run.folder / "stacks"
        run.say(f"{world}, backend {collectives.name}, {machine.precision}")
        for note in filter(None, (*world.device.notes, products)):
            run.say(note)
        phases.ended("backend")
        yield Job(world, collectives, run, config)


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
