"""The cache of SQuAD's windows: what its key is made of, files that are not parsed again, builds that fail."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from squad_files import GOOD, SMALL, open_windows, read_file, write_squad
from texts import letters_tokenizer

from bert.text import tokenizer
from ringbert.errors import InputError
from tasks.squad import windows as squad_windows
from tasks.squad.reading import Source
from tasks.squad.windows import prepare, windows

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def letters(tmp_path):
    return letters_tokenizer(tmp_path)


def never(*_):
    raise AssertionError("done again")


def test_the_cache_is_used_and_its_key_tells_everything(letters, tmp_path, run, monkeypatch):
    path, cache = write_squad(tmp_path / "a.json", GOOD), tmp_path / "cache"
    key = windows(SMALL, read_file(path), letters, cache, run)
    keys = {key}
    for change in ({"max_seq_length": 33}, {"doc_stride": 8}, {"max_query_length": 8}):
        keys.add(windows(replace(SMALL, **change), read_file(path), letters, cache, run))
    cased = tokenizer.load(letters.source, do_lower_case=False)
    keys.add(windows(SMALL, read_file(path), cased, cache, run))
    for entries in ([GOOD[0], (*GOOD[1][:2], "ran", 6)], [GOOD[0], ("a dog ran!", *GOOD[1][1:])], GOOD[::-1]):
        keys.add(windows(SMALL, read_file(write_squad(tmp_path / "b.json", entries)), letters, cache, run))
    impossible = read_file(write_squad(tmp_path / "b.json", GOOD, is_impossible=True), allow_impossible=True)
    keys.add(windows(SMALL, impossible, letters, cache, run))
    monkeypatch.setattr(squad_windows, "WINDOWS_VERSION", squad_windows.WINDOWS_VERSION + 1)
    keys.add(windows(SMALL, read_file(path), letters, cache, run))
    monkeypatch.undo()
    assert len(keys) == 1 + 3 + 1 + 3 + 1 + 1
    assert {folder.name for folder in cache.iterdir()} == keys
    monkeypatch.setattr(squad_windows, "_build", never)
    assert windows(SMALL, read_file(path), letters, cache, run) == key
    moved = path.rename(tmp_path / "moved.json")  # the content counts, not the name
    assert windows(SMALL, read_file(moved), letters, cache, run) == key


def test_keys_are_those_of_earlier_versions(letters, tmp_path, run):
    """Caches stay useful; a key that must change takes a new WINDOWS_VERSION."""
    letters.digest = "d"  # the real one depends on the version of the library
    source = Source(str(write_squad(tmp_path / "a.json", GOOD)), "--train_file", is_training=True)
    assert squad_windows.WINDOWS_VERSION == 1
    assert prepare(SMALL, source, letters, tmp_path / "cache", run) == "2047764b18a41e4ecd2a7955"
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {
        "2047764b18a41e4ecd2a7955",
        "4c16e2fd700e5c7ce35ec14b.json",
    }


def test_a_file_that_was_prepared_is_not_parsed_again(letters, tmp_path, run, monkeypatch, capsys):
    misplaced = [*GOOD * 15, ("a cat sat", "what?", "dog", 2)]
    path, cache = write_squad(tmp_path / "a.json", misplaced), tmp_path / "cache"
    source = Source(str(path), "--train_file", is_training=True)
    key = prepare(SMALL, source, letters, cache, run)
    first = capsys.readouterr().err
    assert key == windows(SMALL, read_file(path), letters, cache, run)
    others = [
        prepare(SMALL, replace(source, limit=3), letters, cache, run),
        prepare(SMALL, replace(source, is_training=False), letters, cache, run),
        prepare(replace(SMALL, max_seq_length=33), source, letters, cache, run),
    ]
    assert key not in others
    changed = write_squad(tmp_path / "b.json", [("a dog ran!", *GOOD[1][1:])])
    assert prepare(SMALL, replace(source, path=str(changed)), letters, cache, run) not in (key, *others)
    unknown = replace(source, path=str(write_squad(tmp_path / "c.json", [("漢 漢 漢", "漢?", "漢", 0)])))
    prepare(SMALL, unknown, letters, cache, run)
    capsys.readouterr()

    monkeypatch.setattr(squad_windows, "read", never)
    assert prepare(SMALL, source, letters, cache, run) == key
    again = capsys.readouterr().err
    assert f"warning: {path}: 1 answers are not at their answer_start and are left out: q30" in first
    assert again.splitlines() == [first.splitlines()[0], f"{first.splitlines()[1]} (cached)"]
    with pytest.raises(InputError, match=r"% of the tokens are \[UNK\]"):
        prepare(replace(SMALL, allow_unknown=False), unknown, letters, cache, run)
    monkeypatch.undo()
    for record in cache.glob("*.json"):
        record.write_text("{")  # a damaged one is made anew
    assert prepare(SMALL, source, letters, cache, run) == key
    shutil.rmtree(cache / key)
    assert prepare(SMALL, source, letters, cache, run) == key
    assert (cache / key / "windows.arrow").is_file()
    with pytest.raises(InputError, match=r"--train_file none\.json: no such file"):
        prepare(SMALL, replace(source, path="none.json"), letters, cache, run)


KILLED = """
import os, signal, sys
from pathlib import Path
from squad_files import SMALL, read_file
from bert.text import tokenizer
from distributed.run import Run
from tasks.squad import windows as squad_windows
path, vocabulary, cache = sys.argv[1:]
written = squad_windows.write_rows
def write_and_die(*args):
    written(*args)
    os.kill(os.getpid(), signal.SIGKILL)
