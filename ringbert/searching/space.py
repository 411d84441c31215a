"""The values that a search tries: lists and ranges, by the names of flags."""

import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ringbase.errors import InputError, one_line
from ringbase.files import read_text
from ringbase.settings import shown

KEYS = {"low", "high", "step", "log"}
EXAMPLE = "a list, or {low = 1e-5, high = 1e-4, log = true}, {low = 2, high = 4, step = 1}"
MOST_VALUES = 1_000_000  # of a grid
Values = Mapping[str, Any]  # by the names of flags


class OfFlag(Protocol):
    """The values of one flag."""

    @property
    def all(self) -> Sequence[Any] | None:
        """They, if they can be counted."""

    def at(self, share: float) -> Any:
        """That of a number from 0 to 1, of which each is as likely as the others."""

    def suggested(self, trial: Any, name: str) -> Any:
        """That which a trial of Optuna suggests."""


@dataclass(frozen=True)
class Choices:
    """Some values."""

    all: tuple[Any, ...]

    def at(self, share: float) -> Any:
        return self.all[int(share * len(self.all))]

    def suggested(self, trial: Any, name: str) -> Any:
        return trial.suggest_categorical(name, self.all)


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, whole ones if both are, and with a step those only that are
    whole steps above `low`."""

    low: float
    high: float
    step: float | None = None
    log: bool = False  # as likely by their logarithms

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def all(self) -> Sequence[Any] | None:
        step = self.step
        if step is None:
            return None
        count = int((self.high - self.low) / step * (1 + 1e-12)) + 1  # quotients are rounded
        return [self.low + number * step for number in range(count)]

    def at(self, share: float) -> Any:
        if self.all is not None:
            return Choices(tuple(self.all)).at(share)
        if self.is_whole:
            # of the logarithms, each whole number has its place from half below to half above
            value = self._between(share, self.low - 0.5, self.high + 0.5)
            return min(max(round(value), int(self.low)), int(self.high))
        return self._between(share, self.low, self.high)

    def _between(self, share: float, low: float, high: float) -> float:
        if self.log:
            return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        return low + share * (high - low)

    def suggested(self, trial: Any, name: str) -> Any:
        if self.is_whole:
            step = 1 if self.step is None else int(self.step)
            return trial.suggest_int(name, self.low, self.high, step=step, log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)


class Space(dict[str, OfFlag]):
    """The values of each flag that differs between trials."""

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "Space":
        """Of Python or TOML. Raises InputError."""
        return cls({name: _values(name, given) for name, given in table.items()})

    @classmethod
    def of_file(cls, file: str) -> "Space":
        text = read_text(Path(file).expanduser(), file)
        try:
            return cls.of(tomllib.loads(text))
        except ValueError as error:
            raise InputError(f"{file}: {one_line(error)}") from None

    def as_json(self) -> dict[str, Any]:
        """It, as search.json has it."""
        return {name: vars(values) for name, values in self.items()}


def _values(name: str, given: Any) -> OfFlag:
    if isinstance(given, list | tuple | range) and len(given):
        return Choices(tuple(given))
    if not isinstance(given, Mapping) or not {"low", "high"} <= given.keys() <= KEYS:
        raise InputError(f"{name} must be {EXAMPLE}, got {shown(given)}")
    numbers = [given[key] for key in ("low", "high", "step") if given.get(key) is not None]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise InputError(f"{name}: low, high and step must be numbers, got {shown(number)}")
    low, high, *steps = numbers
    step, log = next(iter(steps), None), bool(given.get("log"))
    fault = ""
    if not -math.inf < low < high < math.inf:
        fault = "low must be below high"
    elif step is not None and not 0 < step <= high - low:
        fault = "step must be above 0, and at most high - low"
    elif log and (low <= 0 or step is not None):
        fault = "with log, low must be above 0, and there is no step"
    if fault:
        raise InputError(f"{name}: {fault}, got {shown(dict(given))}")
    if isinstance(step, float):
        low = float(low)
    return Range(low, high, step, log)


class Formula(Protocol):
    """Values that are a function of the space, the seed and the number of a trial."""

    @property
    def most(self) -> float:
        """How many trials there are at most."""

    def values(self, number: int) -> Values:
        """Those of a trial, from 0."""


class Grid:
    """Every combination once, in an order that the seed says: the first trials see all of the
    space."""

    def __init__(self, space: Space, seed: int):
        lists = []
        for name, values in space.items():
            if values.all is None:
                raise InputError(
                    f"--sampler grid: {name} is a range without a step: give it one, a list, or"
                    " --sampler random or tpe"
                )
            lists.append(values.all)
        self.most = math.prod(map(len, lists))
        if self.most > MOST_VALUES:
            raise InputError(
                f"--sampler grid: {self.most:,} combinations: give fewer or --sampler random"
            )
        self._names = [*space]
        self._combinations = [*itertools.product(*lists)]
        self._order = np.random.default_rng(seed).permutation(self.most)

    def values(self, number: int) -> Values:
        combination = self._combinations[self._order[number]]
        return dict(zip(self._names, combination, strict=True))


class Random:
    """Each value on its own, by its flag's name: another flag changes nothing for the others."""

    most = math.inf

    def __init__(self, space: Space, seed: int):
        self._space, self._seed = space, seed

    def values(self, number: int) -> Values:
        drawn = {}
        for name, values in self._space.items():
            key = [self._seed, number, *name.encode()]
            drawn[name] = values.at(float(np.random.default_rng(key).random()))
        return drawn
