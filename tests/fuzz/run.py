"""Starts workers until all cases are done, and watches them: a crash or a hang is a fault of the case that ran."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
MOST_S = 90.0  # without a new case; the worker itself stops what computes for 5 s
MOST_DEATHS = 20


@dataclass
class Outcomes:
    """For each reader how many cases it accepted and refused, and the faults."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def table(self) -> str:
        lines = ["| reader | cases | refused | accepted | faults |", "|---|---|---|---|---|"]
        total: Counter[str] = Counter()
        for reader, counts in sorted(self.counts.items()):
            lines.append(_row(reader, counts))
            total += counts
        return "\n".join([*lines, _row("all", total)])


def _row(name: str, counts: Counter[str]) -> str:
    kinds = ("refused", "accepted", "fault")
    return f"| {name} | {counts.total():,} | " + " | ".join(f"{counts[kind]:,}" for kind in kinds) + " |"


def run(folder: Path, cases: int, seed: int = 0, first: int = 0, reader: str = "") -> Outcomes:
    """Runs cases `first` to `first + cases`. The files of faults are kept in FOLDER/faults."""
    folder.mkdir(parents=True, exist_ok=True)
    start, number, last, deaths = time.monotonic(), first, first + cases, []
    while number < last and len(deaths) < MOST_DEATHS:
        status, reached = _work(folder, seed, number, last, reader)
        if status == "":
            break
        deaths.append(f"case {reached}: {status}")
        number = reached + 1
    outcomes = Outcomes(seconds=time.monotonic() - start)
    for line in (folder / "outcomes.jsonl").read_text().splitlines():
        entry = json.loads(line)
        outcomes.counts.setdefault(entry["reader"], Counter())[entry["result"]] += 1
        if entry["result"] == "fault":
            outcomes.faults.append(f"case {entry['case']}: {entry['reader']}, {entry['file']}: {entry['message']}")
    outcomes.faults += deaths
    return outcomes


def _work(folder: Path, seed: int, first: int, last: int, reader: str) -> tuple[str, int]:
    """Runs a worker. Returns why it died ("" if it did not) and the case that it had reached."""
    command = [sys.executable, "-m", "fuzz.worker", str(folder), str(seed), str(first), str(last)]
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    quiet = {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    quiet |= {
        "RUST_BACKTRACE": "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "critical",
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment = {**os.environ, **quiet, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    log = folder / "log.txt"
    with log.open("ab") as printed:
        worker = subprocess.Popen(
            [*command, *([reader] if reader else [])], env=environment, stdout=printed, stderr=printed, cwd=folder
        )
        seen, since = first - 1, time.monotonic()
        while worker.poll() is None:
            time.sleep(0.1)
            if (now := _now(folder, first)) != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > MOST_S:
                worker.kill()
                worker.wait()
                return f"hangs for {MOST_S:.0f} s", _now(folder, first)
    if worker.returncode == 0:
        return "", last
    tail = log.read_text(errors="replace")[-2000:]
    if not (folder / "now").exists():
        raise RuntimeError(f"no case was run: {tail}")
    return f"the process ended with status {worker.returncode}: {tail}", _now(folder, first)


def _now(folder: Path, first: int) -> int:
    try:
        return max(first, int((folder / "now").read_bytes() or b"0"))
    except FileNotFoundError:
        return first
