"""Which models of a search are kept, and the copy of the best one."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from distributed.run import replaced
from ringbase.files import read_json, remove_folder, replace_folder, write_json
from ringbase.secrets import masked
from ringbert.searching.plan import Plan, as_read
from tasks.runs.report.trials import PRUNED, TRIAL, Trial, ended, ranked

BEST, AGAIN = "best", "command.txt"


def keep_best(plan: Plan, trials: Sequence[Trial]) -> None:
    """Copies the best model to `best/`, and removes those of trials that are not among the best."""
    trials = ranked(trials, plan.settings.metric)
    scored = [trial for trial in trials if trial.score is not None]
    if scored:
        copy_best(plan, scored[0])
    given_up = [trial for trial in trials if trial.state == PRUNED]
    for trial in (*scored[plan.settings.keep_models :], *given_up):
        for run in trial.runs():
            for name in ("model", "checkpoints"):
                remove_folder(run / name)


def copy_best(plan: Plan, trial: Trial) -> None:
    best = plan.command.folder / BEST
    note = best / TRIAL
    if note.is_file() and read_json(note) == as_read(trial.as_json()):
        return
    models = [run / "model" for run in best_runs(trial, plan.settings.metric)]
    model = next(filter(Path.is_dir, models), None)

    def fill(folder: Path) -> None:
        if model is not None:
            copy(model, folder / "model")
        again = plan.command.shown(trial.values, "again", plan.settings.ranks_per_trial)
        (folder / AGAIN).write_text(f"{masked(again)}\n")
        write_json(folder / TRIAL, trial.as_json())

    replaced(best, replace_folder, fill)


def copy(source: Path, target: Path) -> None:
    """Copies a folder. Raises OSError, the first one: that of shutil.copytree tells no reason."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_dir():
            copy(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)


def best_runs(trial: Trial, metric: str | None) -> Sequence[Path]:
    """The folders of a trial's runs, that of the best seed first."""
    runs = [Trial(run, 0, {}) for run in trial.runs()]
    done = [ended(run, metric) or run for run in runs]
    return [run.folder for run in ranked(done, metric)]
