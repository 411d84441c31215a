"""Folders and files appear whole or not at all, whoever builds them at once and whatever a kill leaves; JSON is
read as what it says, or refused in one line."""

import gzip
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.mpi import ROOT
from harness.refusals import refused

from ringbase.files import build_folder, parse_json, read_json, read_object, read_text, replace_folder, replacing

BUILDER = """
import sys, time
from pathlib import Path
from ringbase.files import build_folder
folder, name = Path(sys.argv[1]), sys.argv[2]
def build(into):
    (into / "first").write_text(name)
    (folder / f"{name} builds").touch()
    while len(list(folder.glob("job* builds"))) < 3:
        time.sleep(0.01)
    (into / "second").write_text(name)
build_folder(folder / "cache" / "key", build)
print(*((folder / "cache" / "key" / file).read_text() for file in ("first", "second")))
"""


def builder(folder, name):
    command = [sys.executable, "-c", BUILDER, str(folder), name]  # which waits until three jobs build
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def writer(text):
    return lambda folder: (folder / "data").write_text(text)


def failing(folder):
    (folder / "data").write_text("half")
    raise OSError("the disk is full")


def test_a_folder_is_built_once_beside_its_place_or_not_at_all(tmp_path):
    final = tmp_path / "new" / "key"
    with pytest.raises(OSError, match="the disk is full"):
        build_folder(final, failing)
    assert os.listdir(tmp_path / "new") == []
    assert build_folder(final, lambda folder: (folder / "data").write_text(folder.name))
    assert not build_folder(final, failing)
    assert (final / "data").read_text() != "key", "it was built in place"
    assert os.listdir(final.parent) == ["key"]


def test_jobs_that_build_the_same_at_the_same_time_get_one_whole_folder_and_nothing_of_a_killed_one(tmp_path):
    with builder(tmp_path, "killed") as killed:
        while not (tmp_path / "killed builds").exists():
            time.sleep(0.01)
        killed.kill()
    assert len(os.listdir(tmp_path / "cache")) == 1, "the case is about what is left over"
    jobs = [builder(tmp_path, f"job{number}") for number in range(3)]
    lines = [job.communicate(timeout=60)[0].split() for job in jobs]
    assert len({name for line in lines for name in line}) == 1, f"files of several builds are mixed: {lines}"
    assert os.listdir(tmp_path / "cache") == ["key"]


def test_a_folder_is_replaced_as_a_whole_or_stays(tmp_path):
    final = tmp_path / "model"
    replace_folder(final, writer("old"))
    with pytest.raises(OSError, match="the disk is full"):
        replace_folder(final, failing)
    assert (final / "data").read_text() == "old"
    replace_folder(final, lambda folder: (folder / "other").write_text((final / "data").read_text() + " new"))
    assert [(path.name, path.read_text()) for path in final.iterdir()] == [("other", "old new")]
    assert os.listdir(tmp_path) == ["model"]


def test_a_file_is_replaced_as_a_whole_or_stays(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half", "no bytes"])
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_compressed_text_is_read_up_to_a_limit(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"text\n" * 1000))
    assert read_text(path, most_bytes=5000) == "text\n" * 1000
    refused(lambda: read_text(path, most_bytes=4999), path)
    path.write_bytes(path.read_bytes()[:-9])
    refused(lambda: read_text(path), path)


def test_what_is_no_json_or_barely_is_refused():
    halves = '["b\\ud800"]', '{"\\udfff": 1}', '"\\ud800"'  # of a surrogate pair
    for text in ("[" * 100_000, "9" * 5000, "9" * 400, *halves, "{'a': 1}", "", "1 2"):
        assert len(refused(lambda text=text: parse_json(text))) < 300, text[:20]
    assert parse_json('["\\ud83d\\ude00"]') == ["\U0001f600"]
    assert parse_json("1" + "0" * 30) == 10**30  # transformers writes it for a length without a limit
    assert parse_json('{"a": "' + "[" * 200 + '"}') == {"a": "[" * 200}
    assert parse_json("[1e999, -Infinity]") == [math.inf, -math.inf]  # Python's own writer writes it


def test_an_object_is_read_from_a_file_with_an_end(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(path) == read_object(path) == {"a": 1}
    for content in ('{"a": 1}'.encode("utf-16"), b'{"a": "\xff"}', b"[1]", b"null", b"1.5", b'{"a"'):
        path.write_bytes(content)
        refused(lambda: read_object(path), path)
        refused(lambda: read_object(path, "--model"), "--model")
    (tmp_path / "large.json").touch()
    os.truncate(tmp_path / "large.json", 1 << 33)  # sparse
    for path in (tmp_path, tmp_path / "large.json", Path("/dev/zero")):
        refused(lambda path=path: read_object(path), path)
