"""Checkpoints are whole or not there, and any number of ranks goes on from them."""

import json
import os
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from mpi import alone, mpirun
from programs import toy

from distributed.checkpoint import (
    State,
    check_settings,
    checkpoint_at,
    complete_checkpoints,
    newest_intact,
    read_state,
    set_aside,
)
from distributed.collectives.local import LocalCollectives
from distributed.order import Order
from distributed.world import World
from ringbert.errors import InputError, Preempted, one_line
from ringbert.manifest import seal

SMALL_DISK_BYTES = 128 * 1024
WORLD, COLLECTIVES = World(), LocalCollectives()


@pytest.fixture
def saver(tmp_path: Path) -> toy.Saver:
    return toy.Saver(WORLD, COLLECTIVES, tmp_path)


def unexpected(text: str) -> None:
    raise AssertionError(f"a needless warning: {text}")


def refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    line = one_line(caught.value)
    assert words in line, f"{words!r} is not in: {line}"
    assert len(line) < 400, line


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def rewrite_state(checkpoint: Path, **changes: object) -> None:
    """Changes the state of a checkpoint, which stays intact."""
    state = json.loads((checkpoint / "state.json").read_text()) | changes
    (checkpoint / "state.json").write_text(json.dumps(state))
    (checkpoint / "manifest.json").unlink()
    seal(checkpoint, state["position"])


# -- what a checkpoint holds --------------------------------------------------------------------------------------


def test_a_checkpoint_holds_the_optimizers_variables_and_the_state(saver: toy.Saver, tmp_path: Path) -> None:
    saver.optimizer.optimizer.iterations.assign(12)
    for number, variable in enumerate(saver.optimizer.optimizer.variables[2:]):
        variable.assign(np.full(variable.shape, number + 0.5))
    path = saver.save(120)
    files = {"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"}
    assert {file.name for file in path.iterdir()} == files
    assert read_state(path) == State(120, 12, 100, 10, {"--seed": 7})
    other = toy.Saver(WORLD, COLLECTIVES, tmp_path / "other")
    other.checkpoints.restore(path, other.optimizer)
    for name, variable in saver.optimizer.state().items():
        restored = other.optimizer.state()[name]
        assert restored.dtype == variable.dtype
        assert np.array_equal(restored.numpy(), variable.numpy()), f"optimizer variable {name} is not restored"
    assert other.optimizer.steps_done == 12


def test_moments_of_another_model_are_refused(saver: toy.Saver) -> None:
    import keras

    path = saver.save(10)
    wider = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    optimizer = toy.make_optimizer(wider, WORLD, COLLECTIVES)
    refused(lambda: saver.checkpoints.restore(path, optimizer), "does not fit this optimizer and model")


def test_what_is_written_is_what_stood_at_the_save_while_training_goes_on(saver: toy.Saver) -> None:
    may_write = threading.Event()
    before = toy.flat(saver.optimizer)
    saver.before_each_model(lambda into: may_write.wait(60))
    saver.checkpoints.save(saver.optimizer, State(10, 1, 100, 10, {}))
    for variable in (*saver.optimizer.trainable, *saver.optimizer.optimizer.variables[2:]):
        variable.assign(variable.value + 1.0)
    assert saver.positions() == []
    may_write.set()
    saver.checkpoints.finish()
    after = toy.flat(saver.optimizer)
    (path,) = complete_checkpoints(saver.folder)
    toy.load_model(saver.model, path)
    saver.checkpoints.restore(path, saver.optimizer)
    assert np.array_equal(toy.flat(saver.optimizer), before)
    assert not np.array_equal(after, before)
    assert not any(variable.numpy().any() for variable in saver.optimizer.optimizer.variables[2:])


def test_a_failed_write_is_reported_by_the_next_save(saver: toy.Saver) -> None:
    def fail(into: Path) -> None:
        raise OSError("no space left")

    path = saver.save(10)
    saver.before_each_model(fail)
    saver.checkpoints.save(saver.optimizer, State(20, 2, 100, 10, {}))
    refused(lambda: saver.checkpoints.save(saver.optimizer, State(30, 3, 100, 10, {})), "no space left")
    saver.checkpoints.finish()
    assert saver.names() == [path.name]


