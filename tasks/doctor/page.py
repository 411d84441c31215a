"""bert-doctor's page: checks on all ranks, a line for each, what to do, and the verdict; or the same as JSON."""

import json
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from distributed.world import World
from ringbase.errors import InputError, one_line

Status = Literal["ok", "warning", "failed", "not tested"]
SEVERITY: tuple[Status, ...] = ("not tested", "ok", "warning", "failed")
MARKS = {"ok": "ok", "warning": "!!", "failed": "XX", "not tested": "--"}
MAX_WIDTH, NAME_WIDTH = 99, 20
UNKNOWN = (
    "this should not happen on a healthy machine: the same command on one rank, with --device cpu, or with "
    "--backend mpi shows what is at fault; please report it with this page"
)


@dataclass(frozen=True)
class Finding:
    """What a check found, in one line, and what the user can do about it."""

    status: Status
    text: str
    advice: str = ""


def not_tested(reason: str) -> Finding:
    return Finding("not tested", f"not tested: {reason}")


class Page:
    """Checks on all ranks, and their results so far, the same on every rank; rank 0 prints them as they come.

    The watchdog of `world` names the ranks that do not reach the end of a check, and ends the job in time.
    """

    def __init__(self, world: World, heading: str, as_json: bool):
        self.world, self.as_json = world, as_json
        self.results: list[dict[str, Any]] = []  # group, name, status, text, advice and seconds
        self._width = min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)
        self._began = time.monotonic()
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal may be ASCII only
        self._print(heading)

    @property
    def failed(self) -> list[str]:
        """The names of the checks that failed."""
        return [result["name"] for result in self.results if result["status"] == "failed"]

    def check(self, group: str, name: str, find: Callable[[], Finding], needs: tuple[str, ...] = ()) -> None:
        """Runs a check on every rank and prints what they found together.

        If one of the checks that it `needs` has failed, it is not tested.
        """
        began = time.monotonic()
        missing = [other for other in needs if other in self.failed]
        finding = not_tested(f"{missing[0]} failed") if missing else guarded(find)
        if finding.status == "failed" and self.world.size > 1:  # the others may wait for this rank
            print(f"rank {self.world.rank}: {name}: {finding.text}", file=sys.stderr, flush=True)
        with self.world.operation(f"the end of the check {name}"):
            whole = combined(self.world.all_gather(finding))
        if not (self.results and self.results[-1]["group"] == group):
            self._print(f"\n{group}")
        seconds = round(time.monotonic() - began, 2)
        self.results.append({"group": group, "name": name, **asdict(whole), "seconds": seconds})
        self._print_entry(self.results[-1], whole.text)

    def end(self, facts: Mapping[str, Any]) -> int:
        """Prints what to do and the verdict, or everything as JSON. Returns the exit status."""
        counted = Counter(result["status"] for result in self.results)
        counts = {status: counted[status] for status in reversed(SEVERITY)}
        verdict, seconds = "red" if self.failed else "green", round(time.monotonic() - self._began, 1)
        if self.as_json and self.world.rank == 0:
            whole = {"verdict": verdict, **facts, "seconds": seconds, "counts": counts, "checks": self.results}
            print(json.dumps(whole, indent=1), flush=True)
        advised = [result for result in self.results if result["advice"]]
        self._print("\nwhat to do" * bool(advised))
        for result in advised:
            self._print_entry(result, result["advice"])
        numbers = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
        self._print(f"\n{verdict}: {numbers}; {seconds:.0f} s")
        return int(verdict == "red")

    def _print_entry(self, result: Mapping[str, Any], text: str) -> None:
        """A mark, a name, and a text that is wrapped beside them."""
        head = f"  {MARKS[result['status']]} {result['name']:<{NAME_WIDTH}}"
        lines = textwrap.wrap(text, max(20, self._width - len(head)), break_on_hyphens=False)
        self._print(head + f"\n{' ' * len(head)}".join(lines))

    def _print(self, text: str) -> None:
        if text and self.world.rank == 0 and not self.as_json:
            print(text, flush=True)


def guarded(find: Callable[[], Finding]) -> Finding:
    """What the check finds; an exception is a failed check."""
    try:
        return find()
    except InputError as error:
        text, _, advice = one_line(error).partition("; ")
        return Finding("failed", text, advice)
    except Exception as error:
        return Finding("failed", f"{type(error).__name__}: {one_line(error)}"[:300], UNKNOWN)


def combined(findings: list[Finding]) -> Finding:
    """The worst of the ranks' findings; each text once, with the ranks that say it unless all do."""
    worst = max((finding.status for finding in findings), key=SEVERITY.index)
    texts: dict[str, list[str]] = {}
    for rank, finding in enumerate(findings):
        if finding.status == worst:
            texts.setdefault(finding.text, []).append(str(rank))
    text = next(iter(texts))  # rank 0's, or the first's
    if worst in ("warning", "failed"):
        text = "; ".join(
            text if len(ranks) == len(findings) else f"rank{'s' * (len(ranks) > 1)} {','.join(ranks)}: {text}"
            for text, ranks in texts.items()
        )
    advice = dict.fromkeys(finding.advice for finding in findings if finding.status == worst and finding.advice)
    return Finding(worst, text, "; ".join(advice))
