"""bert-doctor's page: one line per check, then what to do, then the verdict; or the same as JSON."""

import json
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from distributed.doctor.examination import Result

MAX_WIDTH = 99
NAME_WIDTH = 20
MARKS = {"ok": "✓", "warning": "!", "failed": "✗", "not tested": "–"}
ASCII_MARKS = {"ok": "ok", "warning": "!!", "failed": "XX", "not tested": "--"}
COLOURS = {"ok": "32", "warning": "33", "failed": "31", "not tested": "2", "green": "32", "red": "31"}
STATUSES = ("failed", "warning", "ok", "not tested")


@dataclass(frozen=True)
class Style:
    """How the page is drawn: columns, whether it may have characters beyond ASCII, and colours."""

    width: int = MAX_WIDTH
    is_unicode: bool = True
    has_colours: bool = False

    @classmethod
    def of(cls, file: TextIO) -> "Style":
        """What the file, perhaps a terminal, can show."""
        is_terminal = file.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ  # mpirun's is not the user's
        width = min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)
        is_unicode = (file.encoding or "").lower().replace("-", "") == "utf8"
        return cls(width, is_unicode, is_terminal and "NO_COLOR" not in os.environ)

    def mark(self, status: str) -> str:
        return self.coloured((MARKS if self.is_unicode else ASCII_MARKS)[status], status)

    def coloured(self, text: str, kind: str) -> str:
        return f"\033[{COLOURS[kind]}m{text}\033[0m" if self.has_colours else text

    def entry(self, status: str, name: str, text: str) -> str:
        """A mark, a name, and a text that is wrapped beside them."""
        column = len((MARKS if self.is_unicode else ASCII_MARKS)[status]) + NAME_WIDTH + 3
        lines = textwrap.wrap(
            self.encoded(text), max(20, self.width - column), break_on_hyphens=False, break_long_words=True
        )
        first, *rest = lines or [""]
        head = f"  {self.mark(status)} {name:<{NAME_WIDTH}}{first}"
        return "\n".join([head, *(" " * column + line for line in rest)])

    def encoded(self, text: str) -> str:
        """The text, with a question mark for each character that cannot be shown."""
        return text if self.is_unicode else text.replace("µ", "u").encode("ascii", "replace").decode()


class Page:
    """Prints the results as they come, or as JSON at the end. A reader who closes the pipe loses only the rest."""

    def __init__(self, as_json: bool, file: TextIO | None = None):
        self.as_json, self.file = as_json, file or sys.stdout
        self.style = Style.of(self.file)
        self._heading = self._group = ""

    def begin(self, heading: str) -> None:
        """Sets the first line, which is printed with the first result."""
        self._heading = heading

    def show(self, result: "Result") -> None:
        """Prints the line of one result."""
        if self.as_json:
            return
        if not self._group:
            self._print(self.style.encoded(self._heading))
        if result.group != self._group:
            self._group = result.group
            self._print(f"\n{result.group}")
        text = f"not tested: {result.text}" if result.status == "not tested" else result.text
        self._print(self.style.entry(result.status, result.name, text))

    def end(self, results: Sequence["Result"], facts: dict[str, Any]) -> None:
        """Prints what to do and the verdict, or everything as JSON."""
        if self.as_json:
            checks = [result.as_json() for result in results]
            whole = {"verdict": verdict(results), **facts, "counts": counts(results), "checks": checks}
            self._print(json.dumps(whole, indent=1, default=str))
            return
        advised = [result for result in results if result.advice]
        if advised:
            self._print("\nwhat to do")
        for result in advised:
            self._print(self.style.entry(result.status, result.name, "; ".join(result.advice)))
        numbers = ", ".join(f"{number} {status}" for status, number in counts(results).items() if number)
        word = verdict(results)
        self._print(f"\n{self.style.coloured(word, word)}: {numbers}; {facts['seconds']:.0f} s")

    def _print(self, text: str) -> None:
        try:
            print(text, file=self.file, flush=True)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())  # or the flush at the end would fail too


def counts(results: Sequence["Result"]) -> dict[str, int]:
    """How many checks have each status."""
    found: Counter[str] = Counter(result.status for result in results)
    return {status: found[status] for status in STATUSES}


def verdict(results: Sequence["Result"]) -> str:
    return "red" if counts(results)["failed"] else "green"
