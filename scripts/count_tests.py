"""Counts the tests in a folder of JUnit reports, and fails if one was skipped that should have run.

Beside the checkout there may be the real data (../shared/data). Without them the tests that need
them are skipped, and no others.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def main(folder: Path) -> int:
    cases = [
        case
        for path in folder.glob("*.xml")
        for case in ElementTree.parse(path).getroot().iter("testcase")
    ]
    skipped = [(case, case.find("skipped")) for case in cases]
    reasons = [
        (case, reason.get("message") or "") for case, reason in skipped if reason is not None
    ]
    for case, reason in reasons:
        print(f"skipped: {case.get('classname')}.{case.get('name')}: {reason}")
    has_data = Path("../shared/data/unpack.sh").exists()
    expected = 0 if has_data else sum("real data" in reason for _, reason in reasons)
    failed = sum(
        case.find("failure") is not None or case.find("error") is not None for case in cases
    )
    print(f"{len(cases) - len(reasons) - failed} passed, {failed} failed, {len(reasons)} skipped")
    return int(len(reasons) != expected or not cases)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
