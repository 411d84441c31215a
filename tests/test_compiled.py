"""--xla_cache: a later run takes compiled code from an earlier one, but no code that was changed since."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mpi import ENVIRONMENT

from ringbert.errors import InputError
from tasks import compiled
from tasks.compiled import kept_in, own_folder

# Compiles one function like a program does and prints its result, and how many files TensorFlow found and wrote.
PROGRAM = """
import sys
from pathlib import Path
from tasks import compiled
own = compiled.own_folder()
import tensorflow as tf
from distributed.world import World
kind = compiled.kind_of_run(World(threads=int(sys.argv[2])))
with compiled.kept_in(Path(sys.argv[1]), own, kind, lambda text: print(text, file=sys.stderr)):
    before = {path.name: path.stat().st_mtime_ns for path in own.iterdir()}
    step = tf.function(lambda x: tf.nn.softmax(tf.tanh(x @ x)), jit_compile=True)
    print(step(tf.random.stateless_normal([64, 64], [1, 2])).numpy().tobytes().hex())
    after = {path.name: path.stat().st_mtime_ns for path in own.iterdir()}
    print(len(before), len(after.items() - before.items()))
assert not own.exists()
"""


@pytest.fixture(autouse=True)
def _flags_are_restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path))


def compile_in(cache: Path, threads: int = 1) -> tuple[str, list[str], str]:
    """The bits of the result, files found and written, and messages."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(cache), str(threads)],
        env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    bits, counts = done.stdout.splitlines()
    return bits, counts.split(), done.stderr


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_damaged_code_is_compiled_again(tmp_path: Path) -> None:
    bits, counts, _ = compile_in(tmp_path)
    assert counts[0] == "0"
    assert int(counts[1]) > 0
    again, counts_again, _ = compile_in(tmp_path)
    assert again == bits
    assert counts_again == [counts[1], "0"]
    assert compile_in(tmp_path, threads=2)[1][0] == "0", "code for another number of threads was taken"

    for path in tmp_path.glob("xla/*/*"):
        content = bytearray(path.read_bytes())
        content[-1000] ^= 1
        path.write_bytes(content[:-10] if "0" in path.name[:40] else content)
    repaired, counts_after, messages = compile_in(tmp_path)
    assert (repaired, counts_after) == (bits, counts)
    assert f"0 compiled functions of earlier runs, {counts[1]} damaged" in messages
    assert compile_in(tmp_path)[1] == [counts[1], "0"]


def run_that_compiles(cache: Path, **contents: bytes) -> list[str]:
    """What a run says that finds what is kept, and in which TensorFlow writes these files."""
    messages: list[str] = []
    own = own_folder()
    assert own is not None
    with kept_in(cache, own, "kind", messages.append):
        for name, content in contents.items():
            (own / f"{name}.pb").write_bytes(content)
    assert not own.exists()
    os.environ["TF_XLA_FLAGS"] = ""
    return messages


def test_only_intact_code_is_taken(tmp_path: Path) -> None:
    run_that_compiles(tmp_path, one=b"1" * 100, two=b"2" * 100, three=b"3" * 100)
    one, two, _ = (next(tmp_path.glob(f"xla/kind/{name}.pb.*")) for name in ("one", "two", "three"))
    one.write_bytes(b"1" * 99)
    two.write_bytes(b"2" * 99 + b"3")
    assert run_that_compiles(tmp_path) == ["--xla_cache: 1 compiled functions of earlier runs, 2 damaged"]
    assert [path.name[:8] for path in tmp_path.glob("xla/kind/*")] == ["three.pb"]


def test_what_was_not_used_for_the_longest_time_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "KEPT_BYTES", 250)
    run_that_compiles(tmp_path, one=b"1" * 100, two=b"2" * 100)
    os.utime(next(tmp_path.glob("xla/kind/two.pb.*")), (1, 1))
    own = own_folder()
    assert own is not None
    with kept_in(tmp_path, own, "other", lambda text: None):
        (own / "three.pb").write_bytes(b"3" * 100)
    assert {path.name.partition(".")[0] for path in tmp_path.glob("xla/*/*")} == {"one", "three"}


def test_a_cache_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "xla").write_text("a file, not a folder")
    messages = run_that_compiles(tmp_path, one=b"1")
    assert messages[-1].startswith("warning: --xla_cache: ")


def test_the_users_flags_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_clustering_debug")
    folder = own_folder()
    assert os.environ["TF_XLA_FLAGS"] == f"--tf_xla_clustering_debug {compiled.FLAG}={folder}"
    assert own_folder() is None
    with pytest.raises(InputError, match="remove it, or --xla_cache"), kept_in(tmp_path, None, "kind", print):
        pass


def test_without_room_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow would end the run when its file cannot be written."""
    monkeypatch.setattr(compiled, "ROOM_BYTES", 1 << 60)
    assert own_folder() is None
    assert os.environ["TF_XLA_FLAGS"] == ""
    messages: list[str] = []
    with kept_in(tmp_path, None, "kind", messages.append):
        pass
    assert "GiB is free" in messages[0]
