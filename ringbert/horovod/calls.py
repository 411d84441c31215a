"""What all ranks do together, and how it is put into words when they do not agree."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """What all ranks do together, and must agree on: everything but the values.

    Attributes:
      what: the function of hvd.
      name: the name that the user gave it, or what it is for.
      kind: dtype, shape and options.
    """

    what: str
    name: str = ""
    kind: tuple = ()

    def __str__(self) -> str:
        return " ".join(str(part) for part in (self.what, self.name, *self.kind) if part not in ("", None))


def described(calls: Sequence[Call | None]) -> list[str]:
    """The calls of the ranks in a few words, with the first part that differs if they are of one kind."""
    known = [call for call in calls if call is not None]
    if len({(call.what, call.name) for call in known}) > 1 or len(known) < len(calls):
        return ["hvd.join" if call is None else f"{call.what} {call.name}".strip() for call in calls]
    parts = list(itertools.zip_longest(*(call.kind for call in known)))
    place = next(place for place, of_ranks in enumerate(parts) if len(set(of_ranks)) > 1)
    return [
        f"{call.what} {call.name} of {len(call.kind)} parts, of which number {place} is "
        f"{call.kind[place] if place < len(call.kind) else 'missing'}"
        for call in known
    ]
