"""Checkpoints are whole or not there, and training goes on from them at the exact row."""

import os
import resource
import shutil
import threading
import time
from dataclasses import asdict
from functools import partial

import keras
import numpy as np
import pytest
from harness import toy
from harness.mpi import HANGS_S
from harness.refusals import refused

from distributed.checkpoint import SavedOptimizer
from distributed.collectives import Collectives
from distributed.found import (
    checkpoint_at,
    complete_checkpoints,
    newest_intact,
    read_checkpoint,
)
from distributed.order import Order
from distributed.plan import State
from distributed.world import World
from ringbase.files import read_json, write_json
from ringbase.manifest import seal

WORLD, COLLECTIVES = World(), Collectives()


@pytest.fixture
def saver(tmp_path):
    return toy.Toy(WORLD, COLLECTIVES, tmp_path)


def variables_of(saver):
    return [*saver.optimizer.trainable, *saver.optimizer.optimizer.variables[2:]]


def change_variables(saver):
    for number, variable in enumerate(variables_of(saver)):
        variable.assign(variable.value + 1.0 + number)


def replace_state(path, state):
    (path / "manifest.json").unlink()
    write_json(path / "state.json", state)
    seal(path, state["position"])


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_checkpoint_holds_what_stood_at_the_save_while_training_goes_on(tmp_path):
    may_write = threading.Event()

    class SlowModel(toy.SavedModel):
        def copied(self):
            write = super().copied()
            return lambda into: may_write.wait(HANGS_S) and write(into)

    saver = toy.Toy(WORLD, COLLECTIVES, tmp_path, saved_model=SlowModel)
    saver.optimizer.optimizer.iterations.assign(12)
    change_variables(saver)
    kept = [variable.numpy() for variable in variables_of(saver)]
    state = State(120, 12, 100, 10, {"--seed": 7})
    saver.checkpoints.save(state)
    change_variables(saver)
    assert saver.positions() == []
    may_write.set()
    saver.checkpoints.finish()
    (path,) = complete_checkpoints(saver.folder)
    files = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
    assert sorted(os.listdir(path)) == files
    assert read_checkpoint(path) == state
    other = toy.Toy(WORLD, COLLECTIVES, tmp_path / "other")
    other.checkpoints.restore(path)
    assert other.optimizer.optimizer.iterations.numpy() == 12
    for expected, restored in zip(kept, variables_of(other), strict=True):
        np.testing.assert_array_equal(restored.numpy(), expected, err_msg=restored.path)
    wider = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    optimizer = toy.make_optimizer(wider, WORLD, COLLECTIVES)
    refused(lambda: SavedOptimizer(optimizer).restore(path), path)


def test_the_newest_and_the_best_are_kept(tmp_path):
    """Step 2 of one rank is at row 20, step 2 of four ranks at row 80."""
    saver, evaluations = toy.Toy(WORLD, COLLECTIVES, tmp_path, keep_checkpoints=2), [[20.0, 0.9]]
    saver.save(10)
    best = saver.save(20, step=2, evaluations=evaluations)
    weights = (best / "model.safetensors").read_bytes()
    change_variables(saver)
    for step in (1, 2, 3):
        saver.save(40 * step, step=step, global_batch_size=40, evaluations=evaluations)
    assert saver.positions() == [20, 80, 120]
    assert (best / "model.safetensors").read_bytes() == weights
    assert checkpoint_at(saver.folder, 20)[1].global_batch_size == 10
    old = best.rename(best.with_name(f"{best.name}.old"))  # left by a kill between two renames
    assert checkpoint_at(saver.folder, 20)[0] == old
    old.rename(best)
    early = saver.save(30, evaluations=evaluations)
    assert early.is_dir(), (
        "a run that starts anew from an early state keeps what it has just written"
    )
    flip_a_byte(best / "model.safetensors")
    refused(lambda: checkpoint_at(saver.folder, 20), best, "model.safetensors")
    shutil.rmtree(best)
    refused(lambda: checkpoint_at(saver.folder, 20), saver.folder, "20")


def test_another_batch_goes_on_at_the_same_row(tmp_path):
    rows_seen = []

    def collate(fields):
        rows_seen.extend(fields["row"])
        return toy.collate(fields)

    toy.train(WORLD, COLLECTIVES, tmp_path, num_train_steps=7, save_checkpoints_minutes=1e-9)
    *_, before, newest = complete_checkpoints(tmp_path / "checkpoints")
    assert read_checkpoint(before).step == 6, (
        "a checkpoint comes after some time, whatever the steps"
    )
    # the middle of a longer training
    replace_state(newest, asdict(read_checkpoint(newest)) | {"steps": 20})
    flags = {"num_train_steps": 28, "global_batch_size": 10, "save_checkpoints_steps": 4}
    _, state = toy.train(WORLD, COLLECTIVES, tmp_path, collate, **flags)
    # 98 rows are done, which is 9.8 steps of 10: 18 of 28 are left.
    assert rows_seen == Order(toy.NUM_ROWS, 7).rows_at(98, 98 + 180).tolist(), (
        "rows are lost or seen again"
    )
    assert (state.step, state.position, state.global_batch_size) == (28, 278, 10)
    written = complete_checkpoints(tmp_path / "checkpoints")
    positions = [read_checkpoint(path).position for path in written]
    assert positions == [98 + 10 * (step - 10) for step in (12, 16, 20, 24, 28)]


def entry(path, name, value):
    """Puts an entry into the manifest beside a file."""
    manifest = read_json(path.parent / "manifest.json")
    manifest["files"][name] = value
    write_json(path.parent / "manifest.json", manifest)


