"""How many cores this process may use: its affinity mask, the quota of its control groups, and what
the user says in OMP_NUM_THREADS."""

import math
import os
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
THREADS = "OMP_NUM_THREADS"


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
