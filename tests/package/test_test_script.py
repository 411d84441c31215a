"""scripts/test.sh chooses the tests of a change, and says when only slow tests are chosen."""

import os
import shutil
import subprocess

import pytest
from harness.mpi import HANGS_S, ROOT

# In place of Python: prints its arguments, and ends as pytest does when only slow tests are chosen.
PYTHON = """#!/bin/sh
echo "$@"
case "$*" in *"-k only_slow"*) case "$*" in *"-m slow"*) ;; *) exit 5 ;; esac ;; esac
"""
CHANGES = {
    "distributed/plan.py": {"tests/files", "tests/jobs", "tests/spmd"},
    "tasks/tagger/task.py": {"tests/files", "tests/flags", "tests/input", "tests/programs"},
    "docs/running.md": {"tests/package"},
    "tests/files/test_plan.py": {"tests/files/test_plan.py"},
}


@pytest.fixture
def checkout(tmp_path):
    """A repository whose branch `main` has one commit."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=lambda *_: {"__pycache__"})
    for name in CHANGES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(PYTHON)
    (tmp_path / "bin" / "python").chmod(0o755)
    (tmp_path / ".gitignore").write_text("bin\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    return tmp_path


def script(checkout, *arguments):
    env = os.environ | {"PATH": f"{checkout}/bin:{os.environ['PATH']}", "VIRTUAL_ENV": "active"}
    command = ["bash", str(checkout / "scripts/test.sh"), "--changed", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANGS_S)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("name", CHANGES)
def test_the_tests_of_a_changed_file(checkout, name):
    (checkout / name).write_text("changed")
    status, lines = script(checkout, "-x")
    assert status == 0
    assert {word for word in lines[-1].split() if word.startswith("tests")} == CHANGES[name]


def test_nothing_is_run_without_a_change_and_new_files_count(checkout):
    assert script(checkout)[1][-1].startswith("nothing differs")
    (checkout / "bert").mkdir()
    (checkout / "bert" / "new.py").touch()
    assert "tests/referee" in script(checkout)[1][-1]


def test_a_selection_of_slow_tests_only_says_so(checkout):
    (checkout / "docs/running.md").write_text("changed")
    status, lines = script(checkout, "-k", "only_slow")
    assert status == 5
    assert lines[-1].endswith("scripts/test.sh --changed -m slow -k only_slow")
    assert script(checkout, "-m", "slow", "-k", "only_slow")[0] == 0
