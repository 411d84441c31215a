"""Runs a program for hours while its ranks are killed at random, and reports what the machine has to show for it.

    python -m benchmarks.random_kills --minutes 120 --every 180 -- \\
        bert-launch -np 3 --elastic --restarts 100 -- bert-squad --do_train … --output_dir out

Every now and then (times between kills are exponential, with the mean `--every`) one rank gets SIGKILL. The
command must carry on by itself, by `--elastic`, `--restarts` or both; if it succeeds before the time is over, it
is given again, with `--resume never`. Printed at the end: runs, kills, and how each run ended; the memory and the
open files of each rank while it lived; what is left in /dev/shm and in the folder of temporary files.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MARK = "RINGBERT_RANDOM_KILLS"  # bert-launch forwards variables with this prefix to all ranks
RANK = "OMPI_COMM_WORLD_RANK"
SAMPLE_S = 5.0
WARM_S = 120.0  # a rank's first minutes, in which it grows


@dataclass
class Life:
    """What was seen of one process of a rank: seconds since its start, resident MiB, open files."""

    rank: int
    samples: list[tuple[float, float, int]] = field(default_factory=list)

    @property
    def growth(self) -> tuple[float, int] | None:
        """MiB and open files gained between the end of the warm-up and the last sample; None for a short life."""
        warm = [sample for sample in self.samples if sample[0] >= WARM_S]
        if len(warm) < 2:
            return None
        (_, first_mib, first_files), (_, last_mib, last_files) = warm[0], warm[-1]
        return last_mib - first_mib, last_files - first_files

    @property
    def course(self) -> dict[str, object]:
        """The MiB and the open files at each quarter of a life."""
        places = [round(quarter / 4 * (len(self.samples) - 1)) for quarter in range(5)]
        chosen = [self.samples[place] for place in places]
        numbers = {"mib": [round(mib) for _, mib, _ in chosen], "files": [files for _, _, files in chosen]}
        return {"rank": self.rank, "seconds": round(self.samples[-1][0]), **numbers}


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


def sample(process: int) -> tuple[float, int] | None:
    """Resident MiB and open files of a process; None if it is gone."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir(f"/proc/{process}/fd"))
    except (OSError, IndexError):
        return None


def left_behind() -> set[str]:
    """What is in the folder of temporary files, and what in /dev/shm no process has mapped."""
    maps = ""
    for path in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            maps += path.read_text()
    shared = {str(path) for path in Path("/dev/shm").glob("*") if str(path) not in maps}
    return shared | {str(path) for path in Path(tempfile.gettempdir()).glob("*")}


class Trial:
    """One command under random kills."""

    def __init__(self, command: Sequence[str], every_s: float, seed: int):
        self.command, self.every_s, self.chance = list(command), every_s, random.Random(seed)
        self.name = uuid.uuid4().hex
        self.lives: dict[int, Life] = {}
        self.births: dict[int, float] = {}
        self.kills: list[dict[str, object]] = []
        self.runs: list[dict[str, object]] = []
        self._began = time.monotonic()

    def run(self, minutes: float) -> None:
        before, number = left_behind(), 0
        while time.monotonic() - self._began < 60 * minutes:
            number += 1
            command = [*self.command, "--resume=never"] if number > 1 else self.command
            process = subprocess.Popen(command, env=os.environ | {MARK: self.name})
            kills, started = len(self.kills), time.monotonic()
            self._watch(process)
            ended = {"status": process.returncode, "seconds": round(time.monotonic() - started)}
            self.runs.append(ended | {"kills": len(self.kills) - kills})
            print(f"run {number}: {self.runs[-1]}", file=sys.stderr, flush=True)
            if process.returncode != 0:
                break
        time.sleep(2)
        self.left = sorted(left_behind() - before)
        self.survivors = sorted(ranks_of(self.name))

    def _watch(self, process: subprocess.Popen) -> None:
        due = time.monotonic() + self.chance.expovariate(1 / self.every_s)
        while process.poll() is None:
            ranks = ranks_of(self.name)
            for number, rank in ranks.items():
                self._sample(number, rank)
            if time.monotonic() >= due and ranks:
                due = time.monotonic() + self.chance.expovariate(1 / self.every_s)
                self._kill(*self.chance.choice(sorted(ranks.items())))
            time.sleep(SAMPLE_S)

    def _sample(self, process: int, rank: int) -> None:
        now = time.monotonic()
        seen = sample(process)
        if seen is not None:
            age = now - self.births.setdefault(process, now)
            self.lives.setdefault(process, Life(rank)).samples.append((age, *seen))

    def _kill(self, process: int, rank: int) -> None:
        minute = round((time.monotonic() - self._began) / 60, 1)
        self.kills.append({"minute": minute, "rank": rank, "process": process})
        print(f"minute {minute}: kill rank {rank}", file=sys.stderr, flush=True)
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            self.kills.pop()

    def report(self) -> dict[str, object]:
        growths = [life.growth for life in self.lives.values() if life.growth is not None]
        return {
            "command": self.command,
            "minutes": round((time.monotonic() - self._began) / 60, 1),
            "runs": self.runs,
            "kills": self.kills,
            "most_mib": round(max((mib for life in self.lives.values() for _, mib, _ in life.samples), default=0)),
            "growth_mib": [round(mib, 1) for mib, _ in growths],
            "growth_files": [files for _, files in growths],
            "lives": [life.course for life in self.lives.values() if life.growth is not None],
            "left_in_shm_and_tmp": self.left,
            "processes_left": self.survivors,
        }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.random_kills", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=120, help="run again until so many have passed")
    parser.add_argument("--every", type=float, default=180, metavar="SECONDS", help="mean time between kills")
    parser.add_argument("--seed", type=int, default=1, help="of the times and the ranks")
    parser.add_argument("--output_file", type=Path, help="where the report goes as JSON")
    parser.add_argument("command", nargs="+", help="after --: a command that carries on by itself")
    args = parser.parse_args(argv)
    trial = Trial(args.command, args.every, args.seed)
    trial.run(args.minutes)
    text = json.dumps(trial.report(), indent=2)
    print(text)
    if args.output_file:
        args.output_file.write_text(text + "\n")
    return int(any(run["status"] for run in trial.runs) or bool(trial.survivors))


if __name__ == "__main__":
    sys.exit(main())
