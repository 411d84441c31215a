"""Prints the test files that look at what differs from the main branch, the nearest first.

Nearest are the tests that changed themselves, then those that have the name of what changed, then
those that import or name it, also through a module of tests/harness, and then the folders that look
at this part of the project.
"""

import functools
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What a file's path begins with -> the folders of tests that look at it, the nearest first. The
# first entry that fits counts.
FOLDERS: dict[str, Sequence[str]] = {
    "tests/soak/": (),
    "tests/spmd/": ("spmd",),
    "tests/jobs/": ("jobs",),
    "tests/": ("*",),
    "bert/corpus/": ("files",),
    "tasks/corpus/": ("files",),
    "bert/text/": ("input",),
    "bert/": ("referee", "files", "spmd"),
    "distributed/": ("files", "spmd", "jobs"),
    "ringbert/horovod/": ("horovod", "spmd"),
    "examples/": ("horovod", "programs", "spmd"),
    "ringbase/": ("files", "flags", "input", "programs", "spmd"),
    "tasks/": ("programs", "input", "flags", "files", "spmd"),
    "ringbert/": ("programs", "flags", "files", "input"),
    "benchmarks/": ("flags", "programs", "package"),
    "configs/": ("flags", "package"),
    "": ("package",),
}


def main() -> None:
    changed = changed_files()
    chosen: dict[str, None] = {}  # a set that keeps the order
    for is_near in (is_itself, is_namesake, names_it, names_it_by_harness):
        for test in tests_in("*"):
            if any(is_near(test, path) for path in changed):
                chosen[test] = None
    for path in changed:
        for folder in folders_of(path):
            chosen |= dict.fromkeys(tests_in(folder))
    for test in chosen:
        print(test)


def changed_files() -> list[str]:
    base = first_that_works(
        "git merge-base HEAD origin/HEAD", "git merge-base HEAD main", "git rev-parse HEAD"
    )
    differ = lines_of(f"git diff --name-only {base}")
    return differ + lines_of("git ls-files --others --exclude-standard")


def first_that_works(*commands: str) -> str:
    for command in commands:
        done = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
    raise SystemExit("error: this folder is no git repository with a commit")


def lines_of(command: str) -> list[str]:
    return subprocess.check_output(command.split(), cwd=ROOT, text=True).splitlines()


def tests_in(folder: str) -> list[str]:
    """The paths of a folder's tests. Those of tests/soak, one level deeper, are not among them."""
    paths = ROOT.glob(f"tests/{folder}/test_*.py")
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def folders_of(changed: str) -> Sequence[str]:
    if re.fullmatch(r"tests/\w+/test_\w+\.py", changed):
        return ()  # nothing but itself looks at it
    return next(folders for start, folders in FOLDERS.items() if changed.startswith(start))


# -- whether a test is near to what changed --------------------------------------------------------


def is_itself(test: str, changed: str) -> bool:
    return test == changed


def is_namesake(test: str, changed: str) -> bool:
    """test_plan.py for plan.py, and test_tagger_reading.py for all of tasks/tagger."""
    path = Path(changed)
    of_task = path.parts[1] if changed.startswith("tasks/") and len(path.parts) > 2 else None
    return any(
        re.match(rf"test_{re.escape(name)}(_|\.)", Path(test).name)
        for name in (path.stem, of_task)
        if name and name != "__init__"
    )


def names_it(test: str, changed: str) -> bool:
    return has_name(ROOT / test, changed)


def names_it_by_harness(test: str, changed: str) -> bool:
    helpers = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/harness/*.py")]
    return any(
        has_name(ROOT / helper, changed) and has_name(ROOT / test, helper) for helper in helpers
    )


text_of = functools.cache(Path.read_text)


def has_name(file: Path, changed: str) -> bool:
    """Whether a file imports the module, or has its path."""
    text = text_of(file)
    if changed in text:
        return True
    if not changed.endswith(".py"):
        return False
    module = changed.removeprefix("tests/").removesuffix(".py").removesuffix("/__init__")
    package, _, name = module.replace("/", ".").rpartition(".")
    dotted = rf"\b{re.escape(package)}\.{name}\b"
    imported = rf"from {re.escape(package)} import [\w\s,()]*\b{name}\b"
    return bool(package and re.search(f"{dotted}|{imported}", text))


if __name__ == "__main__":
    main()
