"""`ringbert.search`, and what a search has found."""

import html
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distributed.launcher import launched_size
from ringbase.errors import InputError, Preempted, as_arguments
from ringbert.job import LaunchedJob
from ringbert.searching.command import of_job
from ringbert.searching.keeping import BEST
from ringbert.searching.plan import Plan
from ringbert.searching.search import run_search
from ringbert.searching.settings import SearchSettings
from ringbert.searching.space import Space
from tasks.runs.report.trials import Trial, failures_of, table_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Found:
    """What a search has found: its trials, the best first.

    >>> Found(Path("mrpc"), [Trial(Path("mrpc/trial-000"), 0, {"seed": 1}, "complete", 0.87)])
    trial  score   state     seed  seconds
    0      0.8700  complete  1
    (mrpc)
    """

    output_dir: Path
    trials: Sequence[Trial]

    @property
    def best(self) -> Trial:
        """The trial with the best score. Raises InputError: no trial has one."""
        if not self.trials or self.trials[0].score is None:
            raise InputError(f"{self.output_dir}: no trial has a score")
        return self.trials[0]

    @property
    def model(self) -> Path:
        """The folder of its model."""
        return self.output_dir / BEST / "model"

    def frame(self) -> "pd.DataFrame":
        """The trials as a data frame of pandas, the best first."""
        import pandas as pd

        rows = []
        for trial in self.trials:
            row: dict[str, Any] = {"trial": trial.number, "state": trial.state}
            row |= {**trial.values, "score": trial.score, **(trial.scores or {})}
            row |= {"seconds": trial.seconds, "error": trial.error}
            rows.append(row | {"folder": str(trial.folder)})
        return pd.DataFrame(rows)

    def text(self) -> str:
        """The trials as a table."""
        heads, rows = table_of(self.trials)
        cells = [[*map(str, row)] for row in (heads, *rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for row in cells:
            padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
            lines.append("  ".join(padded).rstrip())
        return "\n".join([*lines, *failures_of(self.trials)])

    def __repr__(self) -> str:
        return f"{self.text()}\n({self.output_dir})"

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        heads, rows = table_of(self.trials)
        head = "".join(f"<th>{html.escape(text)}" for text in heads)
        body = ""
        for row in rows:
            body += "<tr>" + "".join(f"<td>{html.escape(str(cell))}" for cell in row)
        notes = [*failures_of(self.trials), str(self.output_dir)]
        return f"<table><tr>{head}{body}</table>{'<br>'.join(map(html.escape, notes))}"


def search(
    job: LaunchedJob,
    space: Mapping[str, Any],
    trials: int | None = None,
    *,
    ranks: int = 1,
    ranks_per_trial: int = 1,
    sampler: Literal["grid", "random", "tpe"] = "grid",
    seed: int = 0,
    metric: str | None = None,
    prune: bool = False,
    keep_models: int = 3,
    restarts: int = 2,
    hosts: str | Mapping[str, int] | None = None,
    ssh_port: int | None = None,
    mpi_args: str | Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    progress: bool = True,
) -> Found:
    """Trains a job with many values of its arguments, several trainings at the same time, in
    folders of its `output_dir`. The same call continues a search, and trains nothing twice.

    `space` has for each argument a list of values, or {"low": 1e-5, "high": 1e-4, "log": True}.
    The other arguments are the options of bert-search: `ranks` are those of all trials at the same
    time. Interrupting saves the trainings, then raises KeyboardInterrupt.

    Raises InputError if the job, the space or these arguments cannot be used.

    >>> from ringbert import Squad
    >>> job = Squad(output_dir="search", model="minilm", train_file="a.json", predict_file="b.json")
    >>> search(job, {"learning_rate": {"low": 1e-5, "high": 1e-4}})
    Traceback (most recent call last):
        ...
    ringbase.errors.InputError: sampler grid: learning_rate is a range without a step: give it \
one, a list, or sampler random or tpe
    """
    if not isinstance(job, LaunchedJob):
        raise InputError(f"job must be ringbert.Squad(…), Classification(…) …, got {job!r:.80}")
    setting, size = launched_size()
    if size > 1:
        raise InputError(f"{setting}: search starts the ranks itself: start this without mpirun")
    if isinstance(hosts, Mapping):
        hosts = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
    if not isinstance(mpi_args, str):
        mpi_args = shlex.join(mpi_args)
    command = of_job(job)
    try:
        settings = SearchSettings(
            num_proc=ranks,
            hosts=hosts,
            ssh_port=ssh_port,
            mpi_args=mpi_args or None,
            ranks_per_trial=ranks_per_trial,
            trials=trials,
            sampler=sampler,
            seed=seed,
            metric=metric,
            prune=prune,
            keep_models=keep_models,
            restarts=restarts,
        )
        own = {name: str(value) for name, value in (environment or {}).items()}
        plan = Plan.of(command, Space.of(space), settings)
        found = run_search(plan, progress, own)
    except ValueError as error:
        raise InputError(as_arguments(str(error), {"num_proc": "ranks"})) from None
    except Preempted:
        raise KeyboardInterrupt(
            "the search was interrupted; call it again to continue what it has saved"
        ) from None
    return Found(command.folder, found)
