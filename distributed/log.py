"""Shows and logs the steps of a training, and measures how its time is spent."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from distributed.optimizer import AllreduceOptimizer
from distributed.plan import Plan
from distributed.run import Run
from distributed.settings import LoopSettings
from distributed.steps import Step, StepClock
from ringbase.errors import InputError

MOST_SKIPPED_STEPS = 20


class Log:
    """Shows and logs the steps of a run, and measures how its time is spent."""

    def __init__(
        self,
        settings: LoopSettings,
        plan: Plan,
        optimizer: AllreduceOptimizer,
        run: Run,
        first: int,
        overflow_advice: str,
    ):
        self._is_async = optimizer.world.device == "gpu"
        self.clock = StepClock(plan.global_batch_size, self._is_async, settings.log_steps)
        self._every, self._last_step = settings.log_steps, plan.steps
        self._optimizer, self._run, self._overflow_advice = optimizer, run, overflow_advice
        self._bar = run.progress(plan.steps, "training", initial=first)
        self._skipped = self._applied = 0
        self._loss = math.nan
        self._unread: tuple[Step, dict[str, float]] | None = None
        self._waits: dict[str, float] = {"checkpoints": 0.0}
        self._began = time.perf_counter()

    def restart(self, plan: Plan, first: int) -> None:
        """Goes on after a loss of ranks; rank 0 may be another than before."""
        self.close()
        self._last_step, self.clock.rows_per_step = plan.steps, plan.global_batch_size
        self._bar = self._run.progress(plan.steps, "training", initial=first)

    def step(self, step: Step) -> None:
        """Shows a step, and logs it every `log_steps`. Raises InputError when too many in a row were skipped.

        On GPUs it shows the step before, because reading the newest result would wait until the GPU is idle.
        """
        unread = step, self.clock.read() if self._is_logged(step) else {}
        if self._is_async:
            self.flush()
            self._unread = unread
        else:
            self._show(*unread)

    def flush(self, is_last: bool = False) -> None:
        """Shows the step that `step` has not shown yet.

        Raises InputError if the run ends with it and learned nothing: no step was applied, or the last loss is not
        finite.
        """
        if self._unread is not None:
            unread, self._unread = self._unread, None
            self._show(*unread)
        if is_last and not self._applied:
            raise InputError(f"no step had a finite gradient, so nothing was learned: {self._overflow_advice}")
        if is_last and not math.isfinite(self._loss):
            raise InputError(f"the loss of the last step is {self._loss}: {self._overflow_advice}")

    def _is_logged(self, step: Step) -> bool:
        return step.number % self._every == 0 or step.number in (1, self._last_step)

    def _show(self, step: Step, times: dict[str, float]) -> None:
        result = step.result
        with self._optimizer.world.operation("the result of a step"):  # on GPUs the sum is waited for here
            is_applied = result.applied
        self._skipped = 0 if is_applied else self._skipped + 1
        if self._skipped:
            scale = f"; the loss scale is now {result.loss_scale:g}" if self._optimizer.scales_loss else ""
            self._run.say(
                f"step {step.number}: the gradient is not finite; the step is skipped on every rank{scale}"
            )
        if self._skipped == MOST_SKIPPED_STEPS:
            raise InputError(f"no finite gradient in {self._skipped} steps: {self._overflow_advice}")
        losses = {"loss": sum(result.losses.values()), **result.losses}
        self._applied, self._loss = self._applied + result.applied, losses["loss"]
        shown = {name: f"{value:.4f}" for name, value in losses.items()}
        speed = f"{self.clock.rows_per_s():.1f}"
        self._bar.update(step.number, **shown, rate=f"{result.learning_rate:.2e}", examples_s=speed)
        if self._is_logged(step):
            facts = {"learning_rate": result.learning_rate, "gradient_norm": result.gradient_norm}
            if self._optimizer.scales_loss:
                facts["loss_scale"] = result.loss_scale
            self._run.metrics(step.number, {"rows": step.position, **losses, **facts, **times})

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Counts the time of the `with` block as waiting for `what`, not as time of a step."""
        began = time.perf_counter()
        yield
        self._waits[what] = self._waits.get(what, 0.0) + time.perf_counter() - began
        self.clock.skip()

    def summary(self) -> str:
        whole_s = time.perf_counter() - self._began
        waits = ", ".join(
            f"{waited:.1f} s for {what} ({waited / whole_s:.1%})" for what, waited in self._waits.items()
        )
        return f"trained for {whole_s:.1f} s; of that waited {waits}"

    def close(self) -> None:
        self.flush()
        self._bar.close()
