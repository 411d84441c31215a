"""Cases of damaged files, read in a worker process.

It damages one file of one reader in each case and prints a line about it. When it dies (a crash, 5
s of computing), the case that it was at is a fault.
"""

import contextlib
import json
import random
import resource
import shutil
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path

from harness import jobs
from soak.fuzz import mutations
from soak.fuzz.readers import readers

from ringbase.errors import InputError, one_line

MOST_CPU_S, ROOM_BYTES = 5.0, 2 << 30  # of memory beyond what reading the undamaged files takes
QUIET = {"RUST_BACKTRACE": "0", "PYTHONWARNINGS": "ignore"}


def run(folder, cases, seed=0, names=()):
    """(numbers of cases by (reader, "read", "refused" or "fault"), the faults)."""
    command = (sys.executable, "-m", "soak.fuzz.run", folder, seed, 0, cases, *names)
    done = jobs.run(command, wait_s=3600, **QUIET)
    counts, faults = Counter(), []
    for line in done.stdout.splitlines():
        case, reader, file, result, message = json.loads(line)
        counts[reader, result] += 1
        faults += [f"case {case}, {reader}, {file}: {message}"] if result == "fault" else []
    if done.status:
        faults.append(
            f"case {counts.total()}: the worker ended with {done.status}: {done.stderr[-2000:]}"
        )
    return counts, faults


def fill(folder, reader, **changed):
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in (reader.files | changed | reader.others).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def outcome(reader, folder, name, intact):
    try:
        value = reader.read(folder, name)
    except InputError as error:
        is_named = any(part in one_line(error) for part in (Path(name).name, str(folder), "--"))
        return (
            ("refused", "")
            if is_named and not reader.heals
            else ("fault", f"refused, but how: {error}")
        )
    except BaseException:  # a panic of a Rust library is no Exception
        return "fault", traceback.format_exc()
    return (
        ("read", "")
        if not reader.is_exact or value == intact
        else ("fault", "damaged, but read as other data")
    )


def main(folder, seed, first, last, *names):
    known, intact, case = readers(names), {}, Path(folder, "case")
    if missing := set(names) - {reader.name for reader in known}:
        every = ", ".join(sorted(reader.name for reader in readers()))
        sys.exit(f"no such reader: {', '.join(missing)}; there are {every}")
    for reader in known:  # undamaged files are accepted
        fill(case, reader)
        intact[reader.name] = [reader.read(case, name) for name in reader.files].pop()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, resource.RLIM_INFINITY))
    for number in range(int(first), int(last)):
        chance = random.Random(f"{seed}:{number}")
        (reader,) = chance.choices(known, [reader.share for reader in known])
        name = chance.choice(sorted(reader.files))
        fill(case, reader, **{name: mutations.damaged(reader.files[name], name, chance)})
        signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)  # its signal ends the process
        with contextlib.redirect_stdout(sys.stderr):
            result, message = outcome(reader, case, name, intact[reader.name])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([number, reader.name, name, result, message[-1500:]]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
