"""Evaluation on held-out data during training, and early stopping by its scores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from distributed.state import State


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A measurement on held-out data.

    Attributes:
      measure: () -> scores; every rank calls it and gets the same values.
      tokens: how many tokens a measurement reads, from which its cost is estimated.
      every: steps between measurements, "epoch", or "auto" for a small share of the training time; the last step
        is always measured.
      best: the name of the score (larger is better) that decides which checkpoint is kept as the best; None for
        none.
      patience: training stops after this many measurements without a better score; None for never.
    """

    measure: Callable[[], Mapping[str, float]]
    tokens: int
    every: int | Literal["auto", "epoch"]
    best: str | None = None
    patience: int | None = None

    def is_due(self, state: State) -> bool:
        """Whether to measure now: every so many steps and after the last one, once at each position."""
        is_place = state.step == state.steps or state.step % int(self.every) == 0
        return is_place and state.evaluated < state.position

    def stops(self, state: State) -> bool:
        """Whether patience has run out."""
        if self.patience is None or state.best is None:
            return False
        since_best = [position for position, _ in state.evaluations if position > state.best[0]]
        return len(since_best) >= self.patience
