"""scripts/test.sh chooses the tests of a change, and says when only slow tests are chosen; pytest
stops after --seconds."""

import os
import shutil
import subprocess
import sys

import pytest
from harness.jobs import run
from harness.mpi import HANGS_S, ROOT

# In place of Python: prints its arguments, and ends as pytest does when only slow tests are chosen.
PYTHON = f"""#!/bin/sh
case $1 in scripts/*) exec {sys.executable} "$@" ;; esac
echo "$@"
case "$*" in *"-k only_slow"*) case "$*" in *"-m slow"*) ;; *) exit 5 ;; esac ;; esac
"""
TESTS = {
    "tests/files/test_order.py": "",
    "tests/files/test_plan.py": "",
    "tests/files/test_rows.py": "from distributed.plan import make_plan",
    "tests/flags/test_help.py": "",
    "tests/harness/plans.py": "from distributed import errors, plan",
    "tests/input/test_tagger_reading.py": "",
    "tests/jobs/test_launch.py": "from harness.plans import some",
    "tests/package/test_docs.py": "",
    "tests/programs/test_tagger.py": "",
    "tests/soak/deaths/test_deaths.py": "from distributed.plan import make_plan",
    "tests/spmd/test_step.py": "",
}
FILES = "files/test_order files/test_plan files/test_rows"
CHANGES = {  # the tests of a changed file, in the order in which they run
    "distributed/plan.py": "files/test_plan files/test_rows jobs/test_launch"
    " files/test_order spmd/test_step",
    "tasks/tagger/task.py": "input/test_tagger_reading programs/test_tagger"
    f" flags/test_help {FILES} spmd/test_step",
    "ringbase/files.py": f"{FILES} flags/test_help input/test_tagger_reading programs/test_tagger"
    " spmd/test_step",
    "docs/running.md": "package/test_docs",
    "tests/files/test_plan.py": "files/test_plan",
}


@pytest.fixture
def checkout(tmp_path):
    """A repository whose branch `main` has one commit."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=lambda *_: {"__pycache__"})
    for name, text in (dict.fromkeys(CHANGES, "") | TESTS).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
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


def chosen(line):
    return [word for word in line.split() if word.startswith("tests")]


@pytest.mark.parametrize("name", CHANGES)
def test_the_tests_of_a_changed_file_the_nearest_first(checkout, name):
    with (checkout / name).open("a") as file:
        file.write("# changed")
    status, lines = script(checkout, "-x")
    assert status == 0
    assert chosen(lines[-1]) == [f"tests/{test}.py" for test in CHANGES[name].split()]


def test_nothing_is_run_without_a_change_and_new_files_count(checkout):
    assert script(checkout)[1][-1].startswith("nothing differs")
    (checkout / "bert").mkdir()
    (checkout / "bert" / "new.py").touch()
    assert "tests/spmd/test_step.py" in chosen(script(checkout)[1][-1])


def test_a_selection_of_slow_tests_only_says_so(checkout):
    (checkout / "docs/running.md").write_text("changed")
    status, lines = script(checkout, "-k", "only_slow")
    assert status == 5
    assert lines[-1].endswith("scripts/test.sh --changed -m slow -k only_slow")
    assert script(checkout, "-m", "slow", "-k", "only_slow")[0] == 0


@pytest.mark.parametrize("workers", ["0", "1"])
def test_after_so_many_seconds_no_test_is_started_and_the_rest_is_listed(workers):
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider"]
    chosen = ["tests/flags/test_syntax.py", "tests/flags/test_ranges.py", "--no-loadscope-reorder"]
    done = run([*command, *chosen, "--seconds", "0"])
    lines = done.stdout.splitlines()
    counts = [int(line.split()[2]) for line in lines if line.startswith("not run: ")]
    collected = run([*command[:-2], *chosen[:2], "--collect-only"]).stdout.count("::")
    assert len(counts) == 2, done
    assert sum(counts) == collected - 1
    assert done.status == 2
    assert "--seconds 0 are over" in done.stdout
