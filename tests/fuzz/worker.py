"""Runs cases in this process: `python -m fuzz.worker FOLDER SEED FIRST STOP [READER]`; started by fuzz.run.

Writes the number of the case that runs to FOLDER/now, and a line for each case to FOLDER/outcomes.jsonl.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from fuzz.mutations import damaged
from fuzz.reader import Reader
from ringbert.errors import InputError, one_line

MOST_CPU_S = 5.0
MOST_GROWTH_MB = 300  # of memory in one case
ROOM_BYTES = 6 << 30  # of address space beyond what the process has when it starts
LONGEST_MESSAGE = 1500
NO_WEIGHTS = "without weights"  # in place of a reader's name: starts faster, because TensorFlow is not needed
WITH_WEIGHTS = ("", "safetensors", "safetensors, one file", "TensorFlow checkpoint")


class TooLong(BaseException):
    """A case that computes for more than `MOST_CPU_S`."""


def stop(number: int, frame: Any) -> None:
    raise TooLong


def case_of(readers: list[Reader], seed: int, number: int) -> tuple[Reader, str, bytes]:
    """The reader, the name of the changed file and its new content: a function of seed and number."""
    chance = random.Random(f"{seed}:{number}")
    reader = chance.choices(readers, [reader.share for reader in readers])[0]
    name = chance.choice(sorted(reader.files))
    content, kind = reader.files[name]
    return reader, name, damaged(content, kind, chance)


def fill(folder: Path, reader: Reader) -> None:
    """Writes the reader's undamaged files."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in {**{name: content for name, (content, _) in reader.files.items()}, **reader.others}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    reader.before(folder)


def outcome(reader: Reader, folder: Path, name: str) -> tuple[str, str]:
    """("accepted" or "refused", message), or a fault and its reason."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
    try:
        reader.read(folder, name)
        result = ("accepted", "")
    except InputError as error:
        result = ("refused", str(error))
        fault = fault_of(one_line(error), folder, name, reader)
        if fault:
            result = ("fault", f"{fault}: {error}")
    except TooLong:
        result = ("fault", f"takes more than {MOST_CPU_S} s\n{traceback.format_exc()}")
    except BaseException:  # a panic of a Rust library is no Exception
        result = ("fault", traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    return result if growth <= MOST_GROWTH_MB else ("fault", f"takes {growth} MiB more memory; {result}")


def fault_of(message: str, folder: Path, name: str, reader: Reader) -> str:
    """What is wrong with a message; empty if nothing is."""
    if len(message) > LONGEST_MESSAGE:
        return f"a message of {len(message)} characters"
    places = (name, Path(name).name, str(folder), reader.name, "manifest.json", "--")
    return "" if any(place in message for place in places) else "a message that does not name the file"


def main(argv: list[str]) -> None:
    from fuzz.registry import readers

    folder, seed, first, last = Path(argv[0]), int(argv[1]), int(argv[2]), int(argv[3])
    wanted = argv[4] if len(argv) > 4 else ""
    known = readers(with_weights=wanted in WITH_WEIGHTS)
    chosen = [reader for reader in known if wanted in ("", NO_WEIGHTS, reader.name)]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, stop)
    for reader in chosen:  # undamaged files are accepted
        fill(folder / "case", reader)
        for name in reader.files:
            with contextlib.chdir(folder / "case"):
                reader.read(folder / "case", name)
    now = os.open(folder / "now", os.O_CREAT | os.O_WRONLY)
    with (folder / "outcomes.jsonl").open("a", buffering=1) as outcomes:
        for number in range(first, last):
            os.pwrite(now, b"%16d" % number, 0)
            reader, name, data = case_of(chosen, seed, number)
            fill(folder / "case", reader)
            (folder / "case" / name).write_bytes(data)
            with contextlib.chdir(folder / "case"):
                result, message = outcome(reader, folder / "case", name)
            line = {"case": number, "reader": reader.name, "file": name, "result": result}
            if result == "fault" or message:
                line["message"] = message[-1500:]
            outcomes.write(json.dumps(line) + "\n")
            if result == "fault":
                kept = folder / "faults" / str(number)
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(folder / "case", kept)
                (kept / "why.txt").write_text(f"{reader.name}: {name}\n{message}", errors="backslashreplace")
    os.pwrite(now, b"%16d" % last, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
