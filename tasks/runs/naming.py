"""How a flag such as `--input_file` names one corpus or several with weights: the syntax alone, so
that `--help` answers at once."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from distributed.stages import DECAY, Stage, are_stages, stages_of


class Named(NamedTuple):
    """A corpus as a flag names it: its globs, or its file, and its weight."""

    patterns: str
    weight: tuple[Stage, ...] | None = None


def named_corpora(text: str, flag: str = "input_file", is_mixture: bool = False) -> list[Named]:
    """The corpora that the value of a flag names: one, unless they have weights, such as
    "news/*=0.7,books/*=0.3", or it `is_mixture` without them. Raises ValueError: only some have
    weights."""
    parts = []
    for part in filter(None, map(str.strip, text.split(","))):
        patterns, _, weight = part.rpartition("=")
        # a folder may be called year=2026
        if patterns and are_stages(weight) and not os.path.exists(os.path.expanduser(part)):
            parts.append(Named(patterns, stages_of(weight, flag)))
        else:
            parts.append(Named(part))
    without = [part.patterns for part in parts if part.weight is None]
    if len(without) == len(parts):
        return parts if is_mixture else [Named(text)]
    if without:
        raise ValueError(
            f"--{flag}: {without[0]} has no weight, but others have: give it one, such as"
            f" {without[0]}=1"
        )
    return parts


def places_in(named: Sequence[Named], *texts: str | float | None) -> set[str]:
    """The places that the stages of corpora and of other values name."""
    stages = [stage for each in named for stage in each.weight or ()]
    for text in texts:
        if isinstance(text, str):
            stages += stages_of(text, "")
    return {stage.place for stage in stages}


def refuse_decay(places: set[str], lr_scheduler_type: str) -> None:
    """Raises ValueError: a place is where the rate of a schedule falls, and this one has none."""
    if DECAY in places and lr_scheduler_type != "wsd":
        raise ValueError(f"@{DECAY} needs --lr_scheduler_type wsd, got {lr_scheduler_type}")
