"""The settings that a trained model was saved with, which predictions with it take unless flags say
otherwise."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringbase.errors import InputError
from ringbase.files import read_object
from ringbase.settings import Field, fields_of, flat, of_type

CHECKPOINTS = "checkpoints"
TASK_FILE = "task.json"  # of a model


def saved_settings(config: Any) -> dict:
    """What TASK_FILE holds of a program's configuration: its fields with `is_saved`."""
    values = flat(config)
    return {field.name: values[field.name] for field in fields_of(type(config)) if field.is_saved}


def settings_of(place: Path) -> Mapping:
    """The settings that the model in the folder of a run, of a model or of a checkpoint was trained
    with, by flag: those of its TASK_FILE, else of the run.json of its run; empty without both.
    Raises InputError: the file is damaged."""
    folder, parent = place, place.resolve().parent
    if place.name == "model":
        folder = parent
    elif parent.name == CHECKPOINTS:
        folder = parent.parent
    for file in (place / TASK_FILE, folder / "model" / TASK_FILE):
        if file.is_file():
            return read_object(file)
    return config_of(folder)


def config_of(folder: Path) -> Mapping:
    """The flags of the training that wrote a run's folder; none if nobody knows."""
    run = folder / "run.json"
    config = read_object(run).get("config") if run.is_file() else {}
    if not isinstance(config, dict):
        raise InputError(f"{run}: damaged: there is no object 'config' in it")
    return config


def with_settings_of_model(given: Mapping, fields: Sequence[Field]) -> tuple[dict, list[str]]:
    """The flags of a command that trains nothing, those with `is_saved` as its model was trained
    unless they are given; and what to say of flags that differ from it. Raises InputError: the
    model's settings are damaged."""
    values = dict(given)
    notes = []
    wanted = []
    for field in fields:
        if field.is_saved and (not field.needs or given.keys() & set(field.needs)):
            wanted.append(field)
    flags = ("output_dir", "init_checkpoint", "model") if wanted else ()
    models = filter(None, map(given.get, flags))
    place, saved = "", dict[str, Any]()
    for place in models:
        if saved := dict(settings_of(Path(place).expanduser())):
            break
    for field in wanted:
        value = saved.get(field.name)
        if value is None:
            continue
        try:
            value = of_type(value, field.type)
        except ValueError as error:
            raise InputError(f"{place}: --{field.name} {error}") from None
        if values.setdefault(field.name, value) != value:
            notes.append(
                f"note: --{field.name} {values[field.name]}: the model was trained with {value}"
            )
    return values, notes
