"""A release, rehearsed: uploaded to a package index on this machine, and from there into a new
environment of each Python, where the quickstart of the wheel trains on two ranks. Removed, it
leaves nothing behind."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from harness.jobs import install, isolated, started
from harness.parsing import PROJECT, ROOT

PYTHONS = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if "Python :: 3." in name]
LESS = ("--max_train_examples=160", "--num_train_epochs=1", "--log_steps=1")


def interpreter(version):
    """A Python of this version that is in PATH, pyenv's or uv's; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    if shutil.which("uv"):
        command = ["uv", "python", "find", "--no-python-downloads", version]
        candidates += subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    for candidate in filter(None, candidates):
        # pyenv's names in PATH may stand for versions that are not chosen.
        if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


@pytest.fixture(scope="module")
def index(built, tmp_path_factory):
    """The address of a package index that has the release, as twine has uploaded it."""
    folder = tmp_path_factory.mktemp("index")
    install("pypiserver", "twine", into=folder / "site")
    (folder / "packages").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    serve = (sys.executable, "-m", "pypiserver", "run", "-i", "127.0.0.1", "-p", port)
    open_to_all = ("-P", ".", "-a", ".", "--disable-fallback", folder / "packages")
    with started([*serve, *open_to_all], PYTHONPATH=str(folder / "site")) as server:
        server.wait_for(lambda: answers(address))
        upload = (sys.executable, "-m", "twine", "upload", "--repository-url", address)
        login = ("--username", "-", "--password", "-", "--disable-progress-bar")
        isolated(*upload, *login, *built.iterdir(), path=folder / "site", cwd=folder)
        yield f"{address}/simple/"


def answers(address):
    try:
        return urllib.request.urlopen(address, timeout=10).status == 200
    except OSError:
        time.sleep(0.1)
        return False


def files_in(folder):
    """Files and folders, without what Python compiles while it runs."""
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("version", PYTHONS)
def test_the_release_installs_trains_and_is_removed(version, index, tmp_path):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} in PATH, pyenv or uv")
    environment, release = tmp_path / "environment", tmp_path / "release"
    isolated(python, "-m", "venv", environment)
    pip = (environment / "bin/python", "-m", "pip")
    locked = (*pip, "install", "-q", "--require-hashes", "-r", ROOT / "requirements/cpu-mpi.txt")
    isolated(*locked, cwd=tmp_path, wait_s=3600)
    before = files_in(environment)

    wanted = f"ringbert=={PROJECT['version']}"
    isolated(
        *(*pip, "download", "-q", "--no-deps", "--no-cache-dir", "--index-url", index),
        *("--dest", release, wanted),
        cwd=tmp_path,
    )
    (wheel,) = release.iterdir()
    isolated(*pip, "install", "-q", "--no-deps", wheel, cwd=tmp_path)
    isolated(*pip, "check", cwd=tmp_path)
    installed = files_in(environment) - before
    assert {path.name for path in installed if path.parent == environment / "bin"} == set(
        PROJECT["scripts"]
    )

    (tmp_path / "work").mkdir()
    done = isolated(
        *("bash", environment / "share/ringbert/scripts/quickstart.sh", *LESS),
        cwd=tmp_path / "work",
        wait_s=1800,
        PATH=f"{environment}/bin:/usr/bin:/bin",
        RINGBERT_CACHE=str(tmp_path / "cache"),
    )
    assert "2 ranks" in done.stderr, done
    (run,) = (tmp_path / "work").iterdir()
    assert (run / "trained/predictions.json").stat().st_size > 0
    assert str(ROOT) not in (run / "trained/run.json").read_text()

    isolated(*pip, "uninstall", "-q", "--yes", "ringbert", cwd=tmp_path)
    assert files_in(environment) - before == set()
