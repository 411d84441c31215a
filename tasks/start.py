"""What every entry point does before its own work: environment, where weights come from, what may resume."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bert import InputError

if TYPE_CHECKING:
    from distributed.checkpoint import State
    from distributed.plan import Plan
    from distributed.run import Run

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16"}
CHECKPOINTS = "checkpoints"
IMPORT_NOISE = ("oneDNN custom operations are on", "All log messages before absl::InitializeLog()")


def set_environment() -> None:
    """Sets what TensorFlow, Keras and transformers read when they are imported."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def import_tensorflow() -> None:
    """Imports TensorFlow without the two lines that its C++ start prints whatever the log level.

    When it is not installed, `World.join` says so.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            with contextlib.suppress(ModuleNotFoundError):
                import tensorflow  # noqa: F401
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            caught.seek(0)
            for line in caught.read().decode(errors="replace").splitlines():
                if not any(noise in line for noise in IMPORT_NOISE):
                    print(line, file=sys.stderr)


def set_precision(precision: str) -> None:
    """The Keras dtype policy of models made from now on: variables stay float32."""
    import keras

    keras.config.set_dtype_policy(POLICIES[precision])


def check_packages() -> None:
    """Stops with one line when another package overwrote or shadows ours (Dask installs a `distributed`)."""
    import bert
    import distributed

    here = Path(__file__).resolve().parent.parent
    for package in (bert, distributed):
        found = Path(package.__file__ or "").resolve().parent
        if found != here / package.__name__ or not hasattr(package, "InputError"):
            raise SystemExit(
                f"error: `import {package.__name__}` finds {found}, another package's: install ringbert in an "
                "environment of its own, or run from a folder without a module of this name"
            )


class StartFlags(Protocol):
    """The flags that decide where a run starts."""

    @property
    def output_dir(self) -> str: ...
    @property
    def resume(self) -> str: ...
    @property
    def init_checkpoint(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...


@dataclass(frozen=True)
class Start:
    """Where a run starts: the weights' source (None: from scratch), and the checkpoint to go on from."""

    weights: Path | None
    checkpoint: Path | None = None
    state: "State | None" = None
    why: str = "initial values"


def find_start(config: "StartFlags", settings: Mapping[str, object] | None, run: "Run") -> Start:
    """The first that applies: newest intact checkpoint of `output_dir` (or of `--resume PATH`),
    `--init_checkpoint`, `--model`, initial values. Called on rank 0.

    `settings` None means prediction, for which a checkpoint of any settings will do.
    Raises InputError: a changed setting, or a folder of another program's run.
    """
    from bert import weights
    from distributed.checkpoint import check_settings, read_state

    output_dir = Path(config.output_dir).expanduser()
    checkpoint = newest_checkpoint(config, run.say)
    if checkpoint is not None:
        state = read_state(checkpoint)
        if settings is not None:
            check_settings(state.settings, settings, checkpoint)
        return Start(checkpoint, checkpoint, state, f"checkpoint {checkpoint}, step {state.step} of {state.steps}")
    foreign = [str(path).removesuffix(".index") for path in output_dir.glob("model.ckpt-*.index")]
    if foreign:
        prefix = max(foreign, key=lambda name: (len(name), name))  # the highest step
        raise InputError(
            f"--output_dir {output_dir} holds a TensorFlow 1 run, which cannot be continued: give another "
            f"--output_dir, and --init_checkpoint {prefix} to start from its weights"
        )
    if config.init_checkpoint:
        return Start(weights.find(config.init_checkpoint), why=f"--init_checkpoint {config.init_checkpoint}")
    if config.model:
        return Start(weights.find(config.model), why=f"--model {config.model}")
    return Start(None)


def newest_checkpoint(config: StartFlags, say: Callable[[str], None]) -> Path | None:
    """The newest intact checkpoint of `output_dir`, else of the folder that `--resume PATH` names; on rank 0.

    Raises InputError when `--resume PATH` is needed and has none.
    """
    from distributed.checkpoint import newest_intact

    own = newest_intact(Path(config.output_dir).expanduser() / CHECKPOINTS, say)
    if config.resume in ("auto", "never"):
        return own if config.resume == "auto" else None
    given = Path(config.resume).expanduser()
    # This run's own progress comes first: the same command, given again, goes on.
    found = own or newest_intact(given, say) or newest_intact(given / CHECKPOINTS, say)
    if found is None:
        raise InputError(f"--resume {config.resume}: no intact checkpoint there (auto, never, or a run's folder)")
    return found


def resumed_step(state: "State", plan: "Plan") -> int:
    """The step of this plan that corresponds to a checkpoint, written perhaps with another number of ranks."""
    if state.step >= state.steps:
        return plan.steps
    if state.global_batch_size == plan.global_batch_size:
        return min(state.step, plan.steps)
    return min(-(-state.position // plan.global_batch_size), plan.steps)


def cache_folder() -> Path:
    """Where prepared data is kept: $RINGBERT_CACHE, else ~/.cache/ringbert."""
    return Path(os.environ.get("RINGBERT_CACHE") or Path.home() / ".cache" / "ringbert")
