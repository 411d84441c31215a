"""Puts faults into a copy of the code, one at a time, and checks that the test which should see
each one fails.

    python scripts/faults.py [NUMBER …]

tests/soak/faults.toml describes each fault by its behaviour, and as a replacement in a function.
"""

import ast
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
    try:
        path, function = source_of(fault["place"], copy)
    except LookupError as error:
        print(f"{number:2} cannot be put in: {error}")
        return False
    source = path.read_text()
    count = function.count(fault["find"])
    if count != 1:
        print(f"{number:2} cannot be put in: {fault['place']} has the text {count} times")
        return False
    path.write_text(source.replace(function, function.replace(fault["find"], fault["replace"])))
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


def source_of(place: str, root: Path) -> tuple[Path, str]:
    """The file of `module:function`, and the lines of the function or constant. Raises LookupError:
    there is none."""
    module, _, names = place.partition(":")
    path = root / f"{module.replace('.', '/')}.py"
    text = path.read_text()
    node: ast.AST = ast.parse(text)
    for name in names.split("."):
        found = [child for child in ast.iter_child_nodes(node) if name in named(child)]
        if len(found) != 1:
            raise LookupError(f"{place}: {path} has {len(found)} of {name}")
        node = found[0]
    lines = text.splitlines(keepends=True)
    assert isinstance(node, ast.stmt)
    return path, "".join(lines[node.lineno - 1 : node.end_lineno])


def named(node: ast.AST) -> set[str]:
    """What a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.AnnAssign):
        return {ast.unparse(node.target)}
    if isinstance(node, ast.Assign):
        names = [each for target in node.targets for each in ast.walk(target)]
        return {each.id for each in names if isinstance(each, ast.Name)}
    return set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
