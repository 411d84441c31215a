"""What the steps print and the runner keeps: one JSON object in a line, the finding."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

PREFIX = "finding "
PEAK_FLOP_PER_S = 989e12  # bfloat16 without sparsity: NVIDIA H100 and H200 (SXM) data sheets


@dataclass(frozen=True)
class Finding:
    """One result.

    Attributes:
      text: one line for the page.
      ok: whether a check passed; None for a measurement.
      figures: the numbers, with units in their names.
    """

    name: str
    text: str
    ok: bool | None = None
    figures: dict[str, Any] = field(default_factory=dict)


def say(name: str, text: str, ok: bool | None = None, **figures: Any) -> None:
    """Prints a finding, for the runner that started this process."""
    print(PREFIX + json.dumps(asdict(Finding(name, text, ok, figures)), default=float), flush=True)


def read(line: str) -> Finding | None:
    """The finding in a line of a step's output; None for any other line."""
    return Finding(**json.loads(line.removeprefix(PREFIX))) if line.startswith(PREFIX) else None