squad_windows.write_rows = write_and_die
run = Run(Path(cache) / "run", False)
squad_windows.windows(SMALL, read_file(path), tokenizer.load(vocabulary), Path(cache), run)
"""


def test_a_killed_build_is_not_taken_for_a_whole_one(letters, tmp_path, run):
    path, cache = write_squad(tmp_path / "a.json", GOOD), tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, path, letters.source, cache],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = list(cache.iterdir())
    assert left  # it died between the two files
    assert all(folder.name.startswith(".") for folder in left)
    rows, paragraphs = open_windows(SMALL, read_file(path), letters, cache, run)
    assert (len(rows), len(paragraphs)) == (2, 2)
    assert len(list(cache.iterdir())) == 1  # what the killed one left is gone


def test_a_failed_build_leaves_nothing(letters, tmp_path, run, monkeypatch):
    examples, cache = read_file(write_squad(tmp_path / "a.json", GOOD)), tmp_path / "cache"

    def full_disk(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(squad_windows, "write_rows", full_disk)
    with pytest.raises(OSError, match="No space left"):
        windows(SMALL, examples, letters, cache, run)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("name", ["windows.arrow", "paragraphs.arrow", "manifest.json"])
def test_a_damaged_folder_is_built_again_with_a_line(letters, tmp_path, run, capsys, name):
    source = Source(str(write_squad(tmp_path / "a.json", GOOD)), "--train_file", is_training=True)
    cache = tmp_path / "cache"
    key = prepare(SMALL, source, letters, cache, run)
    whole = {path.name: path.read_bytes() for path in (cache / key).iterdir()}
    for damage in ("flip", "truncate", "remove"):
        path = cache / key / name
        if damage == "remove":
            path.unlink()
        else:
            content = bytearray(whole[name])
            content[len(content) // 2] ^= 4
            path.write_bytes(content if damage == "flip" else content[:-9])
        capsys.readouterr()
        assert prepare(SMALL, source, letters, cache, run) == key
        reason = "" if name == "manifest.json" else name  # a flipped manifest accuses another file
        assert f"warning: {cache / key} in the cache is damaged ({reason}" in capsys.readouterr().err
        assert {path.name: path.read_bytes() for path in (cache / key).iterdir()} == whole
    assert prepare(SMALL, source, letters, cache, run) == key
    assert "warning" not in capsys.readouterr().err
