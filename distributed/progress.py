"""The progress of a loop: a bar on a terminal, elsewhere a line from time to time."""

import os
import sys
import time

from tqdm import tqdm

from distributed import records
from distributed.environment import RANK_VARIABLES

LINE_INTERVAL_S = 30.0
SHORTEST_S = 3.0  # loops that take less time end without a line


class Progress:
    """A bar on a terminal, else a line every 30 seconds.

    Args:
      total: number of steps, of which `initial` are already done.
    """

    def __init__(self, total: int, label: str, unit: str, is_shown: bool, initial: int = 0):
        self.total, self.label, self.unit, self.done = total, label, unit, initial
        self._bar = None
        self._prints_lines = is_shown and not is_terminal()
        self._start = self._last_line = time.monotonic()
        self._initial = initial
        if is_shown and not self._prints_lines:
            self._bar = tqdm(total=total, desc=label, unit=f" {unit}", initial=initial, file=sys.stderr, ncols=110)

    def update(self, done: int, **values: str) -> None:
        """Shows the number of steps done, and these values."""
        if self._bar is not None:
            self._bar.set_postfix(values, refresh=False)
            self._bar.update(done - self.done)
        self.done = done
        now = time.monotonic()
        is_end = done == self.total and now - self._start >= SHORTEST_S
        if self._prints_lines and (now - self._last_line >= LINE_INTERVAL_S or is_end):
            self._last_line = now
            rate = (done - self._initial) / max(now - self._start, 1e-9)
            left = (self.total - done) / rate if rate else float("inf")
            shown = "".join(f", {name} {value}" for name, value in values.items())
            line = f"{self.label}: {done}/{self.total} {self.unit}, {left:.0f} s left{shown}"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def is_terminal() -> bool:
    """Whether standard error goes to a terminal. Under mpirun it is a pipe: there bert-launch tells, or mpirun's
    own standard error is checked."""
    if sys.stderr.isatty() or os.environ.get(records.TERMINAL) == "1":
        return True
    if not any(name in os.environ for name in RANK_VARIABLES):
        return False
    try:
        return os.readlink(f"/proc/{os.getppid()}/fd/2").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:
        return False
