"""How long the parts of a step take."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PARTS = "data_s", "compute_s", "reduce_s", "apply_s"  # of a step

See = Callable[[str, float, float], None]  # name, begin and end of a part of a step


@dataclass(eq=False)
class StepClock:
    """Measures the wall-clock seconds of each part of a step, and rows per second over all ranks.

    On a GPU operations return before they are done: there, with `waits`, every `every`-th step is
    timed part by part, by waits that leave the GPU idle in between. All steps, and what is done
    between them outside of a pause, count for the rows per second. `see` gets each part with its
    begin and end.
    """

    rows_per_step: int
    waits: bool = False
    every: int = 1
    see: See = lambda *_: None

    def __post_init__(self) -> None:
        self._number = 0  # of steps
        self.step_s = 0.0  # seconds of the last one
        self._last_s = time.perf_counter()  # up to here all time is counted
        self._reset()

    def _reset(self) -> None:
        self._parts = dict.fromkeys(PARTS, 0.0)
        self._seconds, self._steps, self._timed_steps = 0.0, 0, 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """The `with` block is a step."""
        began_s = time.perf_counter()
        yield
        self._count()
        self.step_s = self._last_s - began_s
        self._timed_steps += self._is_timed(self._number)
        self._number += 1
        self._steps += 1

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """The `with` block is one of `PARTS`."""
        began_s = time.perf_counter()
        yield
        ended_s = time.perf_counter()
        self.see(name.removesuffix("_s"), began_s, ended_s)
        if self._is_timed(self._number):
            self._parts[name] += ended_s - began_s

    @contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """The time of the `with` block, between two steps, counts for none."""
        self._count()
        began_s = self._last_s
        yield
        self._last_s = time.perf_counter()
        self.see(name, began_s, self._last_s)

    def wait_for(self, result: Any, ends_step: bool = False) -> None:
        """Waits until a GPU has computed a tensor, the result of a part, if the part is timed."""
        is_awaited = self._is_timed(self._number)
        if ends_step:  # the work of the step before must not count as the timed one's
            is_awaited |= self._is_timed(self._number + 1)
        if self.waits and is_awaited:
            result[:1].numpy()

    def read(self, resets: bool = True) -> dict[str, float]:
        """Mean seconds of each part per timed step since the last reset, and rows per second over
        all steps."""
        num_timed = max(self._timed_steps, 1)
        values = {name: round(total_s / num_timed, 5) for name, total_s in self._parts.items()}
        num_rows = self._steps * self.rows_per_step
        values["examples_per_s"] = round(num_rows / max(self._seconds, 1e-9), 5)
        if resets:
            self._reset()
        return values

    def _is_timed(self, number: int) -> bool:
        return (number + 1) % self.every == 0

    def _count(self) -> None:
        before_s, self._last_s = self._last_s, time.perf_counter()
        self._seconds += self._last_s - before_s
