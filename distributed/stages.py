"""Values that change along a training, piecewise constant: from text to a table in rows of the
stream.

"0.3:0.15@60%:0.05@decay" is 0.3, then 0.15 after 60 % of the training, then 0.05 from where the
rate of the schedule wsd falls; "0.3:0.15@5000" changes after 5,000 steps of one rank. In a table
the places are rows of the stream, because steps are divided by the number of ranks, and rows are
not. Without NumPy or TensorFlow, so that `--help` answers at once.
"""

import bisect
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Generic, NamedTuple, TypeVar

from distributed.plan import PlanSettings, length_of
from ringbase.errors import InputError
from ringbase.settings import shown

T = TypeVar("T")
DECAY = "decay"  # the place where the rate of the schedule wsd begins to fall
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_STAGES = re.compile(rf"{_NUMBER}(?::{_NUMBER}@(?:{_NUMBER}%|\d+|{DECAY}))*")
FORM = f"a number, or numbers and where they begin, such as 0.3:0.15@60%:0.05@5000:0@{DECAY}"


class Stage(NamedTuple):
    """A value, and the place from which on it counts: "0", steps of one rank, a share of the
    training, or DECAY."""

    value: Fraction
    place: str = "0"


def are_stages(text: str) -> bool:
    """Whether a text is of the form of `stages_of`."""
    return bool(_STAGES.fullmatch(text))


def stages_of(text: str | float, flag: str) -> tuple[Stage, ...]:
    """The stages that the value of a flag says. Raises ValueError: it is of another form."""
    written = f"{Decimal(repr(text)):f}" if isinstance(text, float) else text
    if not are_stages(written):
        raise ValueError(f"--{flag} must be {FORM}, got {shown(text)}")
    first, *others = written.split(":")
    stages = [Stage(Fraction(first))]
    for other in others:
        value, _, place = other.partition("@")
        stages.append(Stage(Fraction(value), place))
    return tuple(stages)


@dataclass(frozen=True)
class Table(Generic[T]):
    """A value for each position of the stream: `values[i]` from row `starts[i]` on, of which the
    first is 0."""

    starts: tuple[int, ...]
    values: tuple[T, ...]

    def number_at(self, position: int) -> int:
        """Which of the values a position has."""
        return bisect.bisect_right(self.starts, position) - 1

    def __str__(self) -> str:
        parts = []
        for row, value in zip(self.starts, self.values, strict=True):
            parts.append(f"{value} from row {row:,} on" if row else str(value))
        return "; ".join(parts)


@dataclass(frozen=True)
class Places:
    """Where the places of stages are in the stream of a training, the same for any number of
    ranks."""

    rows_per_step: int  # of one rank
    steps: int
    decay_steps: int

    @classmethod
    def of(cls, settings: PlanSettings, num_rows: int) -> "Places":
        """Those of a training on so many rows of data."""
        length = length_of(settings, num_rows)
        return cls(settings.batch_size, length.steps, length.decay_steps)

    def row_of(self, place: str) -> int:
        """The first row of the stream after a place."""
        if place == DECAY:
            return (self.steps - self.decay_steps) * self.rows_per_step
        if place.endswith("%"):
            share = Fraction(place.removesuffix("%")) / 100
            return int(share * self.steps * self.rows_per_step)
        return int(place) * self.rows_per_step

    def table(self, stages: Sequence[Stage], flag: str) -> Table[Fraction]:
        """The table of stages. Raises InputError: a stage does not begin after the one before it,
        or not before the end."""
        end = self.steps * self.rows_per_step
        starts = [0]
        for before, stage in itertools.pairwise(stages):
            row = self.row_of(stage.place)
            if not starts[-1] < row < end:
                raise InputError(
                    f"--{flag}: {float(stage.value):g}@{stage.place} begins at row {row:,} of the"
                    f" stream: expected one after row {starts[-1]:,}, where"
                    f" {float(before.value):g} begins, and before the end at {end:,}"
                )
            starts.append(row)
        return Table(tuple(starts), tuple(stage.value for stage in stages))
