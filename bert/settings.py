"""Settings of the optimizer and of the passes, without TensorFlow, so that programs can read their flags first."""

from dataclasses import dataclass
from typing import Literal

from ringbase.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Settings):
    """Of `bert.optimizer.make_optimizer`."""

    optimizer: Literal["adamw", "lamb"] = setting(
        "adamw", "adamw is BERT's AdamWeightDecay; lamb is for global batches of thousands of rows", "training"
    )


@dataclass(frozen=True, kw_only=True)
class PassSettings(Settings):
    """How a training step computes its forward and backward passes."""

    packing: Literal["auto", "off"] = setting(
        "auto", "train rows of like length in groups instead of padding all to the longest of a batch", "training"
    )
    recompute: bool = setting(
        False,
        "keep only the layers' outputs and compute the rest again in the backward pass, which saves memory",
        "machine",
    )
