"""What the programs' functions say, in a process that is no run: warnings, and the progress of long loops."""

import re
import warnings
from pathlib import Path

from distributed.progress import Progress
from distributed.run import Run

FEWEST_SHOWN = 50  # steps of a progress bar: shorter loops have none


class Session(Run):
    """Stands for a run where the programs' functions take one. It has no folder."""

    def __init__(self) -> None:
        super().__init__(Path(), is_writer=False)

    def say(self, text: str) -> None:
        """Shows warnings as Python's, and nothing else."""
        if text.startswith("warning: "):
            warnings.warn(without_dashes(text.removeprefix("warning: ")), stacklevel=2)

    def progress(
        self, total: int, label: str, unit: str = "step", initial: int = 0, is_shown: bool = True
    ) -> Progress:
        """A bar on a terminal, elsewhere a line every 30 seconds; nothing if the loop is short."""
        return Progress(total, label, unit, is_shown and total >= FEWEST_SHOWN, initial)


def without_dashes(message: str) -> str:
    """A message about flags as one about arguments: `--max_seq_length` is `max_seq_length`, `--model` is
    `folder`."""
    message = re.sub(r" \((--\w+(, )?)+\)", "", message)
    message = re.sub(r"(?<![\w-])--(model|init_checkpoint)\b", "folder", message)
    return re.sub(r"(?<![\w-])--(?=[a-z])", "", message)
