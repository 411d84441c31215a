"""bert-doctor's page: what the checks found on all ranks, what to do, and the verdict; or all of it
as JSON."""

import json
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

import ringbase
from distributed.watchdog import by_value
from distributed.world import World
from ringbase.errors import InputError, one_line

MARKS = {"ok": "ok", "warning": "!!", "failed": "XX"}  # the worst last
MAX_WIDTH, NAME_WIDTH = 99, 20
UNKNOWN = (
    "this should not happen on a healthy machine: the same command on one rank, with --device cpu,"
    " or with --backend mpi shows what is at fault; please report it with this page"
)


@dataclass(frozen=True)
class Finding:
    """What a check found, in one line, and behind a semicolon what the user can do about it."""

    text: str
    status: Literal["ok", "warning", "failed"] = "ok"


class Page:
    """Checks on all ranks, and their results so far, the same on every rank; rank 0 prints them as
    they come.

    The watchdog of `world` names the ranks that do not reach the end of a check, and ends the job
    in time.
    """

    def __init__(self, world: World, as_json: bool):
        self.world, self._as_json = world, as_json
        self.results: list[dict] = []  # name, text, status and seconds
        self._began = time.monotonic()
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal may be ASCII only
        place = f"ranks: {world.size}, hosts: {world.ranks.num_nodes}"
        now = time.strftime("%Y-%m-%d %H:%M")
        self._print(f"RingBERT {ringbase.__version__}, {place}, {now}\n")

    def check(self, name: str, find: Callable[..., Finding], *arguments: object) -> bool:
        """Runs a check on every rank and prints what they found together. Returns whether it did
        not fail."""
        began = time.monotonic()
        try:
            finding = find(*arguments)
        except InputError as error:
            finding = Finding(one_line(error), "failed")
        except Exception as error:
            text = f"{type(error).__name__}: {one_line(error)}; {UNKNOWN}"
            finding = Finding(text, "failed")
        if finding.status == "failed" and self.world.size > 1:  # the others may wait for this rank
            print(f"{self.world.place}: {name}: {finding.text}", file=sys.stderr, flush=True)
        with self.world.operation(f"the end of the check {name}"):
            whole = combined(self.world.all_gather(finding))
        seconds = round(time.monotonic() - began, 2)
        self.results.append({"name": name, **asdict(whole), "seconds": seconds})
        head = f"  {MARKS[whole.status]} {name:<{NAME_WIDTH}}"
        terminal = shutil.get_terminal_size((MAX_WIDTH, 24))
        width = max(20, min(MAX_WIDTH, terminal.columns) - len(head))
        found, _, advice = whole.text.partition("; ")
        wrapper = textwrap.TextWrapper(width, break_on_hyphens=False)
        lines = wrapper.wrap(found) + wrapper.wrap(advice)
        indent = " " * len(head)
        self._print(head + f"\n{indent}".join(lines))
        return whole.status != "failed"

    def end(self) -> int:
        """Prints the verdict, or everything as JSON. Returns the exit status."""
        counts = Counter(result["status"] for result in self.results)
        verdict = "red" if counts["failed"] else "green"
        seconds = round(time.monotonic() - self._began, 1)
        if self._as_json:
            whole = {
                "verdict": verdict,
                "ringbert": ringbase.__version__,
                "ranks": self.world.size,
                "hosts": self.world.ranks.num_nodes,
                "seconds": seconds,
                "counts": counts,
                "checks": self.results,
            }
            self.world.say(json.dumps(whole, indent=1), sys.stdout)
        found = [f"{counts[status]} {status}" for status in reversed(MARKS) if counts[status]]
        self._print(f"\n{verdict}: {', '.join(found)}; {seconds:.0f} s")
        return int(verdict == "red")

    def _print(self, text: str) -> None:
        if not self._as_json:
            self.world.say(text, sys.stdout)


def combined(findings: list[Finding]) -> Finding:
    """The worst of the ranks' findings; if not all ranks have it, each with the ranks that have
    it."""
    order = list(MARKS)
    worst = max((finding.status for finding in findings), key=order.index)
    if worst == "ok" or len(set(findings)) == 1:
        return findings[0]
    having = enumerate(findings)
    texts = {rank: finding.text for rank, finding in having if finding.status == worst}
    return Finding(by_value(texts), worst)
