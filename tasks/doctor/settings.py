"""The flags of bert-doctor, without TensorFlow."""

from dataclasses import dataclass
from typing import Literal

from ringbase.settings import setting
from tasks.settings import ComputeSettings


@dataclass(frozen=True, kw_only=True)
class Config(ComputeSettings):
    """The flags of bert-doctor."""

    precision: Literal["fp32", "bf16", "fp16"] = setting(
        "bf16", "number format of the step that is timed; all three are checked", "machine"
    )
    output_dir: str = setting(".", "folder whose disk is checked, such as the --output_dir of a run", "data")
    json: bool = setting(False, "print JSON instead of a page", "output")
    quick: bool = setting(False, "leave out what computes with models, which takes a minute or more", "machine")
