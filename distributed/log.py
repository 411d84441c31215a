"""Shows and logs the steps of a training, and measures how its time is spent."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from distributed.optimizer import StepResult
from distributed.run import Run
from distributed.state import State
from distributed.world import World
from ringbase.errors import InputError

MOST_SKIPPED_STEPS = 20


class NotFinite(InputError):
    """The gradients of a training are not finite numbers."""


class StepClock:
    """Measures the wall-clock seconds of each part of a step, and rows per second over all ranks.

    On a GPU operations return before they are done, and waiting for each would leave the GPU idle in between. So
    only every `sample_every`-th step is timed part by part, with waits; all steps count for the rows per second.

    Args:
      waits: operations return before they are done.
    """

    def __init__(self, rows_per_step: int, waits: bool = False, sample_every: int = 1):
        self._rows_per_step = rows_per_step
        self._waits, self._sample_every = waits, sample_every if waits else 1
        self._number, self._last = 0, time.perf_counter()
        self._start_anew()

    def _start_anew(self) -> None:
        self._parts: dict[str, float] = {}
        self._seconds, self._steps, self._samples = 0.0, 0, 0

    def mark(self, part: str, result: tf.Tensor | None = None) -> None:
        """Adds the time since the last mark to `part`, which computed `result`; "apply_s" ends a step."""
        is_sample, ends = self._is_sample(self._number), part == "apply_s"
        # The step before a sample is awaited too: its work must not count as the sample's.
        if self._waits and result is not None and (is_sample or (ends and self._is_sample(self._number + 1))):
            result[:1].numpy()
        now = time.perf_counter()
        self._seconds += now - self._last
        if is_sample:
            self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now
        if ends:
            self._number, self._steps, self._samples = self._number + 1, self._steps + 1, self._samples + is_sample

    def _is_sample(self, number: int) -> bool:
        return (number + 1) % self._sample_every == 0

    def skip(self) -> None:
        """Ignores the time since the last mark (a checkpoint, an evaluation)."""
        self._last = time.perf_counter()

    @property
    def rows_per_s(self) -> float:
        """Rows per second since the last read."""
        return self._steps * self._rows_per_step / self._seconds if self._seconds else 0.0

    def read(self) -> dict[str, float]:
        """Mean seconds of each part per timed step since the last read, and rows per second over all steps."""
        values = {name: round(seconds / max(self._samples, 1), 5) for name, seconds in self._parts.items()}
        values["examples_per_s"] = round(self.rows_per_s, 2)
        self._start_anew()
        return values


class Log:
    """Shows the steps of a run and logs every `every`-th of them, the first and the last.

    On GPUs it shows the step before, because reading the newest result would wait until the GPU is idle.
    """

    def __init__(self, every: int, world: World, run: Run, state: State):
        """`state`: where the training begins; it has the number of steps and of rows per step."""
        self._is_async = world.device.is_gpu
        self.clock = StepClock(state.global_batch_size, self._is_async, every)
        self._every, self._world, self._run = every, world, run
        self._bar = run.progress(state.steps, "training", initial=state.step)
        self._skipped, self._has_learned = 0, False
        self._unread: tuple[State, StepResult, float, dict[str, float]] | None = None
        self._began, self._paused_s = time.perf_counter(), 0.0

    def step(self, state: State, result: StepResult) -> None:
        """Shows the result of the step that led to `state`. Raises NotFinite when too many in a row were skipped,
        or all of them."""
        if self._is_async:
            self.flush()
        speed, is_logged = self.clock.rows_per_s, state.step % self._every == 0 or state.step in (1, state.steps)
        self._unread = state, result, speed, self.clock.read() if is_logged else {}
        if not self._is_async or state.step == state.steps:
            self.flush()

    def flush(self) -> None:
        """Shows the step that is not shown yet."""
        if self._unread is None:
            return
        (state, result, speed, times), self._unread = self._unread, None
        with self._world.operation("the result of a step"):  # on GPUs the sum is waited for here
            values = result.read()
        is_applied, scale = bool(values.pop("applied")), values.pop("loss_scale")
        self._skipped = 0 if is_applied else self._skipped + 1
        self._has_learned |= is_applied
        if not is_applied:
            now = f"; the loss scale is now {scale:g}" if scale else ""
            self._run.say(f"step {state.step}: the gradient is not finite; the step is skipped on every rank{now}")
        if self._skipped == MOST_SKIPPED_STEPS:
            raise NotFinite(f"no finite gradient in {self._skipped} steps")
        shown = {name: f"{values[name]:.4f}" for name in ("loss", *result.weights)}
        rates = {"rate": f"{values['learning_rate']:.2e}", "examples_s": f"{speed:.1f}"}
        self._bar.set_postfix(shown | rates, refresh=False)
        self._bar.update()
        if times:
            facts = {"loss_scale": scale} if scale else {}
            self._run.metrics(state.step, {"rows": state.position, **values, **facts, **times})
        if state.step == state.steps and not self._has_learned:
            raise NotFinite("no step had a finite gradient, so nothing was learned")

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Counts the time of the `with` block, a checkpoint or an evaluation, not as time of a step."""
        self.flush()
        began = time.perf_counter()
        yield
        self._paused_s += time.perf_counter() - began
        self.clock.skip()

    def close(self) -> None:
        """Ends the display, and says how long it took."""
        self.flush()
        self._bar.close()
        whole_s, paused_s = time.perf_counter() - self._began, self._paused_s
        part = f"{paused_s:.1f} s ({paused_s / whole_s:.1%})"
        self._run.say(f"trained for {whole_s:.1f} s; waited {part} of it for checkpoints and evaluations")
