"""SPMD: parts of one training that go on from each other's checkpoints, and checkpoints that something happens to.

Usage: checkpoints.py PART FOLDER [SMALL_DISK]
  first    one rank: trains to step 7 of 20 in FOLDER/run; then is killed while it writes FOLDER/killed
  second   two ranks: trains from 7 to 14 and leaves because rank 1 alone got SIGUSR1 (exit status 75)
  third    one rank: trains to the end; looks at all the rest. SMALL_DISK is a file system of some 100 KB
"""

import json
import os
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
import pytest
import toy

from distributed.checkpoint import (
    Checkpoints,
    State,
    check_settings,
    complete_checkpoints,
    newest_intact,
    read_state,
    seal,
    set_aside,
)
from distributed.collectives import open_collectives
from distributed.optimizer import AllreduceOptimizer
from distributed.order import Order
from distributed.world import World, one_line
from ringbert.errors import InputError, Preempted


def train_until(world: World, collectives, folder: Path, step_of_part: int, rank: int) -> None:
    """Trains until SIGUSR1, which this program sends to one rank in the given step; all ranks leave."""
    weighed = 0

    def weights(batch: dict[str, np.ndarray]) -> dict[str, float]:
        nonlocal weighed
        weighed += 1
        if weighed == step_of_part and world.rank == rank:
            os.kill(os.getpid(), signal.SIGUSR1)
        return toy.weights(batch)

    toy.train(world, collectives, folder, weights=weights)


def interrupted_training(world: World, collectives, folder: Path) -> np.ndarray:
    """The end values of a training in two parts, the first of which is stopped after step 9."""
    with pytest.raises(Preempted):
        train_until(world, collectives, folder, 9, rank=world.size - 1)
    state = world.on_first(lambda: read_state(complete_checkpoints(folder / "checkpoints")[-1]))
    assert (state.step, state.position, state.steps) == (9, 9 * toy.GLOBAL_BATCH, 20), state
    optimizer, state = toy.train(world, collectives, folder)
    assert (state.step, state.position) == (20, 20 * toy.GLOBAL_BATCH), state
    return toy.flat(optimizer)


def check_bits(world: World, collectives, folder: Path) -> np.ndarray:
    whole = toy.flat(toy.train(world, collectives, folder / f"whole-{world.size}")[0])
    parts = interrupted_training(world, collectives, folder / f"parts-{world.size}")
    assert whole.tobytes() == parts.tobytes(), f"a resumed training differs by {np.abs(whole - parts).max()}"
    return whole


def check_other_batch(world: World, collectives, folder: Path) -> None:
    """With other ranks and --train_batch_size the global batch changes: rows go on where they were."""
    rows_seen: list[int] = []

    def collate(fields: dict) -> dict[str, np.ndarray]:
        rows_seen.extend(fields["row"])
        return toy.collate(fields)

    toy.train(world, collectives, folder, steps=7)
    rewrite_state(folder / "checkpoints/step-00000007", steps=20)
    _, state = toy.train(world, collectives, folder, steps=28, global_batch=10, collate=collate)
    # 98 rows are done, which is 9.8 steps of 10: 18 of 28 are left.
    assert rows_seen == Order(toy.NUM_ROWS, 7).rows_at(98, 98 + 180).tolist(), "rows are lost or seen again"
    assert (state.step, state.position, state.global_batch_size) == (28, 278, 10), state


def rewrite_state(checkpoint: Path, **changes: object) -> None:
    """Makes the checkpoint at the end of a short training one in the middle of a longer."""
    state = json.loads((checkpoint / "state.json").read_text()) | changes
    (checkpoint / "state.json").write_text(json.dumps(state))
    (checkpoint / "manifest.json").unlink()
    seal(checkpoint, json.loads((checkpoint / "state.json").read_text())["position"])


# -- what happens to checkpoints ----------------------------------------------------------------------------------


class Saver:
    """Saves a toy's optimizer and model as the checkpoint of any step."""

    def __init__(self, world: World, collectives, folder: Path, keep: int = 5):
        self.model = toy.make_model(seed=1)
        self.optimizer: AllreduceOptimizer = toy.make_optimizer(self.model, world, collectives)
        self.checkpoints: Checkpoints = toy.make_checkpoints(folder, world, self.model, keep)
        self.folder = folder / "checkpoints"

    def save(self, step: int) -> Path:
        self.save_state(State(10 * step, step, 100, 10, {"--seed": 7}))
        return self.folder / f"step-{step:08d}"

    def save_state(self, state: State) -> None:
        self.checkpoints.save(self.optimizer, state)
        self.checkpoints.finish()

    def before_each_model(self, action: Callable[[Path], None]) -> None:
        copy_model = self.checkpoints.copy_model

        def copy() -> Callable[[Path], None]:
            write_model = copy_model()
            return lambda into: (action(into), write_model(into))

        self.checkpoints.copy_model = copy

    def steps(self) -> list[int]:
        return [int(path.name.removeprefix("step-")) for path in complete_checkpoints(self.folder)]

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


