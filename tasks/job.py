"""What every program sets up before its own work: environment, ranks, backend, run folder."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from distributed import phases
from distributed.collectives import BackendSettings
from distributed.devices import DeviceSettings
from distributed.watchdog.stalls import StallSettings
from ringbase.settings import setting
from tasks.engine import Engine
from tasks.origin import OriginSettings

if TYPE_CHECKING:
    from distributed.collectives import Collectives
    from distributed.run import Run
    from distributed.world import World

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
# Keras imports these where they are installed, for features that no program uses. They take as long as TensorFlow.
OPTIONAL_IN_KERAS = ("matplotlib", "pandas", "sklearn")
IMPORT_NOISE = ("oneDNN custom operations are on", "All log messages before absl::InitializeLog()")


@dataclass(frozen=True, kw_only=True)
class ComputeSettings(DeviceSettings, BackendSettings):
    """Where and how a program computes."""

    precision: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        "number format of matrix products; weights and sums are always float32, and fp16 scales the loss",
        "machine",
    )
    tf32: bool = setting(
        False,
        "let GPUs round the factors of float32 matrix products to 10 bits (TF32), which is faster",
        "machine",
    )


@dataclass(frozen=True, kw_only=True)
class ProgramSettings(ComputeSettings, StallSettings):
    """Where and how a program computes, and what it keeps for later runs."""

    xla_cache: bool = setting(
        False, "keep what XLA compiles for later runs with equal shapes on machines of the same kind", "machine"
    )


@dataclass(frozen=True, kw_only=True)
class JobSettings(ProgramSettings):
    """Where and how a program computes, and the folder of its run."""

    output_dir: str = setting(help="folder of this run: checkpoints, metrics, results", group="data")


Config = TypeVar("Config", bound=ProgramSettings)


@dataclass(frozen=True)
class Job:
    """What a running program works with: its ranks, the backend that sums over them, its output folder, and its
    model with what is compiled for it."""

    world: "World"
    collectives: "Collectives"
    run: "Run"
    engine: Engine = field(default_factory=Engine)

    def finish(self, name: str, result: dict[str, object]) -> None:
        """Writes the file of `result_file`. The command is complete when it exists."""
        facts = {"seconds": round(self.run.seconds(), 1), "world_size": self.world.size}
        self.run.write_json(name, result | facts)


def result_file(trains: bool) -> str:
    """Where a command writes its scores. One that does not train leaves alone what a training wrote."""
    return "result.json" if trains else "predict_result.json"


def run_on_ranks(program: str, config: Config, folder: str, function: "Callable[[Config, Job], object]") -> None:
    """Joins the ranks and calls `function(config, job)` on each; rank 0 writes `folder`. Errors end all ranks.

    In an elastic world, a loss of ranks that `function` does not handle makes the survivors call it again. It then
    continues from what it has written.
    """
    from tasks import compiled

    phases.ended("launch")
    set_environment()
    own_folder = compiled.own_folder() if config.xla_cache else None
    import_tensorflow()
    with contextlib.suppress(ModuleNotFoundError):
        import bert.model  # noqa: F401  on all ranks at once, not while they wait for each other
    phases.ended("imports")
    from distributed import elastic, records
    from distributed.world import World

    with World.join(config, program, stalls=config) as world:
        phases.ended("ranks")
        elastic.enable(world)
        if os.environ.get(records.HAS_SAVED) == "1":
            config = continued(config)
        loss: Exception | None = None
        while True:
            try:
                if loss is not None:
                    config = after_loss(config, world, loss)
                with open_job(config, folder, world) as job, kept_code(config, job, own_folder):
                    function(config, job)
                    elastic.commit(world)
                return
            except Exception as error:
                if not (isinstance(error, elastic.Elsewhere) or elastic.is_loss(world, error)):
                    raise
                loss = error


def after_loss(config: Config, world: "World", loss: Exception) -> Config:
    """Joins the other survivors. Returns the configuration with which they continue what the job has begun."""
    from distributed import elastic

    if not isinstance(loss, elastic.Elsewhere):
        elastic.recover(world, loss, ("program",))
    has_trained = any(world.all_gather(world.has_trained))
    world.say(f"{elastic.message(world)} from what is saved")
    return continued(config) if has_trained else config


def continued(config: Config) -> Config:
    """The configuration for a job that goes on with what it has saved, also if it began with `--resume never`."""
    is_new = isinstance(config, OriginSettings) and config.resume == "never"
    changes: dict[str, Any] = {"resume": "auto"} if is_new else {}
    return replace(config, **changes)


@contextlib.contextmanager
def open_job(config: ProgramSettings, folder: str, world: "World") -> "Iterator[Job]":
    """Opens the backend and the run's folder, and tells the user where the job runs."""
    from distributed.collectives import open_collectives
    from distributed.run import Run, versions

    products = set_precision(config.precision, config.tf32)
    collectives = open_collectives(world, config.backend)
    world.agree({"the configuration": asdict(config), "the versions of packages": versions()})
    with contextlib.closing(Run.of(folder, world)) as run, contextlib.closing(collectives):
        if isinstance(config, JobSettings):  # the folder belongs to this run alone
            world.on_first(run.lock)
            world.watchdog.stacks = run.folder / "stacks"
        run.say(f"{world}, backend {collectives.name}, {config.precision}")
        for note in filter(None, (*world.notes, products)):
            run.say(note)
        phases.ended("backend")
        yield Job(world, collectives, run)


