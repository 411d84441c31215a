"""The licences of all packages in the lock files, which scripts/bill.py puts into bills of
materials, are known, allowed, and what the installed packages say."""

import sys
import tomllib

import pytest
from harness.parsing import ROOT
from packaging.licenses import canonicalize_license_expression

sys.path.insert(0, str(ROOT / "scripts"))
import bill

TABLE = tomllib.loads(bill.TABLE.read_text())
LICENCES, ALLOWED = TABLE["packages"], set(TABLE["allowed"])


def test_every_locked_package_has_a_licence_that_is_allowed():
    assert len(LICENCES) > 100
    assert bill.check(LICENCES, ALLOWED) == []
    for expression in {*LICENCES.values(), *ALLOWED}:
        assert canonicalize_license_expression(expression) == expression  # SPDX's names


def test_installed_packages_state_the_licences_of_the_table():
    stated = {name: bill.licence_of(name) for name in LICENCES}
    wrong = {name: found for name, found in stated.items() if found not in (None, LICENCES[name])}
    assert wrong == {}, "run python scripts/bill.py --list"
    assert sum(found is not None for found in stated.values()) > 80


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"numpy": "GPL-3.0-only"}, "numpy has the licence GPL-3.0-only"),
        ({"numpy": "MIT AND GPL-3.0-only"}, "not allowed in licences.toml"),
        ({"nowhere": "MIT"}, "nowhere is in no lock file"),
    ],
)
def test_other_licences_and_packages_are_refused(changed, fault):
    (line,) = bill.check(LICENCES | changed, ALLOWED)
    assert fault in line
    without = {name: licence for name, licence in LICENCES.items() if name != "keras"}
    assert bill.check(without, ALLOWED) == ["keras has no licence in licences.toml"]
    assert bill.is_allowed("GPL-3.0-only OR MIT", {"MIT"})
