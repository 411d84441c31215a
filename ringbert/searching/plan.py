"""What a search has to do, before anything is started."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distributed.run import replaced
from ringbase.errors import InputError
from ringbase.files import read_object, write_json
from ringbase.secrets import masked
from ringbase.settings import shown
from ringbert.searching.command import TrialCommand
from ringbert.searching.settings import SearchSettings
from ringbert.searching.slots import Share, shares_of
from ringbert.searching.space import Formula, Grid, Random, Space
from tasks.runs.report.trials import SEARCH

FORMULAS: dict[str, Callable[[Space, int], Formula]] = {"grid": Grid, "random": Random}


@dataclass(frozen=True)
class Plan:
    """The trials of a search, and where they run."""

    command: TrialCommand
    space: Space
    settings: SearchSettings
    formula: Formula | None  # of the values; None where Optuna gives them
    num_trials: int
    shares: Sequence[Share]

    @classmethod
    def of(cls, command: TrialCommand, space: Space, settings: SearchSettings) -> "Plan":
        """Raises InputError: the space, the slots or the command cannot be used."""
        if not space:
            raise InputError(
                "nothing differs between the trials: give a flag several values, such as"
                " --learning_rate 2e-5,3e-5, or a file space.toml"
            )
        formula, most = None, float("inf")
        if settings.sampler in FORMULAS:
            formula = FORMULAS[settings.sampler](space, settings.seed)
            most = formula.most
            command.check(formula.values(0))
        wanted = most if settings.trials is None else settings.trials
        if wanted == float("inf"):
            raise InputError(f"--sampler {settings.sampler} needs --trials N")
        if wanted > most:
            raise InputError(f"--trials {wanted}: the grid has {most} combinations")
        shares = shares_of(settings.each_host, settings.num_proc, settings.ranks_per_trial)
        return cls(command, space, settings, formula, int(wanted), shares)

    def claim(self) -> None:
        """Writes into the folder what must not change when the search goes on. Raises InputError:
        it holds another search, or a single run."""
        facts = self._facts()
        folder = self.command.folder
        file = folder / SEARCH
        if file.is_file():
            before = read_object(file)
            for name, value in facts.items():
                if before.get(name) != value:
                    raise InputError(
                        f"{folder} holds a search with {name} {shown(before.get(name))}, this one"
                        f" has {shown(value)}: give the same, or another --output_dir"
                    )
        elif (folder / "run.json").exists():
            raise InputError(f"{folder} holds a single run: give another --output_dir")
        replaced(file, write_json, facts)

    def _facts(self) -> dict[str, Any]:
        settings = self.settings
        facts = {
            "command": [self.command.program, *self.command.argv],
            "space": self.space.as_json(),
            "sampler": settings.sampler,
            "seed": settings.seed,
            "metric": settings.metric,
            "prune": settings.prune,
            "ranks_per_trial": settings.ranks_per_trial,
        }
        return masked(as_read(facts))


def as_read(value: Any) -> Any:
    """A value as JSON gives it back."""
    return json.loads(json.dumps(value, default=str))
