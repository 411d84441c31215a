"""Folders appear whole or not at all, whoever builds them at the same time and whatever a kill leaves behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mpi import ROOT

from ringbert import files
from ringbert.errors import InputError
from ringbert.files import build_folder, remove_folder, replace_folder, replacing
from ringbert.hashing import digest

BUILDER = """
import os, signal, sys, time
from pathlib import Path
from ringbert.files import build_folder
folder, name, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
def build(into):
    (into / "first").write_text(name)
    (folder / f"{name} builds").touch()
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    while len(list(folder.glob("* builds"))) < int(how):
        time.sleep(0.01)
    (into / "second").write_text(name)
final = folder / "cache" / "key"
is_new = build_folder(final, build)
print(is_new, (final / "first").read_text(), (final / "second").read_text())
"""


def builder(folder: Path, name: str, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(folder), name, how],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def writer(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "data").write_text(text)


# -- folders that are built once ----------------------------------------------------------------------------------


def test_a_folder_is_built_once(tmp_path: Path) -> None:
    final = tmp_path / "new" / "cache" / "key"
    calls: list[Path] = []

    def build(folder: Path) -> None:
        calls.append(folder)
        (folder / "data").write_text("rows")

    assert build_folder(final, build)
    assert not build_folder(final, build)
    (folder,) = calls
    assert folder != final, "it was built in place"
    assert [(path.name, path.read_text()) for path in final.iterdir()] == [("data", "rows")]
    assert os.listdir(final.parent) == ["key"]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        build_folder(tmp_path / "key", build)
    assert os.listdir(tmp_path) == []


def test_a_killed_build_is_not_taken_for_data_and_goes_with_the_next(tmp_path: Path) -> None:
    killed = builder(tmp_path, "killed", "killed")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "cache" / "key").exists()
    assert len(os.listdir(tmp_path / "cache")) == 1, "the case is about what is left over"
    assert build_folder(tmp_path / "cache" / "key", writer("again"))
    assert os.listdir(tmp_path / "cache") == ["key"]


def test_jobs_that_build_the_same_at_the_same_time_all_get_one_whole_folder(tmp_path: Path) -> None:
    jobs = [builder(tmp_path, f"job{number}", "3") for number in range(3)]  # each waits for all three
    lines = [job.communicate(timeout=60)[0].split() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0]
    writers = {name for line in lines for name in line[1:]}
    assert len(writers) == 1, f"files of several builds are mixed: {lines}"
    assert os.listdir(tmp_path / "cache") == ["key"]


def test_a_file_in_the_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a stray")
    with pytest.raises(InputError, match=f"^{tmp_path}/key is a file, expected a folder: remove it$"):
        build_folder(tmp_path / "key", writer("rows"))
    assert (tmp_path / "key").read_text() == "a stray"


def test_names_that_look_like_temporary_ones_do_no_harm(tmp_path: Path) -> None:
    prefix = files._temporary_name(tmp_path / "key").name.removesuffix(f"{os.getpid()}.tmp")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    # Without a number, of another host, of a process that runs (the parent of this one), of another key.
    kept = [f"{prefix}x.tmp", f"{prefix}.tmp", ".key.tmp", ".key.elsewhere.1.tmp", f"{prefix}{os.getppid()}.tmp",
            f"{prefix.replace('key', 'other')}{dead.pid}.tmp"]  # fmt: skip
    gone = [f"{prefix}{dead.pid}.tmp", f"{prefix}{os.getpid()}.tmp"]  # as a process of this number left, before
    for name in (*kept, *gone):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("half")
    assert build_folder(tmp_path / "key", writer("rows"))
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "key"])
    assert os.listdir(tmp_path / "key") == ["data"]


def test_a_temporary_name_tells_host_container_and_process() -> None:
    """Containers may share a host's name and a file system, but each numbers its processes for itself."""
    namespace = os.readlink("/proc/self/ns/pid").removeprefix("pid:[").removesuffix("]")
    expected = f".key.{socket.gethostname()}-{namespace}.{os.getpid()}.tmp"
    assert files._temporary_name(Path("key")).name == expected


# -- folders and files that are replaced --------------------------------------------------------------------------


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    final = tmp_path / "model"
    replace_folder(final, writer("old"))
    replace_folder(final, lambda folder: (folder / "other").write_text("new"))
    assert [(path.name, path.read_text()) for path in final.iterdir()] == [("other", "new")]
    assert os.listdir(tmp_path) == ["model"]


def test_the_old_folder_stays_when_the_new_one_fails(tmp_path: Path) -> None:
    final = tmp_path / "model"
    replace_folder(final, writer("old"))

    def fail(folder: Path) -> None:
        assert (final / "data").read_text() == "old", "it is not there while the new one is written"
        (folder / "data").write_text("half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        replace_folder(final, fail)
    assert (final / "data").read_text() == "old"
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("kill", ["between the renames", "before the old one is removed"])
def test_a_replacement_finishes_what_a_kill_left(tmp_path: Path, kill: str) -> None:
    final = tmp_path / "model"
    replace_folder(tmp_path / "model.old", writer("old"))
    if kill == "before the old one is removed":
        replace_folder(final, writer("new"))
    replace_folder(final, writer("newest"))
    assert (final / "data").read_text() == "newest"
    assert os.listdir(tmp_path) == ["model"]


def test_a_folder_is_removed_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill in the middle of the removal leaves does not look like the folder."""
    final = tmp_path / "model"
    replace_folder(final, writer("old"))
    monkeypatch.setattr(files.shutil, "rmtree", lambda folder: None)
    remove_folder(final)
    (left,) = os.listdir(tmp_path)
    assert left.startswith(".model.")
    assert left.endswith(".tmp")


def test_files_have_the_permissions_of_new_ones(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "data").touch(mode=0o600)

    before = os.umask(0o027)
    try:
        build_folder(tmp_path / "key", build)
    finally:
        os.umask(before)
    assert (tmp_path / "key" / "data").stat().st_mode & 0o777 == 0o640


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        fail()
    assert path.read_text() == "old"
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


# -- digests ------------------------------------------------------------------------------------------------------


def test_a_digest_depends_on_the_bytes_of_files_and_on_other_values(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("one")
    assert digest(tmp_path / "a", 1) == digest(tmp_path / "b", 1)
    (tmp_path / "b").write_text("two")
    different = [
        digest(tmp_path / "a", 1),
        digest(tmp_path / "b", 1),
        digest(tmp_path / "a", 2),
        digest("a", "b"),
        digest("ab"),
        digest({"x": 1}),
        digest(["x", 1]),
    ]
    assert len(set(different)) == len(different)
    assert digest({"x": 1, "y": 2}) == digest({"y": 2, "x": 1})
