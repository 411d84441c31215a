"""What all ranks do when, as a Chrome trace for ui.perfetto.dev, and TensorFlow's profile of some
steps."""

import contextlib
import json
import time
from pathlib import Path

from distributed.devices import imported_tensorflow
from distributed.run import Run
from distributed.world import World
from ringbase.files import write_text

MOST_EVENTS = 400_000  # of a rank: some 100,000 steps
PROFILE = "profile"  # the folder; TensorBoard's profile plugin and Perfetto show it


class Timeline:
    """The parts of this rank's steps, its evaluations and checkpoints, if `path` is given. All
    ranks make it together: a barrier sets their clocks to one, as exactly as it takes to leave
    it."""

    def __init__(self, path: str | None, world: World):
        self.path, self._world = path, world
        self._events: list = []  # (name, begin, seconds)
        if path:
            world.barrier()
        self._origin_s = time.perf_counter()

    def add(self, name: str, began_s: float, ended_s: float) -> None:
        if self.path and len(self._events) < MOST_EVENTS:
            self._events.append((name, began_s - self._origin_s, ended_s - began_s))

    def write(self, run: Run) -> None:
        """Writes the file, on rank 0; every rank calls it."""
        gathered = self._world.gather(self._events) if self.path else None
        if not self.path or gathered is None:
            return
        events: list = []
        for rank, own in enumerate(gathered):
            label = {"args": {"name": f"rank {rank}"}}
            events.append({"ph": "M", "name": "process_name", "pid": rank, **label})
            for name, began_s, seconds in own:
                times = {"ts": round(1e6 * began_s), "dur": round(1e6 * seconds)}
                events.append({"ph": "X", "name": name, "pid": rank, "tid": 0, **times})
        try:
            write_text(Path(self.path).expanduser(), json.dumps({"traceEvents": events}))
            run.say(f"timeline: {self.path}: open it in ui.perfetto.dev")
        except OSError as error:  # the training is worth more
            run.say(f"warning: --timeline {self.path} cannot be written: {error.strerror}")


class Profile:
    """TensorFlow's profiler during the steps FIRST:LAST of rank 0, into the run's folder
    `profile`."""

    def __init__(self, steps: str | None, run: Run, step: int):
        first, self._last = map(int, steps.split(":")) if steps and run.is_writer else (0, -1)
        self._first = max(first, step + 1)
        self._run = run
        self._is_on = False
        self.after(step)

    def after(self, step: int) -> None:
        """Called after each step, and with the number of steps before the first one."""
        if self._is_on and step >= self._last:
            self.close()
        elif step + 1 == self._first <= self._last:
            imported_tensorflow().profiler.experimental.start(str(self._run.folder / PROFILE))
            self._is_on = True

    def close(self) -> None:
        if self._is_on:
            # it has its own; a profile is no reason to end a run
            with contextlib.suppress(Exception):
                imported_tensorflow().profiler.experimental.stop()
            self._is_on = False
