"""Evaluation on held-out rows, while training and at the end."""

from collections.abc import Callable, Mapping

from distributed.run import Run
from distributed.train import HeldOut
from tasks.settings import DevSettings


def evaluations(
    settings: DevSettings, measure: Callable[[], Mapping[str, float]], metric: str, num_rows: int
) -> HeldOut | None:
    """How `measure` evaluates a training on `num_rows` rows; the best model is that of the highest
    `metric`."""
    if not settings.during_training:
        return None
    best = f"eval_{metric}" if settings.keeps_best else None
    every, patience = settings.eval_steps or "epoch", settings.early_stopping_patience
    return HeldOut(measure=measure, num_rows=num_rows, every=every, best=best, patience=patience)


def write_eval_results(run: Run, values: Mapping[str, float | None]) -> None:
    """eval_results.txt as Google's scripts write it, without values that are None."""
    lines = (f"{name} = {value}\n" for name, value in sorted(values.items()) if value is not None)
    run.write("eval_results.txt", "".join(lines))
