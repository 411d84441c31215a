"""Settings of what bert computes. They stand apart from the code so that programs read flags before TensorFlow."""

from dataclasses import dataclass
from typing import Literal

from ringbert.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Settings):
    """Of `bert.optimizer.make_optimizer`."""

    optimizer: Literal["adamw", "lamb"] = setting(
        "adamw", "adamw is BERT's AdamWeightDecay; lamb is for global batches of thousands of rows", "training"
    )