# -- which are kept -----------------------------------------------------------------------------------------------


def test_the_newest_are_kept(tmp_path: Path) -> None:
    saver = toy.Saver(WORLD, COLLECTIVES, tmp_path, keep=2)
    for position in range(10, 60, 10):
        saver.save(position)
        assert saver.positions() == [p for p in (position - 10, position) if p > 0]
    saver.save(50)
    assert saver.names() == ["rows-000000000040", "rows-000000000050"], "the same position again"
    saver.save(60, step=3, steps=50, global_batch_size=20)  # with twice the ranks
    assert saver.names() == ["rows-000000000050", "rows-000000000060"]


def test_a_checkpoint_is_written_after_some_time_whatever_the_steps(tmp_path: Path) -> None:
    for minutes, steps in ((0, [6]), (60, [6]), (1e-9, [2, 3, 4, 5, 6])):  # the second step is the first to ask
        toy.train(WORLD, COLLECTIVES, tmp_path / str(minutes), steps=6, save_minutes=minutes)
        written = complete_checkpoints(tmp_path / str(minutes) / "checkpoints")
        assert [read_state(path).step for path in written] == steps


def test_a_run_that_starts_anew_puts_the_old_checkpoints_aside(saver: toy.Saver) -> None:
    assert set_aside(saver.folder) is None
    old = [saver.save(position).name for position in (50, 60)]
    aside = set_aside(saver.folder)
    assert aside is not None
    saver.save(20)
    assert saver.names() == ["rows-000000000020"]
    assert sorted(path.name for path in aside.iterdir()) == old


def test_a_run_that_starts_from_an_early_state_keeps_what_it_has_just_written(tmp_path: Path) -> None:
    saver = toy.Saver(WORLD, COLLECTIVES, tmp_path, keep=2)
    for position in (900, 910, 10):
        assert saver.save(position).is_dir()


def test_the_best_survives_other_ranks_whose_steps_have_the_same_numbers(tmp_path: Path) -> None:
    """Step 2 of one rank is at row 20, step 2 of four ranks at row 80."""
    saver = toy.Saver(WORLD, COLLECTIVES, tmp_path, keep=1)
    evaluations = [[20.0, 0.9]]
    best = saver.save(20, step=2, evaluations=evaluations)
    weights = (best / "model.safetensors").read_bytes()
    for variable in saver.optimizer.trainable:
        variable.assign(variable.value + 1.0)
    for step in (1, 2, 3):
        newest = saver.save(40 * step, step=step, global_batch_size=40, evaluations=evaluations)
        assert saver.names() == sorted([best.name, newest.name])
    assert (best / "model.safetensors").read_bytes() == weights
    checkpoint = checkpoint_at(saver.folder, 20)
    assert (checkpoint.path, checkpoint.state.step, checkpoint.state.global_batch_size) == (best, 2, 10)
    flip_a_byte(best / "model.safetensors")
    refused(lambda: checkpoint_at(saver.folder, 20), "is damaged: model.safetensors changed")
    shutil.rmtree(best)
    refused(lambda: checkpoint_at(saver.folder, 20), "the checkpoint at row 20, the best one, no longer exists")


# -- going on -----------------------------------------------------------------------------------------------------


