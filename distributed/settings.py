"""Settings of the training loop, in a module of their own so that `--help` does not import TensorFlow."""

from dataclasses import dataclass
from typing import Literal

from ringbase.settings import MOST_SEED, MOST_STEPS, Settings, check_at_least, check_at_most, setting


@dataclass(frozen=True, kw_only=True)
class LoopSettings(Settings):
    """Settings of the training loop."""

    seed: int = setting(
        42, "seed of initial values, order of the data and dropout", "training", aliases=("random_seed",)
    )
    save_checkpoints_steps: int = setting(1000, "steps between checkpoints", "training")
    save_checkpoints_minutes: float = setting(
        10.0, "minutes after which a checkpoint is written, whatever the steps; 0 for never", "training"
    )
    keep_checkpoints: int = setting(5, "number of newest checkpoints that are kept", "training")
    log_steps: int = setting(25, "steps between lines of metrics.jsonl", "training")
    xla: Literal["auto", "on", "off"] = setting(
        "auto",
        "let XLA compile the whole gradient, for at most 4 shapes; auto does so on GPUs, where it is faster",
        "machine",
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 0, "seed", "save_checkpoints_minutes")
        check_at_least(self, 1, "save_checkpoints_steps", "keep_checkpoints", "log_steps")
        check_at_most(self, MOST_SEED, "seed")
        check_at_most(self, MOST_STEPS, "save_checkpoints_steps", "keep_checkpoints", "log_steps")
        check_at_most(self, MOST_STEPS, "save_checkpoints_minutes")
