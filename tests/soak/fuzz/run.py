"""Cases of damaged files in worker processes: `python -m soak.fuzz.run CASES [SEED [FIRST [READER…]]]` in tests/.

A worker damages one file of one reader in each case and prints a line about it. When it dies (a crash, 5 s of
computing), the case that it was at is a fault, and another worker goes on after it. FIRST is the first case.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from soak.fuzz import mutations
from soak.fuzz.readers import readers

from ringbert.errors import InputError, one_line

TESTS = Path(__file__).resolve().parents[2]
MOST_CPU_S, MOST_GROWTH_MB, ROOM_BYTES = 5.0, 300, 6 << 30
QUIET = {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "RUST_BACKTRACE": "0",
         "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "critical", "PYTHONWARNINGS": "ignore",
         "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}  # fmt: skip


def run(folder, cases, seed=0, first=0, names=()):
    """(numbers of cases by (reader, "read", "refused" or "fault"), the faults)."""
    folder.mkdir(parents=True, exist_ok=True)
    counts, faults, last = Counter(), [], first + cases
    while first < last and len(faults) < 20:
        command = [sys.executable, "-m", "soak.fuzz.run", "worker", *map(str, (folder, seed, first, last, *names))]
        with (folder / "log.txt").open("w+") as log:
            done = subprocess.run(command, env=os.environ | QUIET, stdout=subprocess.PIPE, stderr=log, text=True)
            log.seek(0)
            printed = log.read()[-2000:]
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines or done.returncode < 0, printed
        for case, reader, file, result, message in lines:
            counts[reader, result] += 1
            faults += [f"case {case}, {reader}, {file}: {message}"] if result == "fault" else []
        first += len(lines)
        if done.returncode:
            faults.append(f"case {first}: the worker ended with {done.returncode}: {printed}")
            first += 1
    return counts, faults


def fill(folder, reader, **changed):
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in ({name: data for name, (data, _) in reader.files.items()} | changed | reader.others).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def outcome(reader, folder, name, intact):
    try:
        value = reader.read(folder, name)
    except InputError as error:
        message = one_line(error)
        is_right = not reader.heals and any(part in message for part in (Path(name).name, str(folder), "--"))
        return (
            ("refused", "") if is_right else ("fault", f"names no file, or a cache is not made again: {message}")
        )
    except BaseException:  # a panic of a Rust library is no Exception
        return "fault", traceback.format_exc()
    return ("read", "") if not reader.is_exact or value == intact else ("fault", "damaged, but read as other data")


def work(folder, seed, first, last, names):
    known, intact, case = readers(names), {}, folder / "case"
    for reader in known:  # undamaged files are accepted
        fill(case, reader)
        with contextlib.chdir(case), contextlib.redirect_stdout(sys.stderr):
            intact[reader.name] = [reader.read(case, name) for name in reader.files].pop()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, resource.RLIM_INFINITY))
    for number in range(first, last):
        chance = random.Random(f"{seed}:{number}")
        (reader,) = chance.choices(known, [reader.share for reader in known])
        name = chance.choice(sorted(reader.files))
        fill(case, reader, **{name: mutations.damaged(*reader.files[name], chance)})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)  # its signal ends the process
        with contextlib.chdir(case), contextlib.redirect_stdout(sys.stderr):
            result, message = outcome(reader, case, name, intact[reader.name])
        signal.setitimer(signal.ITIMER_PROF, 0)
        growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
        if growth > MOST_GROWTH_MB:
            result, message = "fault", f"{growth} MiB more memory"
        if result == "fault":
            shutil.copytree(case, folder / f"fault-{number}", dirs_exist_ok=True)
        print(json.dumps([number, reader.name, name, result, message[-1500:]]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        work(Path(sys.argv[2]), *map(int, sys.argv[3:6]), sys.argv[6:])
    else:
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        counts, faults = run(folder, *map(int, sys.argv[1:4]), names=sys.argv[4:])
        print(*faults, *sorted(counts.items()), folder, sep="\n")
        sys.exit(bool(faults))
