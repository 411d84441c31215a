"""Shows and logs the steps of a training, and measures how its time is spent."""

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from distributed.optimizer import StepResult
from distributed.plan import State
from distributed.run import Run
from distributed.world import World
from ringbase.errors import InputError

MOST_SKIPPED_STEPS = 20


class NotFinite(InputError):
    """The gradients of a training are not finite numbers."""


class StepClock:
    """Measures the wall-clock seconds of each part of a step, and rows per second over all ranks.

    On a GPU operations return before they are done. With `waits`, every `every`-th step is timed part by part, by
    waits that leave the GPU idle in between. All steps count for the rows per second.
    """

    def __init__(self, rows_per_step: int, waits: bool = False, every: int = 1):
        self._rows_per_step, self._waits, self._every = rows_per_step, waits, every if waits else 1
        self._number, self._last_s = 0, time.perf_counter()
        self._parts: dict[str, float] = defaultdict(float)
        self._seconds, self._steps, self._timed_steps = 0.0, 0, 0  # since the last reset, as are the parts

    def mark(self, part: str, result: tf.Tensor | None = None) -> None:
        """Adds the time since the last mark to `part`, which computed `result`; "apply_s" ends a step."""
        is_timed, ends = (self._number + 1) % self._every == 0, part == "apply_s"
        # The step before a timed one is awaited too: its work must not count as the timed one's.
        if self._waits and result is not None and (is_timed or (ends and (self._number + 2) % self._every == 0)):
            result[:1].numpy()
        now_s = time.perf_counter()
        self._seconds += now_s - self._last_s
        if is_timed:
            self._parts[part] += now_s - self._last_s
            self._timed_steps += ends
        self._number, self._steps, self._last_s = self._number + ends, self._steps + ends, now_s

    def skip(self) -> None:
        """Ignores the time since the last mark (a checkpoint, an evaluation)."""
        self._last_s = time.perf_counter()

    def read(self, resets: bool = True) -> dict[str, float]:
        """Mean seconds of each part per timed step since the last reset, and rows per second over all steps."""
        values = {name: round(seconds / max(self._timed_steps, 1), 5) for name, seconds in self._parts.items()}
        values["examples_per_s"] = round(self._steps * self._rows_per_step / max(self._seconds, 1e-9), 2)
        if resets:
            self._parts.clear()
            self._seconds, self._steps, self._timed_steps = 0.0, 0, 0
        return values


class Log:
    """Shows each step, and logs every `every`-th of them, the first and the last.

    On GPUs it shows the step before, because reading the newest result would wait until the GPU is idle.
    """

    def __init__(self, every: int, world: World, run: Run, state: State):
        """`state`: where the training begins; it has the number of steps and of rows per step."""
        self._is_async, self._begin = world.device.is_gpu, state.step
        self.clock = StepClock(state.global_batch_size, self._is_async, every)
        self._every, self._world, self._run = every, world, run
        self._bar = run.progress(state.steps, "training", initial=state.step)
        self._skipped, self._began_s = 0, time.perf_counter()
        self._unread: deque[tuple[State, StepResult, dict[str, float], bool]] = deque()

    def step(self, state: State, result: StepResult) -> None:
        """Shows the result of the step that led to `state`. Raises NotFinite when too many in a row were skipped,
        or all of them."""
        is_logged = state.step % self._every == 0 or state.step in (1, state.steps)
        self._unread.append((state, result, self.clock.read(resets=is_logged), is_logged))
        self._show_all_but(self._is_async)

    def _show_all_but(self, num_unread: int) -> None:
        while len(self._unread) > num_unread:
            state, result, times, is_logged = self._unread.popleft()
            with self._world.operation("the result of a step"):  # on GPUs the sum is waited for here
                values = result.read()
            is_applied, scale = values.pop("applied"), values.get("loss_scale")
            self._skipped = 0 if is_applied else self._skipped + 1
            if not is_applied:
                now = f"; the loss scale is now {scale:g}" if scale else ""
                self._run.say(f"step {state.step}: the gradient is not finite; all ranks skip the step{now}")
            has_learned = state.step < state.steps or self._skipped < state.step - self._begin
            if self._skipped == MOST_SKIPPED_STEPS or not has_learned:
                raise NotFinite(f"no finite gradient in {self._skipped} steps")
            shown = {name: f"{values[name]:.4f}" for name in ("loss", *result.weights)}
            rates = {"rate": f"{values['learning_rate']:.2e}", "examples_s": f"{times['examples_per_s']:.1f}"}
            self._bar.set_postfix(shown | rates, refresh=False)
            self._bar.update()
            if is_logged:
                self._run.metrics(state.step, {"rows": state.position, **values, **times})

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """The time of the `with` block, a checkpoint or an evaluation, is not that of a step."""
        self._show_all_but(0)
        yield
        self.clock.skip()

    def close(self) -> None:
        """Ends the display, and says how long it took."""
        self._bar.close()
        self._run.say(f"trained for {time.perf_counter() - self._began_s:.1f} s")
