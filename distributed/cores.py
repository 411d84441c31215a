"""How many cores this process may use: its affinity mask, the quota of its control groups, what the
user says in OMP_NUM_THREADS, and its run's share of a machine that several runs have together."""

import contextlib
import math
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
THREADS = "OMP_NUM_THREADS"
# Set for the ranks of one of several runs on a machine: which of its slots are this run's.
SLOTS = "RINGBERT_SLOTS"


@dataclass(frozen=True)
class Slots:
    """The slots of a run on its machine, which other runs share; each has as many of the cores, and
    the GPU of its number."""

    first: int
    count: int
    total: int  # on the machine

    def __str__(self) -> str:
        """As the variable has them, "2-3/8"."""
        return f"{self.first}-{self.first + self.count - 1}/{self.total}"

    def of(self, cores: set[int]) -> set[int]:
        """Those of the machine's cores that are this run's; with more slots than cores, slots share
        them."""
        numbers = sorted(cores)
        own = set()
        for slot in range(self.first, self.first + self.count):
            start = slot * len(numbers) // self.total
            stop = max(start + 1, (slot + 1) * len(numbers) // self.total)
            own.update(numbers[start:stop])
        return own


def own_slots() -> Slots | None:
    """Those of this process's run; None where it has its machines for itself."""
    text = os.environ.get(SLOTS)
    if not text:
        return None
    first, last, total = map(int, text.replace("/", "-").split("-"))
    return Slots(first, last - first + 1, total)


@cache  # a second time would take a share of the share
def pin() -> None:
    """Keeps this process, with the threads that it has so far, on the cores of its slots."""
    slots = own_slots()
    if slots is None:
        return
    cores = slots.of(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def wanted_threads() -> int | None:
    """The number that OMP_NUM_THREADS names; of a list, one for each level, the first."""
    first = os.environ.get(THREADS, "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def slurm_cores() -> float:
    """How many cores Slurm gives to each task; infinity where it does not say."""
    cores = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return int(cores) if cores.isdecimal() and int(cores) > 0 else math.inf


def quota() -> tuple[float, str]:
    """How many cores' time this process and all others of its control group may use together, and
    the path of the group; infinity without a limit (docker --cpus, Kubernetes' limits.cpu)."""
    smallest, name = math.inf, ""
    for group in _groups():
        limit = _limit_of(group)
        if limit < smallest:
            smallest, name = limit, str(group)
    return smallest, name


def _groups() -> list[Path]:
    """The folders of this process's control groups, and of those around them."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        root = GROUPS  # of version 2, whose list of controllers is empty
        if controllers:
            root = next((p for p in (GROUPS / controllers, GROUPS / "cpu") if p.is_dir()), GROUPS)
        own = root / path.strip("/")
        groups += [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return groups


def _limit_of(group: Path) -> float:
    """Cores, of version 2 (cpu.max) or 1."""
    try:
        if (group / "cpu.max").is_file():
            time, period = (group / "cpu.max").read_text().split()
        else:
            time = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        return math.inf if time in ("max", "-1") else int(time) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # there is none here
        return math.inf
