"""What predictions in Python have in common."""

from dataclasses import fields
from typing import Any


class Result:
    """A prediction: a dataclass of numbers, texts, tuples and mappings of these, and arrays."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, of which `json.dumps` makes JSON; arrays and tuples become
        lists."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple):
        return list(value)
    return value
