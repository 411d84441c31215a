"""What every program sets up before its own work: environment, ranks, backend, run folder."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from distributed.collectives import BackendSettings
from distributed.devices import DeviceSettings
from ringbert.settings import setting

if TYPE_CHECKING:
    from distributed.collectives import Collectives
    from distributed.run import Run
    from distributed.world import World

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
IMPORT_NOISE = ("oneDNN custom operations are on", "All log messages before absl::InitializeLog()")


@dataclass(frozen=True, kw_only=True)
class ComputeSettings(DeviceSettings, BackendSettings):
    """Where and how a program computes."""

    precision: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        "number format of matrix products; weights and sums are always float32, and fp16 scales the loss",
        "machine",
    )


@dataclass(frozen=True, kw_only=True)
class JobSettings(ComputeSettings):
    """Where and how a program computes, and the folder of its run."""

    output_dir: str = setting(help="folder of this run: checkpoints, metrics, results", group="data")


Config = TypeVar("Config", bound=ComputeSettings)


@dataclass(frozen=True)
class Job:
    """What a running program works with: its ranks, the backend that sums over them, and its output folder."""

    world: "World"
    collectives: "Collectives"
    run: "Run"

    def finish(self, result: dict[str, object]) -> None:
        """Writes result.json. The run is complete when this file exists."""
        facts = {"seconds": round(self.run.seconds(), 1), "world_size": self.world.size}
        self.run.write_json("result.json", result | facts)


def run_on_ranks(program: str, config: Config, folder: str, function: "Callable[[Config, Job], object]") -> None:
    """Joins the ranks and calls `function(config, job)` on each; rank 0 writes `folder`. Errors end all ranks."""
    set_environment()
    import_tensorflow()
    from distributed.world import World

    with World.join(config, program) as world:
        from distributed.collectives import open_collectives
        from distributed.run import Run, versions

        set_precision(config.precision)
        collectives = open_collectives(world, config.backend)
        world.agree({"the configuration": asdict(config), "the versions of packages": versions()})
        run = Run.of(folder, world)
        run.say(f"{world}, backend {collectives.name}, {config.precision}")
        for note in world.notes:
            run.say(note)
        function(config, Job(world, collectives, run))
        run.close()
        collectives.close()


def set_environment() -> None:
    """Sets the variables that TensorFlow, Keras and transformers read on import, and XLA when it compiles."""
    from bert import xla

    xla.set_flags()
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def import_tensorflow() -> None:
    """Imports TensorFlow and hides the two lines that its C++ code prints at every log level.

    If it is not installed, `World.join` reports that.
    """
    sys.stderr.flush()
    stderr_copy = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            with contextlib.suppress(ModuleNotFoundError):
                import tensorflow  # noqa: F401
        finally:
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
            captured.seek(0)
            for line in captured.read().decode(errors="replace").splitlines():
                if not any(noise in line for noise in IMPORT_NOISE):
                    print(line, file=sys.stderr)


def set_precision(precision: str) -> None:
    """Sets the Keras dtype policy of models created from now on. Variables stay float32."""
    import keras

    keras.config.set_dtype_policy(POLICIES[precision])


def cache_folder() -> Path:
    """Where prepared data is kept: $RINGBERT_CACHE, else ~/.cache/ringbert."""
    return Path(os.environ.get("RINGBERT_CACHE") or Path.home() / ".cache" / "ringbert")
