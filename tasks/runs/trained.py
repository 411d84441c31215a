"""The settings that a trained model is saved with, which predictions with it take unless flags say
otherwise."""

from typing import Any

from ringbase.settings import fields_of, flat


def saved_settings(config: Any) -> dict:
    """What a model's TASK_FILE holds of a program's configuration: its fields with `is_saved`."""
    values = flat(config)
    return {field.name: values[field.name] for field in fields_of(type(config)) if field.is_saved}
