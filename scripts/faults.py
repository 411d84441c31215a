"""Puts faults into a copy of the code, one at a time, and checks that the test which should see
each one fails.

    python scripts/faults.py [NUMBER …]

tests/soak/faults.toml describes each fault by its behaviour, and as a replacement in a file.
"""

import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(chosen: list[str]) -> int:
    faults = tomllib.loads((ROOT / "tests" / "soak" / "faults.toml").read_text())["fault"]
    unseen = 0
    with tempfile.TemporaryDirectory(prefix="ringbert-faults-") as folder:
        copy = Path(folder) / "main"
        listed = subprocess.check_output(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True
        )
        for name in listed.splitlines():
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, copy / name)
        if (ROOT.parent / "shared").exists():
            (Path(folder) / "shared").symlink_to(ROOT.parent / "shared")
        for number, fault in enumerate(faults, 1):
            if not chosen or str(number) in chosen:
                unseen += not is_seen(number, fault, copy)
    print(f"{unseen} of {len(chosen) or len(faults)} faults were not seen")
    return int(unseen > 0)


def is_seen(number: int, fault: dict[str, str], copy: Path) -> bool:
    path = copy / fault["file"]
    source = path.read_text()
    if source.count(fault["find"]) != 1:
        print(
            f"{number:2} cannot be put in: {fault['file']} has the text"
            f" {source.count(fault['find'])} times"
        )
        return False
    path.write_text(source.replace(fault["find"], fault["replace"]))
    started = time.monotonic()
    options = ["-q", "-x", "-m", "", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *fault["test"].split()]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    path.write_text(source)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    seen = done.returncode == 1 and bool(failed)
    by = (
        failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else f"status {done.returncode}"
    )
    word, seconds = "seen" if seen else "NOT SEEN", time.monotonic() - started
    print(f"{number:2} {word}: {fault['behaviour']} ({by}, {seconds:.0f} s)")
    sys.stdout.flush()
    return seen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
