"""What bert-bench shares with the programs in `benchmarks`, without TensorFlow, which they import
later."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed.world import World
from ringbase.files import write_json


def medians(turns: Sequence[Mapping[str, float]], names: Iterable[str]) -> dict[str, float]:
    """The median of each of these figures over the turns."""
    return {name: statistics.median(turn[name] for turn in turns) for name in names}


def line_up(world: World) -> None:
    """Waits for all ranks in a busy loop. `World.barrier` sleeps while it waits: some ranks would
    start late."""
    if world.comm is not None:
        world.comm.Barrier()


def write(output_file: str | None, figures: Any) -> None:
    if output_file:
        write_json(Path(output_file).expanduser(), figures, indent=1)
