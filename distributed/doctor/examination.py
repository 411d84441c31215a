"""Runs checks on all ranks, in step: a check that fails or hangs on one rank never stops the others for long.

Each check has a communicator of its own and runs in a thread, so that messages which a failed check left behind
disturb no later check, and a thread that hangs is left alone. Meanwhile the main threads of all ranks wait, and
the rank that fails tells the others.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NoReturn

from distributed.watchdog import Watchdog
from distributed.world import World
from ringbase.errors import InputError, one_line

Status = Literal["ok", "warning", "failed", "not tested"]
SEVERITY: tuple[Status, ...] = ("not tested", "ok", "warning", "failed")
POLL_S = 0.02
GRACE_S = 3.0  # how long a rank waits in a check after another has failed
UNKNOWN = "this should not happen on a healthy machine: please report it with this page"
OTHERS = "stopped, as another rank has failed"


@dataclass(frozen=True)
class Finding:
    """What a check found on one rank, in one line, and what the user can do about it."""

    status: Status
    text: str
    advice: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def ok(text: str, **details: Any) -> Finding:
    return Finding("ok", text, details=details)


def warning(text: str, advice: str, **details: Any) -> Finding:
    return Finding("warning", text, advice, details)


def failed(text: str, advice: str, **details: Any) -> Finding:
    return Finding("failed", text, advice, details)


def not_tested(reason: str) -> Finding:
    return Finding("not tested", reason)


@dataclass(frozen=True)
class Check:
    """A check: `run(world)` on every rank, with a world that no other check uses.

    Attributes:
      advice: what to do if it raises an exception or does not end.
      needs: the names of checks; if one of them has failed, this one is not tested.
    """

    group: str
    name: str
    run: Callable[[World], Finding]
    advice: str = UNKNOWN
    limit_s: float = 60.0
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What a check found over all ranks. `advice` says what to do, one sentence per cause."""

    group: str
    name: str
    status: Status
    text: str
    advice: tuple[str, ...]
    seconds: float
    details: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Examination:
    """The checks done so far, the same on every rank.

    Args:
      show: called on rank 0 with each result.
    """

    def __init__(self, world: World, show: Callable[[Result], object]):
        self.world, self.results = world, list[Result]()
        self._show = show
        self._hanging = ""  # the check that did not end; after it no other can be trusted
        self._has_left = False  # whether a thread still waits for a rank that failed

    def status(self, name: str) -> Status:
        """The status of the check of this name; "not tested" for one that was not run."""
        return next((result.status for result in self.results if result.name == name), "not tested")

    def run(self, check: Check) -> Result:
        """Runs a check on every rank and returns what they found together."""
        start_s = time.perf_counter()
        missing = [name for name in check.needs if self.status(name) == "failed"]
        if self._hanging:
            findings = [not_tested(f"the check {self._hanging} hangs")]
        elif missing:
            findings = [not_tested(f"{missing[0]} failed")]
        else:
            findings = self._run_on_ranks(check)
        result = combined(check, findings, time.perf_counter() - start_s)
        self.results.append(result)
        if self.world.rank == 0:
            self._show(result)
        return result

    def end(self, status: int) -> NoReturn:
        """Ends all ranks with this status; at once if threads of checks are left."""
        sys.stdout.flush()
        self.world.barrier()  # rank 0 has printed everything
        if self._hanging or self._has_left:
            if self.world.comm is not None:
                self.world.comm.Abort(status)
            os._exit(status)
        raise SystemExit(status)

    def _run_on_ranks(self, check: Check) -> list[Finding]:
        """Every rank's finding."""
        number = len(self.results)
        world = self.world
        if world.comm is not None:
            world = replace(world, comm=world.comm.Dup(), watchdog=Watchdog())
        attempt = Attempt(check, world)
        attempt.start()
        own, has_told = self._awaited(attempt, number)
        findings, are_left, have_told = zip(
            *self.world.all_gather((own, attempt.is_alive(), has_told)), strict=True
        )
        for rank, has_told in enumerate(have_told):
            if has_told and rank != self.world.rank:
                self.world.comm.recv(source=rank, tag=number)
        if any(left and not any(have_told) for left in are_left):
            self._hanging = check.name
        self._has_left |= any(are_left)
        return list(findings)

    def _awaited(self, attempt: "Attempt", number: int) -> tuple[Finding, bool]:
        """This rank's finding, once the thread has ended or has had its time; whether it has told the others of a
        failure."""
        comm, end_s, is_stopped = self.world.comm, time.monotonic() + attempt.check.limit_s, False
        while attempt.is_alive() and time.monotonic() < end_s:
            attempt.join(POLL_S)
            if comm is not None and not is_stopped and comm.Iprobe(tag=number):
                is_stopped, end_s = True, min(end_s, time.monotonic() + GRACE_S)
        if attempt.finding is None:
            limit = f"did not end within {attempt.check.limit_s:.0f} s"
            return not_tested(OTHERS) if is_stopped else failed(limit, attempt.check.advice), False
        has_told = comm is not None and attempt.finding.status == "failed"
        for rank in range(self.world.size if has_told else 0):
            if rank != self.world.rank:
                comm.send(None, rank, tag=number)
        return attempt.finding, has_told


class Attempt(threading.Thread):
    """A check that runs in a thread on this rank; `finding` is None until it ends."""

    def __init__(self, check: Check, world: World):
        super().__init__(daemon=True)
        self.check, self.world = check, world
        self.finding: Finding | None = None

    def run(self) -> None:
        self.finding = guarded(self.check, self.world)


def guarded(check: Check, world: World) -> Finding:
    """What the check finds; an exception is a failed check."""
    try:
        return check.run(world)
    except InputError as error:
        text, _, advice = one_line(error).partition("; ")
        return failed(text, advice or check.advice)
    except BaseException as error:
        return failed(f"{type(error).__name__}: {one_line(error)}"[:300], check.advice)


def combined(check: Check, findings: list[Finding], seconds: float) -> Result:
    """The worst of the ranks' findings; each text once, with the ranks that say it unless all do."""
    worst = max((finding.status for finding in findings), key=SEVERITY.index)
    alike = {rank: finding for rank, finding in enumerate(findings) if finding.status == worst}
    texts: dict[str, list[int]] = {}
    for rank, finding in alike.items():
        texts.setdefault(finding.text, []).append(rank)
    if worst in ("ok", "not tested"):
        text = next(iter(texts))  # rank 0's, or the first's
    else:
        text = "; ".join(_said(by, text, len(findings)) for text, by in texts.items())
    advice = tuple(dict.fromkeys(finding.advice for finding in alike.values() if finding.advice))
    details = next(iter(alike.values())).details
    return Result(check.group, check.name, worst, text, advice, round(seconds, 2), details)


def _said(ranks: list[int], text: str, size: int) -> str:
    if len(ranks) == size:
        return text
    return f"rank{'s' * (len(ranks) > 1)} {','.join(map(str, ranks))}: {text}"