def be_killed_in_a_write(world: World, collectives, folder: Path) -> None:
    saver = Saver(world, collectives, folder)
    saver.save(1)
    saver.save(2)

    def die(into: Path) -> None:
        with (into / "model.safetensors").open("wb") as file:
            file.write(b"half of a file")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    saver.before_each_model(die)
    saver.save(3)


def check_killed_in_a_write(world: World, collectives, folder: Path) -> None:
    saver = Saver(world, collectives, folder)
    assert saver.files() == [".step-00000003.tmp", "step-00000001", "step-00000002"], saver.files()
    assert newest_intact(saver.folder, unexpected) == saver.folder / "step-00000002"
    saver.save(3)
    assert saver.steps() == [1, 2, 3]
    left = saver.files()
    assert left == ["step-00000001", "step-00000002", "step-00000003"], f"after the next save {left} are there"


def unexpected(text: str) -> None:
    raise AssertionError(f"told without need: {text}")


def check_contents(world: World, collectives, folder: Path) -> None:
    saver = Saver(world, collectives, folder)
    saver.optimizer.optimizer.iterations.assign(12)
    for number, variable in enumerate(saver.optimizer.optimizer.variables[2:]):
        variable.assign(np.full(variable.shape, number + 0.5))
    path = saver.save(12)
    expected = {"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"}
    assert {file.name for file in path.iterdir()} == expected
    assert read_state(path) == State(120, 12, 100, 10, {"--seed": 7})
    other = Saver(world, collectives, folder / "other")
    other.checkpoints.restore(path, other.optimizer)
    for name, variable in saver.optimizer.state().items():
        restored = other.optimizer.state()[name]
        assert restored.dtype == variable.dtype
        assert np.array_equal(restored.numpy(), variable.numpy()), f"optimizer variable {name} is not restored"
    assert other.optimizer.steps_done == 12
    wider = toy.make_optimizer(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]), world, collectives)
    refused(lambda: saver.checkpoints.restore(path, wider), "does not fit this optimizer and model")


def check_background(world: World, collectives, folder: Path) -> None:
    """What is written is what stood at the save, and training goes on meanwhile; a failure is told by the next."""
    saver, may_write = Saver(world, collectives, folder), threading.Event()
    before = toy.flat(saver.optimizer)
    saver.before_each_model(lambda into: may_write.wait(60))
    saver.checkpoints.save(saver.optimizer, State(10, 1, 100, 10, {}))
    for variable in (*saver.optimizer.trainable, *saver.optimizer.optimizer.variables[2:]):
        variable.assign(variable.value + 1.0)
    assert saver.steps() == []
    may_write.set()
    saver.checkpoints.finish()
    after = toy.flat(saver.optimizer)
    toy.load_model(saver.model, saver.folder / "step-00000001")
    saver.checkpoints.restore(saver.folder / "step-00000001", saver.optimizer)
    assert np.array_equal(toy.flat(saver.optimizer), before)
    assert not np.array_equal(after, before)
    assert not any(variable.numpy().any() for variable in saver.optimizer.optimizer.variables[2:])

    def fail(into: Path) -> None:
        raise OSError("no space left")

    saver.before_each_model(fail)
    saver.checkpoints.save(saver.optimizer, State(20, 2, 100, 10, {}))
    refused(lambda: saver.checkpoints.save(saver.optimizer, State(30, 3, 100, 10, {})), "no space left")
    saver.checkpoints.finish()
    assert saver.files() == ["step-00000001"]


def check_keep(world: World, collectives, folder: Path) -> None:
    saver = Saver(world, collectives, folder, keep=2)
    for step in range(1, 6):
        saver.save(step)
        assert saver.steps() == [s for s in (step - 1, step) if s > 0], saver.steps()
    saver.save(5)
    assert saver.steps() == [4, 5], "the same step again"
    # With twice the ranks the same progress has half the step: the newest is the one that saw most rows.
    ahead = State(60, 3, 50, 20, {"--seed": 7})
    saver.save_state(ahead)
    assert complete_checkpoints(saver.folder)[-1].name == "step-00000003", saver.files()
    assert saver.files() == ["step-00000003", "step-00000005"], saver.files()
    # A run that starts anew in this folder puts the old one aside: it is neither resumed nor deleted.
    aside = set_aside(saver.folder)
    assert aside is not None
    saver.save(2)
    assert saver.files() == ["step-00000002"], saver.files()
    assert sorted(path.name for path in aside.iterdir()) == ["step-00000003", "step-00000005"]
    # One that starts from another run's early state keeps what it has just written.
    for position in (900, 910):
        saver.save_state(State(position, 90 + position % 7, 100, 10, {"--seed": 7}))
    assert saver.save(1).is_dir()