@contextlib.contextmanager
def kept_code(config: ProgramSettings, job: Job, own_folder: Path | None) -> "Iterator[None]":
    """Keeps compiled code for later runs while the block runs, if `--xla_cache` asks for it."""
    from tasks import compiled

    if not config.xla_cache:
        yield
        return
    with compiled.kept_in(cache_folder(), own_folder, compiled.kind_of_run(job.world), job.run.say):
        yield


def set_environment() -> None:
    """Sets the variables that TensorFlow, Keras and transformers read on import, and XLA when it compiles."""
    from bert import xla

    xla.set_flags()
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def import_tensorflow(is_for_users: bool = False) -> None:
    """Imports TensorFlow and hides the two lines that its C++ code prints at every log level.

    If it is not installed, `World.join` reports that. Keras finds the packages OPTIONAL_IN_KERAS absent, unless
    `is_for_users`: in a user's process it may be used for anything.
    """
    hidden = [] if is_for_users else [name for name in OPTIONAL_IN_KERAS if name not in sys.modules]
    sys.stderr.flush()
    stderr_copy = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: not found
            with contextlib.suppress(ModuleNotFoundError):
                import tensorflow  # noqa: F401
        finally:
            for name in hidden:
                del sys.modules[name]
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
            captured.seek(0)
            for line in captured.read().decode(errors="replace").splitlines():
                if not any(noise in line for noise in IMPORT_NOISE):
                    print(line, file=sys.stderr)


def set_precision(precision: str, tf32: bool = False) -> str | None:
    """Sets the Keras dtype policy of models created from now on. Variables stay float32.

    Call it when the rank has its device. Returns a note for the user if that is a GPU.
    """
    import keras
    import tensorflow as tf

    keras.config.set_dtype_policy(POLICIES[precision])
    if not tf.config.get_visible_devices("GPU"):
        return None
    # The setting covers XLA too, which without TF32 gives up Triton's products of all types. So bf16 and fp16 keep
    # TensorFlow's default: TF32 has as many bits as they have, or more.
    tf32 = tf32 or precision != "fp32"
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    return "float32 products are computed in " + ("TF32" if tf32 else "float32; --tf32 is faster and less exact")


def cache_folder() -> Path:
    """Where prepared data is kept: $RINGBERT_CACHE, else ~/.cache/ringbert."""
    return Path(os.environ.get("RINGBERT_CACHE") or Path.home() / ".cache" / "ringbert")
