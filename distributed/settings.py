"""Settings of the training loop, in a module of their own so that `--help` does not import TensorFlow."""

from dataclasses import dataclass
from typing import Literal

from ringbase.settings import MOST_SEED, MOST_STEPS, Settings, setting


@dataclass(frozen=True, kw_only=True)
class LoopSettings(Settings):
    """Settings of the training loop."""

    seed: int = setting(
        42,
        "seed of initial values, order of the data and dropout",
        "training",
        aliases=("random_seed",),
        at_least=0,
        at_most=MOST_SEED,
    )
    save_checkpoints_steps: int = setting(
        1000, "steps between checkpoints", "training", at_least=1, at_most=MOST_STEPS
    )
    save_checkpoints_minutes: float = setting(
        10.0,
        "minutes after which a checkpoint is written, whatever the steps; 0 for never",
        "training",
        at_least=0,
        at_most=MOST_STEPS,
    )
    keep_checkpoints: int = setting(
        5, "number of newest checkpoints that are kept", "training", at_least=1, at_most=MOST_STEPS
    )
    log_steps: int = setting(
        25, "steps between lines of metrics.jsonl", "training", at_least=1, at_most=MOST_STEPS
    )
    xla: Literal["auto", "on", "off"] = setting(
        "auto",
        "let XLA compile the whole gradient, for at most 4 shapes; auto does so on GPUs. With the backend nccl, "
        "on also compiles the sum over ranks and the update",
        "machine",
    )
