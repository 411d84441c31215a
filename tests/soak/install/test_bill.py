"""The bills of materials of the lock files."""

import json
import sys
import tomllib

from harness.jobs import install, isolated
from harness.parsing import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import bill

VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()))
"""


def test_a_bill_lists_each_package_of_its_lock_with_digests_and_licence(tmp_path):
    """The referee is CycloneDX's own schema."""
    install("cyclonedx-python-lib[json-validation]", into=tmp_path / "validator")
    isolated(sys.executable, ROOT / "scripts/bill.py", tmp_path / "bills", wait_s=900)
    licences = tomllib.loads(bill.TABLE.read_text())["packages"]
    assert len(bill.LOCKS) == len(list((tmp_path / "bills").iterdir())) == 2
    for lock in bill.LOCKS:
        path = tmp_path / "bills" / f"{lock.stem}.cdx.json"
        validate = (sys.executable, "-c", VALIDATE, path)
        assert isolated(*validate, path=tmp_path / "validator").stdout == "None\n"
        found = json.loads(path.read_text())
        assert {part["name"] for part in found["components"]} >= bill.packages_of(lock)
        for part in found["components"]:
            assert part["licenses"] == [{"expression": licences[part["name"]]}]
            assert part["purl"].startswith(f"pkg:pypi/{part['name']}@{part['version']}")
            (source,) = part["externalReferences"]
            assert {digest["alg"] for digest in source["hashes"]} == {"SHA-256"}
