"""Shows what a program prints: progress bars that move on a terminal and in a notebook, else lines."""

import codecs
import re
import sys
import time
from collections import deque
from typing import TextIO

MOST_LINES = 200  # that are kept
UPDATE_S = 0.5  # between updates of a bar in a notebook, which keeps each of them


class Display:
    """Shows a program's output and keeps its last lines.

    In a notebook it goes to standard output, which has no red background there, else to standard error.

    Attributes:
      lines: the last lines, without what progress bars have overwritten.
    """

    def __init__(self, is_shown: bool = True):
        self._is_shown, self._is_notebook = is_shown, in_notebook()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._partial = ""  # the line that has not ended
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._shown_width, self._updated_s = 0, 0.0  # of the bar on a notebook's last line

    @property
    def lines(self) -> list[str]:
        return list(self._lines)

    def feed(self, data: bytes) -> None:
        """Takes in output as it comes."""
        text = self._decoder.decode(data)
        *ended, self._partial = (self._partial + text).split("\n")
        ended = [last_text(line) for line in ended]
        self._lines.extend(ended)
        if not self._is_shown:
            return
        if self._is_notebook:
            for line in ended:
                self._write(self._over(line) + "\n")
                self._shown_width = 0
            self._show_bar()
        else:
            self._write(text)

    def close(self) -> None:
        """Shows what is left."""
        if self._partial:
            self.feed(b"\n")

    def _show_bar(self) -> None:
        """Shows the newest state of the line that has not ended, from time to time."""
        now = time.monotonic()
        bar = last_text(self._partial) if "\r" in self._partial else ""
        if bar and now - self._updated_s >= UPDATE_S:
            self._write(self._over(bar))
            self._shown_width, self._updated_s = len(bar), now

    def _over(self, line: str) -> str:
        """A line that overwrites the bar which is shown."""
        return "\r" * (self._shown_width > 0) + line.ljust(self._shown_width)

    def _write(self, text: str) -> None:
        stream: TextIO = sys.stdout if self._is_notebook else sys.stderr
        stream.write(text)
        stream.flush()


def last_text(line: str) -> str:
    """What is seen of a line whose parts end with a carriage return: each overwrites the one before."""
    parts = [part for part in re.split(r"\r|\x1b\[A", line) if part.strip()]
    return parts[-1].rstrip() if parts else ""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def shows_bars() -> bool:
    """Whether a bar that moves can be shown."""
    return in_notebook() or sys.stderr.isatty()
