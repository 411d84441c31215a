"""Counts the tests in a folder of JUnit reports, and says how to run each that has failed.

It fails if a test was skipped that should have run. Beside the checkout there may be the real data
(../shared/data). Without them the tests that need them are skipped, and no others.
"""

import shlex
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def main(folder: Path) -> int:
    cases = [
        case
        for path in sorted(folder.glob("*.xml"))
        for case in ElementTree.parse(path).getroot().iter("testcase")
    ]
    skipped = [(case, case.find("skipped")) for case in cases]
    reasons = [
        (case, reason.get("message") or "") for case, reason in skipped if reason is not None
    ]
    for case, reason in reasons:
        print(f"skipped: {name_of(case)}: {reason}")
    has_data = Path("../shared/data/unpack.sh").exists()
    expected = 0 if has_data else sum("real data" in reason for _, reason in reasons)
    failed = {name_of(case): None for case in cases if has_failed(case)}
    num_passed = len(cases) - len(reasons) - len(failed)
    print(f"{num_passed} passed, {len(failed)} failed, {len(reasons)} skipped")
    if failed:
        print("Each failed test alone:")
    for name in failed:
        print(f"  python -m pytest -m '' {shlex.quote(name)}")
    return int(len(reasons) != expected or not cases)


def name_of(case: ElementTree.Element) -> str:
    """As pytest takes it. A file that could not be imported has no class."""
    name = case.get("name") or ""
    if not case.get("classname"):
        return name.replace(".", "/") + ".py"
    file = case.get("classname", "").replace(".", "/") + ".py"
    return f"{file}::{name}"


def has_failed(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
