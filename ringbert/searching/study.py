"""Who says which values are tried, and which trials are given up: a formula, or Optuna."""

import contextlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ringbase.errors import InputError
from ringbert.searching.space import Formula, Space, Values
from tasks.runs.report.trials import COMPLETE, PRUNED, Trial

JOURNAL = "optuna.journal"


class Adviser(Protocol):
    """What a search asks about its trials."""

    def values(self, number: int) -> Values:
        """Those of the next trial; asked in the order of the numbers."""

    def is_hopeless(self, number: int, measured: Sequence[float]) -> bool:
        """Whether to give up a trial, by its scores while training so far."""

    def learn(self, trial: Trial) -> None:
        """Takes note of a trial that has ended."""


class ByFormula:
    """A grid, or random values; every trial runs to its end."""

    def __init__(self, formula: Formula):
        self.values = formula.values

    def is_hopeless(self, number: int, measured: Sequence[float]) -> bool:
        return False

    def learn(self, trial: Trial) -> None:
        pass


class ByOptuna:
    """A study of Optuna, whose journal is in the search's folder. It is written anew at each start,
    from what the trials' folders say: a kill or a full disk cannot damage it."""

    def __init__(
        self,
        folder: Path,
        space: Space,
        seed: int,
        is_loss: bool,
        formula: Formula | None,
        trials: Iterable[Trial],
    ):
        """`formula` gives the values, else Optuna's TPE. `trials` are those so far."""
        optuna = _imported()
        self._space, self._formula = space, formula
        self._asked: dict[int, Any] = {}  # trials of Optuna's that have not ended, by number
        self._reported = Counter[int]()  # how many scores while training Optuna knows of each
        self._states = {COMPLETE: optuna.trial.TrialState.COMPLETE}
        self._states[PRUNED] = optuna.trial.TrialState.PRUNED
        self._failed = optuna.trial.TrialState.FAIL
        for file in folder.glob(f"{JOURNAL}*"):
            file.unlink()
        backend = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # constant_liar: trials at the same time do not get the same values
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            self._study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name=folder.resolve().name,
                sampler=sampler,
                pruner=optuna.pruners.MedianPruner(),
                direction="minimize" if is_loss else "maximize",
            )
        for trial in trials:
            self._ask(trial.number, trial.values)
            if trial.has_ended:
                for place, score in enumerate(trial.measured):
                    self._asked[trial.number].report(score, place)
                self.learn(trial)

    def values(self, number: int) -> Values:
        return self._ask(number, self._formula.values(number) if self._formula else None)

    def _ask(self, number: int, values: Any) -> Values:
        if values is not None:
            self._study.enqueue_trial(dict(values))
        trial = self._asked[number] = self._study.ask()
        # of a list that is a value of its own Optuna says that it cannot be stored
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return {name: each.suggested(trial, name) for name, each in self._space.items()}

    def is_hopeless(self, number: int, measured: Sequence[float]) -> bool:
        trial, before = self._asked[number], self._reported[number]
        if len(measured) == before:
            return False
        for place in range(before, len(measured)):
            trial.report(measured[place], place)
        self._reported[number] = len(measured)
        return trial.should_prune()

    def learn(self, trial: Trial) -> None:
        state = self._states.get(trial.state, self._failed)
        score = trial.score if trial.state == COMPLETE else None
        self._study.tell(self._asked.pop(trial.number), score, state)


def _imported() -> Any:
    try:
        with contextlib.redirect_stdout(None):
            import optuna
    except ImportError as error:
        raise InputError(
            f"--sampler tpe and --prune need Optuna ({error}): pip install 'ringbert[search]'"
        ) from None
    optuna.logging.set_verbosity(logging.WARNING)
    return optuna
