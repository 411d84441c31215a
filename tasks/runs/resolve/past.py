"""What the folder of a run holds: read once, on rank 0, before anything is decided."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed.found import CHECKPOINTS, STATE_FILE, Found, newest_intact
from ringbase.errors import InputError, shortened
from ringbase.files import read_object
from tasks.runs.environment import result_file
from tasks.runs.history import starts_in

MODEL = "model"
TASK_FILE = "task.json"  # of a model
RUN_FILE = "run.json"


@dataclass(frozen=True)
class Past:
    """What the folder of a run holds.

    A training is complete when result.json and `model/` are there. Then `model/` is what it has
    trained, and checkpoints only tell how it came about.
    """

    folder: Path
    newest: Found | None = None  # checkpoint
    facts: Mapping[str, Any] = field(default_factory=dict)  # run.json: of the newest training
    result: Mapping[str, Any] | None = None  # of a training that is complete
    model: Path | None = None  # the folder of the trained model
    # the settings that the model was trained with, by flag; empty if nobody knows
    saved: Mapping[str, Any] = field(default_factory=dict)
    starts: tuple[dict[str, Any], ...] = ()  # tasks/runs/history.py
    seeds: tuple[str, ...] = ()  # the folders of the runs of `--seeds`
    foreign: str | None = None  # the newest checkpoint of a TensorFlow 1 run

    @classmethod
    def of(cls, folder: Path, say: Callable[[str], None], reads_starts: bool = True) -> "Past":
        """Reads a folder. Calls `say` with a warning for each damaged checkpoint that is newer than
        the one found.

        Raises InputError: there are checkpoints but none is intact, or a file is damaged.
        """
        result = folder / result_file(trains=True)
        model = folder / MODEL
        has_model = (model / "config.json").is_file()
        starts = starts_in(folder) if reads_starts else []
        return cls(
            folder=folder,
            newest=newest_intact(folder / CHECKPOINTS, say),
            facts=facts_of(folder),
            result=read_object(result) if result.is_file() else None,
            model=model if has_model else None,
            saved=settings_of(model),
            starts=tuple(starts),
            seeds=seeds_in(folder),
            foreign=newest_foreign(folder),
        )

    @property
    def is_complete(self) -> bool:
        """Whether a training has ended, and its model is there."""
        return self.result is not None and self.model is not None

    @property
    def fixed(self) -> Mapping[str, Any] | None:
        """What must not change when the training goes on, by name; None if nobody knows."""
        if self.newest:
            return self.newest.state.settings
        return self.facts.get("fixed")

    @property
    def commit(self) -> str | None:
        """The hub's, of the weights that the training began with."""
        commits = self.facts.get("hub_commits")
        return commits.get("model") if isinstance(commits, dict) else None


def facts_of(folder: Path) -> Mapping[str, Any]:
    """What run.json says of the training that wrote a folder; empty without one. Raises InputError:
    it is damaged."""
    file = folder / RUN_FILE
    if not file.is_file():
        return {}
    facts = read_object(file)
    if not isinstance(facts.get("config"), dict):
        raise InputError(f"{file}: damaged: there is no object 'config' in it")
    return facts


def config_of(folder: Path) -> Mapping[str, Any]:
    """The flags of the training that wrote a run's folder; none if nobody knows."""
    return facts_of(folder).get("config", {})


def settings_of(place: Path) -> Mapping[str, Any]:
    """The settings that the model in the folder of a model or of a checkpoint was trained with, by
    flag: those of its TASK_FILE, of a complete training's checkpoint those of its model's, else of
    the run.json of its run; empty without any. Raises InputError: the file is damaged."""
    run = run_of(place)
    files = [place / TASK_FILE]
    if (run / result_file(trains=True)).is_file():
        files.append(run / MODEL / TASK_FILE)
    for file in files:
        if file.is_file():
            return read_object(file)
    return config_of(run)


def run_of(place: Path) -> Path:
    """The folder of the run that the folder of a model or of a checkpoint belongs to; of another
    place the place itself."""
    if place.name == MODEL:
        return place.resolve().parent
    if place.resolve().parent.name == CHECKPOINTS:
        return place.resolve().parent.parent
    return place


def origin_of(place: Path) -> dict[str, Any] | None:
    """Which run has trained the weights in the folder of a model or of a checkpoint: its folder,
    the digest of what it was (`spec` of its run.json), and the steps; None if it is no run's."""
    run = run_of(place)
    facts = facts_of(run)
    if run == place or not facts:
        return None
    file, entry = place / STATE_FILE, "step"
    if place.name == MODEL:
        file, entry = run / result_file(trains=True), "steps"
    steps = read_object(file).get(entry) if file.is_file() else None
    return {"run": str(run), "spec": facts.get("spec"), "step": steps}


def models_in(folder: Path) -> str:
    """Where the folder of a run, or of runs with several seeds, has models; "" for other
    folders."""
    of_seeds = sorted(folder.glob("seed-*/model/config.json"))
    models = [str(file.parent) for file in (*folder.glob("model/config.json"), *of_seeds)]
    return f", but models are in {shortened(models)}" if models else ""


def seeds_in(folder: Path) -> tuple[str, ...]:
    """The folders of the runs of `--seeds`."""
    return tuple(sorted(path.name for path in folder.glob("seed-*") if path.is_dir()))


def newest_foreign(folder: Path) -> str | None:
    """The prefix of the checkpoint of the highest step that TensorFlow 1 has left."""
    files = [str(path) for path in folder.glob("model.ckpt-*.index")]
    if not files:
        return None
    last = max(files, key=lambda name: (len(name), name))
    return last.removesuffix(".index")