def check_damage(world: World, collectives, folder: Path) -> None:
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        saver = Saver(world, collectives, folder / f"flip-{name}")
        older, newest = saver.save(1), saver.save(2)
        flip_a_byte(newest / name)
        told: list[str] = []
        assert newest_intact(saver.folder, told.append) == older, f"a byte of {name} flipped, and it is used"
        assert len(told) == 1, told
        assert str(newest) in told[0], told
        assert name in told[0], told
        assert "older" in told[0], told
    flip_a_byte(older / name)
    assert newest_intact(saver.folder, told.append) is None

    def truncate(path: Path) -> None:
        os.truncate(path, path.stat().st_size - 1)

    incomplete: dict[str, Callable[[Path], None]] = {
        "a truncated model": lambda path: truncate(path / "model.safetensors"),
        "a truncated manifest": lambda path: truncate(path / "manifest.json"),
        "no manifest": lambda path: (path / "manifest.json").unlink(),
        "an empty manifest": lambda path: os.truncate(path / "manifest.json", 0),
        "a manifest of null": lambda path: (path / "manifest.json").write_text("null"),
        "a file missing": lambda path: (path / "state.json").unlink(),
        "an empty folder": lambda path: [file.unlink() for file in path.iterdir()],
    }
    for what, damage in incomplete.items():
        saver = Saver(world, collectives, folder / what.replace(" ", "-"))
        older, newest = saver.save(1), saver.save(2)
        damage(newest)
        assert complete_checkpoints(saver.folder) == [older], f"{what} counts as complete"
        assert newest_intact(saver.folder, unexpected) == older, what
    refused(lambda: read_state(newest), "state.json is damaged")


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def check_changed_settings(world: World, collectives, folder: Path) -> None:
    check_settings({"a": 1, "b": None}, {"b": None, "a": 1}, folder)
    cases = (({"--rate": 1.0}, {"--rate": 2.0}, "1.0", "2.0"), ({"--rate": 1.0}, {}, "1.0", "None"),
             ({}, {"--rate": 2.0}, "None", "2.0"))  # fmt: skip
    for saved, now, before, after in cases:
        refused(lambda saved=saved, now=now: check_settings(saved, now, folder),
                f"{folder} holds a run with --rate = {before}, this command has {after}: ")  # fmt: skip
    toy.train(world, collectives, folder, steps=1)
    refused(lambda: toy.train(world, collectives, folder, settings={"--seed": 8}),
            "--seed = 7, this command has 8")  # fmt: skip


def refused(call: Callable[[], object], needed: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    line = one_line(caught.value)
    assert needed in line, f"{needed!r} is not in: {line}"
    assert len(line) < 400, line


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


def check_full_disk(world: World, collectives, folder: Path, small_disk: str) -> None:
    saver = Saver(world, collectives, folder)
    # Many small files make the manifest, which is written last, the largest file.
    saver.before_each_model(lambda into: [(into / f"file-{n}").write_text("x") for n in range(100)])
    path = saver.save(1)
    names = ("model.safetensors", "optimizer.safetensors", "manifest.json")
    sizes = {name: (path / name).stat().st_size for name in ("state.json", *names)}
    for name in names:
        smaller = [size for size in sizes.values() if size < sizes[name]]
        with files_of_at_most(max(smaller, default=0)):  # all files fit but this and larger ones
            refused(lambda: saver.save(2), f"{saver.folder}/step-00000002: the checkpoint cannot be written")
        assert saver.files() == ["step-00000001"], f"no room for {name}: {saver.files()} are there"
        assert newest_intact(saver.folder, unexpected) == path
    saver.save(2)
    assert saver.steps() == [1, 2]

    if not small_disk:
        return
    saver = Saver(world, collectives, Path(small_disk))
    path = saver.save(1)
    for left in (0, 4096):
        filler = Path(small_disk) / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - left))
        refused(lambda: saver.save(2), "cannot be written")
        assert saver.files() == ["step-00000001"], f"a full disk leaves {saver.files()}"
        assert newest_intact(saver.folder, unexpected) == path
        filler.unlink()
    saver.save(2)
    assert saver.steps() == [1, 2]


def main() -> None:
    part, folder = sys.argv[1], Path(sys.argv[2])
    with World.join(device="cpu") as world:
        collectives = open_collectives(world)
        if part == "first":
            with pytest.raises(Preempted):
                train_until(world, collectives, folder / "run", 7, rank=0)
            be_killed_in_a_write(world, collectives, folder / "killed")
        elif part == "second":
            check_bits(world, collectives, folder)
            train_until(world, collectives, folder / "run", 7, rank=1)
        elif part == "third":
            chained, state = toy.train(world, collectives, folder / "run")
            assert (state.step, state.position) == (20, 20 * toy.GLOBAL_BATCH)
            whole = check_bits(world, collectives, folder)
            np.testing.assert_allclose(toy.flat(chained), whole, rtol=1e-12, err_msg="1 -> 2 -> 1 ranks")
            check_killed_in_a_write(world, collectives, folder / "killed")
            checks = (
                check_other_batch,
                check_contents,
                check_background,
                check_keep,
                check_damage,
                check_changed_settings,
            )
            for check in checks:
                check(world, collectives, folder / check.__name__)
            check_full_disk(world, collectives, folder / "full", sys.argv[3] if len(sys.argv) > 3 else "")
            print(json.dumps({"step": state.step}), flush=True)


main()