def link(path):
    path.unlink()
    path.symlink_to("/dev/zero")


# What is done to a checkpoint, and which of its files the warning names.
@pytest.mark.parametrize(
    ("named", "harm"),
    [
        ("model.safetensors", flip_a_byte),
        ("optimizer.safetensors", flip_a_byte),
        ("state.json", flip_a_byte),
        ("model.safetensors", lambda path: os.truncate(path, 600)),
        ("state.json", lambda path: path.unlink()),
        ("manifest.json", lambda path: os.truncate(path, 50)),
        ("manifest.json", lambda path: path.unlink()),
        ("state.json", link),
        ("manifest.json", link),
        ("outside", lambda path: entry(path, "../outside", [1, "0"])),
        ("zero", lambda path: entry(path, "/dev/zero", [0, "0"])),
        ("state.json", lambda path: entry(path, "state.json", 7)),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_by_name_and_refused_when_none_is_left(
    saver, tmp_path, named, harm
):
    older, newest = saver.save(10), saver.save(20)
    harm(newest / named)
    warnings = []
    assert newest_intact(saver.folder, warnings.append)[0] == older, "the damaged one is used"
    assert all(str(newest) in warning and named in warning for warning in warnings)
    assert len(warnings) == 1
    harm(older / named)
    refused(lambda: newest_intact(saver.folder, pytest.fail), saver.folder, named)
    toy.Toy(WORLD, COLLECTIVES, tmp_path).save(20)
    assert newest_intact(saver.folder, lambda warning: None)[1].position == 20, (
        "written again, it is whole"
    )


@pytest.mark.parametrize("change", [{"mood": "good"}, {"evaluated": None}])
def test_a_state_of_another_version_is_passed_over_and_refused_when_none_is_left(saver, change):
    """One with a field that this version does not know, and one without a field that it needs."""
    older, newest = saver.save(10), saver.save(20)
    for path in (newest, older):
        state = read_json(path / "state.json") | change
        replace_state(path, {name: value for name, value in state.items() if value is not None})
        if path == newest:
            warnings = []
            assert newest_intact(saver.folder, warnings.append)[0] == older
            assert len(warnings) == 1
    refused(
        lambda: newest_intact(saver.folder, pytest.fail),
        newest / "state.json",
        older / "state.json",
        *change,
    )


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_no_room_for_a_file_leaves_the_older_checkpoints(saver, name):
    """Writing beyond this size of a file fails, as beyond the end of a disk."""
    path, limits = saver.save(10), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((path / name).stat().st_size - 1, limits[1]))
    try:
        refused(lambda: saver.save(20), saver.folder / "rows-000000000020")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(saver.folder) == [path.name]
    saver.save(20)
    assert saver.positions() == [10, 20], "with the bytes of their manifests"


def test_a_checkpoint_that_cannot_be_written_ends_the_training_within_a_step(tmp_path):
    """And not at the next checkpoint, whose steps would be lost too."""
    saver = toy.Toy(WORLD, COLLECTIVES, tmp_path / "sizes")
    path = saver.save(10)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    steps_begun = []

    def weights(batch):
        steps_begun.append(len(steps_begun))
        if len(steps_begun) > 5:  # while the thread fails to write the file
            time.sleep(2)
        return toy.weights(batch)

    largest = (path / "optimizer.safetensors").stat().st_size - 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
    try:
        flags = {"num_train_steps": 20, "save_checkpoints_steps": 5}
        train = partial(toy.train, WORLD, COLLECTIVES, tmp_path / "run", weights=weights)
        refused(lambda: train(**flags), "checkpoints", "cannot be written")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    # the thread may fail before the next step begins; the next checkpoint is due after 10
    assert 5 <= len(steps_begun) < 10


def test_a_training_that_stopped_before_a_skipped_last_step_can_be_finished(tmp_path):
    """As one that did not stop."""
    is_last = False

    def weights(batch):
        return {term: 0.0 if is_last else value for term, value in toy.weights(batch).items()}

    flags = {"save_checkpoints_steps": 3}
    train = partial(toy.train, WORLD, COLLECTIVES, tmp_path, weights=weights)
    train(num_train_steps=3, **flags)
    (path,) = complete_checkpoints(tmp_path / "checkpoints")
    replace_state(path, asdict(read_checkpoint(path)) | {"steps": 4})
    is_last = True
    _, state = train(num_train_steps=4, **flags)
    assert state.step == 4


def test_a_stop_that_takes_longer_than_a_batch_system_leaves_is_a_warning(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("RINGBERT_STOP_S", "0")
    toy.train(WORLD, COLLECTIVES, tmp_path, num_train_steps=6, save_checkpoints_steps=2)
    said = capsys.readouterr().err
    assert said.count("a stop may take") == 1
    assert "sbatch --signal=B:USR1@" in said


def test_the_time_of_a_stop_counts_two_steps_and_the_checkpoint(tmp_path, monkeypatch, capsys):
    """A checkpoint of moments, and steps of 30 s, by the caller's word."""
    for left, step_s, is_said in (("120", 30, False), ("120", 60, True), ("121", 60, False)):
        monkeypatch.setenv("RINGBERT_STOP_S", left)
        saver = toy.Toy(WORLD, COLLECTIVES, tmp_path / f"{left}-{step_s}")
        saver.checkpoints.save(State(120, 12, 100, 10, {}), step_s)
        saver.checkpoints.finish()
        said = capsys.readouterr().err
        assert ("two steps of 60.0 s" in said) == is_said, said
