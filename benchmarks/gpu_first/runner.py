"""Runs steps one after the other, each in its own process with a time limit, and keeps what they find as they go.

`findings.jsonl` has one line for each finding and for the end of each step; `findings.md` is a page of the same.
Both are complete after every line, so that a run that is killed keeps what it found. The same command goes on
where it was killed: steps that ended, also with a failure, are not run again.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.gpu_first.findings import read
from ringbase.files import write_text

MARKS = {True: "ok", False: "FAILED", None: ""}


@dataclass(frozen=True)
class Step:
    """A command, in the repository's folder, that prints findings.

    Attributes:
      limit_s: after this time the command and the processes that it started are killed.
    """

    name: str
    command: list[str]
    limit_s: float
    environment: dict[str, str] = field(default_factory=dict)


class Journal:
    """The findings in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = folder / "findings.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self.entries: list[dict] = [json.loads(line) for line in lines if line.endswith("}")]

    def add(self, entry: dict) -> None:
        self.entries.append(entry | {"time": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())})
        with self._file.open("a") as file:
            file.write(json.dumps(self.entries[-1]) + "\n")
            file.flush()
            os.fsync(file.fileno())
        write_text(self.folder / "findings.md", self.page())

    def ended(self, step: Step) -> bool:
        """Whether the step was run to its end or for all of its time."""
        return any(
            entry["status"] is not None or entry["seconds"] >= step.limit_s
            for entry in self.entries
            if entry["step"] == step.name and "status" in entry
        )

    def is_well(self, step: Step) -> bool:
        """Whether the last run of the step ended without any failure."""
        last = self.last_run(step.name)
        return bool(last) and last[-1].get("status") == 0 and all(entry.get("ok") is not False for entry in last)

    def last_run(self, step: str) -> list[dict]:
        of_step = [entry for entry in self.entries if entry["step"] == step]
        begins = [number for number, entry in enumerate(of_step) if "command" in entry]
        return of_step[begins[-1] :] if begins else []

    def page(self) -> str:
        """The findings of the last run of each step."""
        parts = ["# Findings\n"]
        for step in dict.fromkeys(entry["step"] for entry in self.entries):
            first, *others = self.last_run(step)
            parts.append(f"\n## {step}\n\n    {first['command']}\n\n")
            parts += [line_of(entry) for entry in others]
        return "".join(parts)


def line_of(entry: dict) -> str:
    if "text" in entry:
        mark = MARKS[entry["ok"]]
        return f"- {entry['name']}: {mark + ': ' if mark else ''}{entry['text']}\n"
    ending = {0: "done", None: "killed: out of time"}.get(entry["status"], f"exit status {entry['status']}")
    last_lines = "".join(f"      {line}\n" for line in entry["last_lines"])
    return f"- {ending} after {entry['seconds']:.0f} s ({entry['time']} UTC)\n{last_lines}"


def run_all(steps: Sequence[Step], folder: Path, minutes: float, again: Collection[str] = ()) -> bool:
    """Runs the steps that did not end yet, and those of `again`, until the time is up. Returns whether all is
    well."""
    journal, end_s = Journal(folder), time.monotonic() + 60 * minutes
    for step in steps:
        left_s = end_s - time.monotonic()
        if journal.ended(step) and step.name not in again:
            print(f"{step.name}: was run before")
        elif left_s < 1:
            print(f"{step.name}: no time left")
        else:
            run(step, journal, min(step.limit_s, left_s))
    return all(journal.is_well(step) for step in steps)


def run(step: Step, journal: Journal, limit_s: float) -> None:
    """Runs one step. Everything that it prints is kept in logs/NAME.txt."""
    shown = " ".join(["python" if part == sys.executable else part for part in step.command])
    journal.add({"step": step.name, "command": shown})
    print(f"== {step.name} (at most {limit_s:.0f} s): {shown}", flush=True)
    log = journal.folder / "logs" / f"{step.name}.txt"
    log.parent.mkdir(exist_ok=True)
    start_s = time.monotonic()
    last_lines: list[str] = []
    with log.open("w") as log_file, started(step, limit_s) as process:
        assert process.stdout
        for line in process.stdout:
            log_file.write(line)
            log_file.flush()
            if finding := read(line):
                print(f"   {finding.name}: {finding.text}", flush=True)
                journal.add({"step": step.name} | asdict(finding))
            else:
                last_lines = [*last_lines, line.rstrip()[:300]][-8:]
        status: int | None = process.wait()
    seconds = time.monotonic() - start_s
    if status == -signal.SIGKILL and seconds >= limit_s:
        status = None
    ending = {"step": step.name, "status": status, "seconds": seconds}
    journal.add(ending | {"last_lines": last_lines if status else []})
    print(f"   {line_of(journal.entries[-1])[2:].splitlines()[0]}", flush=True)


@contextlib.contextmanager
def started(step: Step, limit_s: float) -> Iterator["subprocess.Popen[str]"]:
    """The step's process, in a process group that is killed at the limit and at the end."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | step.environment
    with subprocess.Popen(
        step.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env=environment, start_new_session=True,
    ) as process:  # fmt: skip

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(limit_s, kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            kill()