def test_another_batch_and_a_folder_of_an_older_version_go_on_at_the_same_row(
    tmp_path: Path,
) -> None:
    rows_seen: list[int] = []

    def collate(fields: dict) -> dict[str, np.ndarray]:
        rows_seen.extend(fields["row"])
        return toy.collate(fields)

    toy.train(WORLD, COLLECTIVES, tmp_path, steps=7, save_every=2)
    folder = tmp_path / "checkpoints"
    names = {path.name: f"step-{read_state(path).step:08d}" for path in complete_checkpoints(folder)}
    assert list(names) == [f"rows-{14 * step:012d}" for step in (2, 4, 6, 7)]
    for name, old_name in names.items():
        (folder / name).rename(folder / old_name)
    assert [path.name for path in complete_checkpoints(folder)] == list(names.values())
    rewrite_state(folder / "step-00000007", steps=20)  # the middle of a longer training
    _, state = toy.train(WORLD, COLLECTIVES, tmp_path, steps=28, global_batch=10, collate=collate, save_every=4)
    # 98 rows are done, which is 9.8 steps of 10: 18 of 28 are left.
    assert rows_seen == Order(toy.NUM_ROWS, 7).rows_at(98, 98 + 180).tolist(), "rows are lost or seen again"
    assert (state.step, state.position, state.global_batch_size) == (28, 278, 10)
    # Saved at steps 12, 16, 20, 24, 28 of the second part; five are kept and the old ones are gone.
    assert [path.name for path in complete_checkpoints(folder)] == [
        f"rows-{98 + 10 * (step - 10):012d}" for step in (12, 16, 20, 24, 28)
    ]
    assert len(list(folder.iterdir())) == 5


def test_of_several_at_one_position_the_new_name_counts_and_the_others_go(
    saver: toy.Saver,
) -> None:
    new = saver.save(20)
    shutil.copytree(new, saver.folder / "step-00000002")
    shutil.copytree(new, saver.folder / f"{new.name}.old")  # a rewrite was killed before it removed it
    assert newest_intact(saver.folder, unexpected).path == new
    shutil.rmtree(new)  # the rewrite was killed between the two renames
    assert newest_intact(saver.folder, unexpected).path == saver.folder / f"{new.name}.old"
    assert saver.save(20) == new
    assert saver.names() == [new.name]


def test_a_training_in_two_parts_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = toy.flat(toy.train(WORLD, COLLECTIVES, tmp_path / "whole")[0])
    num_weighed = 0

    def weights(batch: dict[str, np.ndarray]) -> dict[str, float]:
        nonlocal num_weighed
        num_weighed += 1
        if num_weighed == 9:
            WORLD.stop_wanted.set()
        return toy.weights(batch)

    with pytest.raises(Preempted):
        toy.train(WORLD, COLLECTIVES, tmp_path / "parts", weights=weights)
    (path,) = complete_checkpoints(tmp_path / "parts/checkpoints")
    state = read_state(path)
    assert (state.step, state.position, state.steps) == (9, 9 * toy.GLOBAL_BATCH, 20)
    optimizer, state = toy.train(WORLD, COLLECTIVES, tmp_path / "parts")
    assert (state.step, state.position) == (20, 20 * toy.GLOBAL_BATCH)
    assert toy.flat(optimizer).tobytes() == whole.tobytes()


