"""Runs a program for hours while its ranks are killed at random, and reports what the machine has
to show for it.

    python -m benchmarks.random_kills --minutes 120 --every 180 -- \\
        bert-launch -np 3 --elastic --restarts 100 -- bert-squad --do_train … --output_dir out

Every now and then (times between kills are exponential, with the mean `--every`) one rank gets
SIGKILL. The command must carry on by itself, by `--elastic`, `--restarts` or both; if it succeeds
before the time is over, it is given again, with `--resume never`. Printed at the end: runs, kills,
and how each run ended; the memory and the open files that ranks gained while they lived; what is
left in /dev/shm and in the folder of temporary files.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

MARK = "RINGBERT_RANDOM_KILLS"  # bert-launch forwards variables with this prefix to all ranks
RANK = "OMPI_COMM_WORLD_RANK"
SAMPLE_S = 5.0
WARM_S = 120.0  # a rank's first minutes, in which it grows


def ranks_of(name: str) -> dict[int, int]:
    """Process id -> rank, of all processes that carry our mark."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            entries = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        variables = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
        if variables.get(MARK.encode()) == name.encode() and RANK.encode() in variables:
            found[int(folder.name)] = int(variables[RANK.encode()])
    return found


def left_behind() -> set[str]:
    """What is in the folder of temporary files, and what in /dev/shm no process has mapped."""
    maps = ""
    for path in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            maps += path.read_text()
    shared = {str(path) for path in Path("/dev/shm").glob("*") if str(path) not in maps}
    return shared | {str(path) for path in Path(tempfile.gettempdir()).glob("*")}


class Trial:
    """Commands under random kills; what was seen of each process, the kills, and how each run
    ended."""

    def __init__(self, every_s: float, seed: int):
        self.every_s, self.chance, self.name = every_s, random.Random(seed), uuid.uuid4().hex
        # (s, resident MiB, open files) of each
        self.lives = defaultdict[int, list[tuple[float, int, int]]](list)
        self.kills: list[dict[str, object]] = []
        self.runs: list[dict[str, Any]] = []
        self.began_s = time.monotonic()

    def run(self, command: list[str]) -> bool:
        """Runs the command. Returns whether it succeeded."""
        kills, started_s = len(self.kills), time.monotonic()
        process = subprocess.Popen(command, env=os.environ | {MARK: self.name})
        due_s = started_s + self.chance.expovariate(1 / self.every_s)
        while process.poll() is None:
            ranks, now_s = ranks_of(self.name), time.monotonic()
            for number in ranks:
                with contextlib.suppress(OSError, IndexError):  # it is gone
                    pages = int(Path(f"/proc/{number}/statm").read_text().split()[1])
                    mib = pages * os.sysconf("SC_PAGE_SIZE") >> 20
                    self.lives[number].append((now_s, mib, len(os.listdir(f"/proc/{number}/fd"))))
            if now_s >= due_s and ranks:
                due_s = now_s + self.chance.expovariate(1 / self.every_s)
                self.kill(*self.chance.choice(sorted(ranks.items())))
            time.sleep(SAMPLE_S)
        seconds = round(time.monotonic() - started_s)
        self.runs.append(
            {"status": process.returncode, "seconds": seconds, "kills": len(self.kills) - kills}
        )
        print(f"run {len(self.runs)}: {self.runs[-1]}", file=sys.stderr, flush=True)
        return process.returncode == 0

    def kill(self, process: int, rank: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
            minute = round((time.monotonic() - self.began_s) / 60, 1)
            self.kills.append({"minute": minute, "rank": rank, "process": process})
            print(f"minute {minute}: kill rank {rank}", file=sys.stderr, flush=True)

    def report(self) -> dict[str, object]:
        """Runs and kills; what the ranks that lived long enough gained after their first
        minutes."""
        warm = [
            [each for each in life if each[0] - life[0][0] >= WARM_S]
            for life in self.lives.values()
        ]
        return {
            "minutes": round((time.monotonic() - self.began_s) / 60, 1),
            "runs": self.runs,
            "kills": self.kills,
            "most_mib": max((mib for life in self.lives.values() for _, mib, _ in life), default=0),
            "growth_mib": [life[-1][1] - life[0][1] for life in warm if life],
            "growth_files": [life[-1][2] - life[0][2] for life in warm if life],
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.random_kills", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "--minutes", type=float, default=120, help="run again until so many have passed"
    )
    parser.add_argument(
        "--every", type=float, default=180, metavar="SECONDS", help="mean time between kills"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the times and the ranks")
    parser.add_argument("command", nargs="+", help="after --: a command that carries on by itself")
    options = parser.parse_args()
    trial, before, command = Trial(options.every, options.seed), left_behind(), options.command
    while time.monotonic() - trial.began_s < 60 * options.minutes and trial.run(command):
        command = [*options.command, "--resume=never"]
    time.sleep(2)
    survivors = sorted(ranks_of(trial.name))
    left = {"left_in_shm_and_tmp": sorted(left_behind() - before), "processes_left": survivors}
    print(json.dumps({"command": options.command, **trial.report(), **left}, indent=2))
    return int(any(run["status"] for run in trial.runs) or bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
