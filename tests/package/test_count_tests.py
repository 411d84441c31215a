"""scripts/count_tests.py says how to run each failed test alone, and finds tests that were skipped
unnoticed."""

import shlex
import sys

import pytest
from harness.jobs import run
from harness.mpi import ROOT

FAILING = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("text", ["it's $HOME", "한국어 a:b", "fine"])
def test_it(text):
    assert text == "fine"
"""
SETTINGS = "[pytest]\naddopts = -m 'not slow'\nmarkers = slow\n"


def pytest_in(folder, *arguments):
    return run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments], cwd=folder)


def counted(folder):
    """Status and lines."""
    done = run([sys.executable, ROOT / "scripts/count_tests.py", "reports"], cwd=folder)
    return done.status, done.stdout.splitlines()


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "tests" / "one").mkdir(parents=True)
    return tmp_path


def test_what_failed_is_listed_with_commands_that_run_it_alone(project):
    (project / "tests/one/test_one.py").write_text(FAILING)
    (project / "tests/one/test_broken.py").write_text("import nothing_of_this_name")
    pytest_in(project, "-m", "", "--junitxml=reports/slow.xml", "--continue-on-collection-errors")
    status, lines = counted(project)
    assert (status, lines[:2]) == (0, ["1 passed, 3 failed, 0 skipped", "Each failed test alone:"])
    found = []
    for line in lines[2:]:
        _, _, _, *arguments = shlex.split(line)
        found.append(pytest_in(project, *arguments).stdout.splitlines()[-1])
    assert sorted(line.split(" in ")[0].strip("= ") for line in found) == [
        "1 error",
        "1 failed",
        "1 failed",
    ]


def test_a_skipped_test_is_named_and_no_test_at_all_is_a_failure(project):
    assert counted(project)[0] == 1
    (project / "tests/one/test_one.py").write_text(
        "import pytest\ndef test_it():\n    pytest.skip('no reason')\n"
    )
    pytest_in(project, "--junitxml=reports/default.xml")
    status, lines = counted(project)
    assert (status, lines) == (
        1,
        [
            "skipped: tests/one/test_one.py::test_it: no reason",
            "0 passed, 0 failed, 1 skipped",
        ],
    )