@pytest.mark.slow
def test_one_rank_then_two_then_one_end_where_one_rank_does(tmp_path: Path) -> None:
    """Each part but the last is stopped by SIGUSR1 to one rank; of the two ranks, to the second alone."""

    def state(step: int) -> dict:
        checkpoint = tmp_path / "run/checkpoints" / f"rows-{step * toy.GLOBAL_BATCH:012d}"
        return json.loads((checkpoint / "state.json").read_text())

    first = alone("checkpoints.py", "first", tmp_path)
    assert first.status == 75, first
    assert "saved after step 7 of 20" in first.stderr, first
    assert state(7)["position"] == 7 * 14
    second = mpirun(2, "checkpoints.py", "second", tmp_path)
    assert second.status == 75, second
    assert second.stderr.count("saved after step 14 of 20") == 1, second
    assert "Traceback" not in second.stderr, second
    assert state(14)["position"] == 14 * 14
    logged = [json.loads(line)["step"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert logged == list(range(1, 15))
    chained, last = toy.train(WORLD, COLLECTIVES, tmp_path / "run")
    assert (last.step, last.position) == (20, 20 * toy.GLOBAL_BATCH)
    whole, _ = toy.train(WORLD, COLLECTIVES, tmp_path / "whole")
    np.testing.assert_allclose(toy.flat(chained), toy.flat(whole), rtol=1e-12)


def test_changed_settings_are_refused_with_both_values(tmp_path: Path) -> None:
    check_settings({"a": 1, "b": None}, {"b": None, "a": 1}, tmp_path)
    for saved, now, before, after in (
        ({"--rate": 1.0}, {"--rate": 2.0}, "1.0", "2.0"),
        ({"--rate": 1.0}, {}, "1.0", "None"),
        ({}, {"--rate": 2.0}, "None", "2.0"),
    ):
        words = f"{tmp_path} holds a run with --rate = {before}, this command has {after}: give up"
        refused(lambda saved=saved, now=now: check_settings(saved, now, tmp_path, "give up"), words)
    toy.train(WORLD, COLLECTIVES, tmp_path, steps=1)
    words = "--seed = 7, this command has 8: use the same value"
    refused(lambda: toy.train(WORLD, COLLECTIVES, tmp_path, settings={"--seed": 8}), words)


# -- damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_flipped_byte_is_noticed(saver: toy.Saver, name: str) -> None:
    older, newest = saver.save(10), saver.save(20)
    flip_a_byte(newest / name)
    warnings: list[str] = []
    assert newest_intact(saver.folder, warnings.append).path == older, "the damaged one is used"
    (warning,) = warnings
    assert warning == f"warning: {newest} is not used: {name} changed since it was written"
    flip_a_byte(older / name)
    words = f"none of them is intact ({older.name}: {name} changed since it was written; {newest.name}: {name} ch"
    refused(lambda: newest_intact(saver.folder, unexpected), words)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)  # the last byte of a manifest is only a newline


def rewrite_entry(path: Path, name: str, entry: object, add: bool = False) -> None:
    """Changes an entry of a manifest, or gives it another name."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"] = entry if name == "files" else manifest["files"] | {name: entry}
    (path / "manifest.json").write_text(json.dumps(manifest))


def link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


# What is done to a checkpoint, and how the user learns of it.
INCOMPLETE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a truncated model": (lambda path: truncate(path / "model.safetensors"), "has 638 bytes, not 640"),
    "a truncated manifest": (lambda path: truncate(path / "manifest.json"), "manifest.json: not valid JSON"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "manifest.json: No such file"),
    "an empty manifest": (lambda path: os.truncate(path / "manifest.json", 0), "manifest.json: not valid JSON"),
    "a manifest of null": (lambda path: (path / "manifest.json").write_text("null"), "manifest.json is damaged"),
    "another format": (
        lambda path: (path / "manifest.json").write_text('{"format": 2}'),
        "manifest.json has format 2, expected 1",
    ),
    "a file missing": (lambda path: (path / "state.json").unlink(), "state.json: No such file"),
    "an empty folder": (lambda path: [file.unlink() for file in path.iterdir()], "manifest.json: No such file"),
    "an endless manifest": (lambda path: link(path / "manifest.json", "/dev/zero"), "manifest.json is not a file"),
    "an endless file": (lambda path: link(path / "state.json", "/dev/zero"), "state.json is not a regular file"),
    "a file outside": (lambda path: rewrite_entry(path, "../outside", [1, "0"]), "(its entry '../outside')"),
    "a device": (lambda path: rewrite_entry(path, "/dev/zero", [0, "0"]), "(its entry '/dev/zero')"),
    "an entry of another type": (lambda path: rewrite_entry(path, "state.json", 7), "(its entry 'state.json')"),
    "a list of files": (lambda path: rewrite_entry(path, "files", []), "manifest.json is damaged"),
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("damage", INCOMPLETE)
def test_an_incomplete_folder_is_no_checkpoint(saver: toy.Saver, damage: str) -> None:
    older, newest = saver.save(10), saver.save(20)
    harm, reason = INCOMPLETE[damage]
    harm(newest)
    assert complete_checkpoints(saver.folder) == [older]
    warnings: list[str] = []
    assert newest_intact(saver.folder, warnings.append).path == older
    (warning,) = warnings
    assert warning.startswith(f"warning: {newest} is not used: ")
    assert reason in warning
    harm(older)
    refused(lambda: newest_intact(saver.folder, unexpected), "none of them is intact")
    saver.save(20)
    assert 20 in saver.positions(), "the same position, written again, is whole"


def test_what_a_kill_left_of_a_removed_checkpoint_goes_with_the_next_save(saver: toy.Saver) -> None:
    """Older versions removed checkpoints under their own names, file by file."""
    for name in ("step-00000003", "rows-000000000005"):
        shutil.copytree(saver.save(10), saver.folder / name)
        (saver.folder / name / "manifest.json").unlink()
    saver.save(20)
    assert saver.names() == ["rows-000000000010", "rows-000000000020"]


def test_a_damaged_state_is_named(saver: toy.Saver) -> None:
    path = saver.save(10)
    for content in ("{", "null", '{"unknown": 1}'):
        (path / "state.json").write_text(content)
        refused(lambda: read_state(path), f"{path}: state.json is damaged (")


@pytest.mark.slow
def test_a_process_killed_in_a_write_leaves_the_older_checkpoints(tmp_path: Path) -> None:
    done = alone("checkpoints.py", "killed", tmp_path)
    assert done.status == -signal.SIGKILL, done
    saver = toy.Saver(WORLD, COLLECTIVES, tmp_path / "killed")
    left, *names = saver.names()
    assert left.startswith(".rows-000000000030."), "the case is about what a kill leaves"
    assert names == ["rows-000000000010", "rows-000000000020"]
    newest = newest_intact(saver.folder, unexpected)
    assert newest.path.name == "rows-000000000020"
    saver.save(30)
    assert saver.names() == [*names, "rows-000000000030"], "the next write removes what was left"


def test_a_checkpoint_survives_a_failing_rewrite(saver: toy.Saver) -> None:
    path = saver.save(10)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    for variable in saver.optimizer.trainable:
        variable.assign(variable.value + 1.0)

    def fail(into: Path) -> None:
        assert complete_checkpoints(saver.folder) == [path]
        raise OSError("no space left")

    saver.before_each_model(fail)
    refused(lambda: saver.save(10), f"{path}: the checkpoint cannot be written: no space left")
    assert saver.names() == [path.name]
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert newest_intact(saver.folder, unexpected).path == path


# -- full disks ---------------------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Writing beyond this size of a file fails, as beyond the end of a disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_for_a_file_leaves_the_older_checkpoints(saver: toy.Saver) -> None:
    # Many small files make the manifest, which is written last, the largest file.
    saver.before_each_model(lambda into: [(into / f"file-{n}").write_text("x") for n in range(100)])
    path = saver.save(10)
    names = ("model.safetensors", "optimizer.safetensors", "manifest.json")
    sizes = {name: (path / name).stat().st_size for name in ("state.json", *names)}
    for name in names:
        smaller = [size for size in sizes.values() if size < sizes[name]]
        with files_of_at_most(max(smaller, default=0)):  # all files fit but this one and larger ones
            refused(lambda: saver.save(20), f"{saver.folder}/rows-000000000020: the checkpoint cannot be written")
        assert saver.names() == [path.name], f"no room for {name}"
        assert newest_intact(saver.folder, unexpected).path == path
    saver.save(20)
    assert saver.positions() == [10, 20]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is soon full."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(tmp_path)]
    may_mount = os.geteuid() == 0 and shutil.which("mount") is not None
    if not may_mount or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_leaves_the_older_checkpoints(small_disk: Path) -> None:
    saver = toy.Saver(WORLD, COLLECTIVES, small_disk)
    path = saver.save(10)
    filler = small_disk / "filler"
    for free_bytes in (0, 4096):
        filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - free_bytes))
        refused(lambda: saver.save(20), "cannot be written")
        assert saver.names() == [path.name]
        assert newest_intact(saver.folder, unexpected).path == path
        filler.unlink()
    saver.save(20)
    assert saver.positions() == [10, 20]
