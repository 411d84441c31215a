"""The pictures of docs/scaling.md: what the scripts make of figures, and how large the pictures are."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tasks.bench.timing import Ratio
from tasks.run_files import RunFiles

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 100_000


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["scaling_curves.png", "scaling_speed.png"])
def test_the_pictures_are_small_and_shown(name):
    assert (ROOT / "docs" / name).stat().st_size < MOST_BYTES
    assert f"]({name})" in (ROOT / "docs/scaling.md").read_text()


@pytest.mark.slow
def test_speeds_become_a_table_and_a_picture(tmp_path):
    scaling = script("scaling")
    speeds = {
        4: {
            "1 rank, a core each": scaling.Speed(10.0, Ratio(1.0, 1.0, 1.0), 1),
            "2 ranks, 2 hosts": scaling.Speed(15.0, Ratio(1.5, 1.4, 1.6), 2),
        },
        16: {
            "1 rank, a core each": scaling.Speed(12.0, Ratio(1.0, 1.0, 1.0), 1),
            "2 ranks, 2 hosts": scaling.Speed(23.0, Ratio(1.9, 1.9, 1.9), 2),
        },
    }
    assert scaling.table(speeds).splitlines()[2:] == [
        "| 4 | 1 rank, a core each | 10.0 | 1.00 | 100% |",
        "| 4 | 2 ranks, 2 hosts | 15.0 | 1.50 (1.40 to 1.60) | 75% |",
        "| 16 | 1 rank, a core each | 12.0 | 1.00 | 100% |",
        "| 16 | 2 ranks, 2 hosts | 23.0 | 1.90 | 95% |",
    ]
    scaling.draw(speeds, tmp_path / "a.png", "2 cores")
    assert 5_000 < (tmp_path / "a.png").stat().st_size < MOST_BYTES


@pytest.mark.slow
def test_runs_become_a_table_and_a_picture(tmp_path):
    curves = script("scaling_curves")
    fixed = [make_run(f"fixed-{size}", size, batch=32, steps=100) for size in (1, 2, 4)]
    scaled = [make_run("scaled-4", 4, batch=128, steps=25)]
    examples, losses = curves.curve(scaled[0])
    assert examples.tolist() == [128 * step for step in range(1, 26)]
    np.testing.assert_allclose(
        curves.smoothed(losses, 3)[[0, 1, 24]], [losses[0], losses[:2].mean(), losses[-3:].mean()]
    )
    line = curves.table(scaled).splitlines()[-1]
    assert re.fullmatch(r"\| scaled-4 \| 4 \| 128 \| 25 \| 2 \| 0\.002 \| 0\.\d{3} \| 90\.0 \|", line)
    curves.draw(fixed, scaled, tmp_path / "a.png")
    assert 5_000 < (tmp_path / "a.png").stat().st_size < MOST_BYTES


def make_run(name: str, size: int, batch: int, steps: int) -> RunFiles:
    plan = {
        "size": size,
        "global_batch_size": batch,
        "steps": steps,
        "warmup_steps": steps // 10,
        "learning_rate": 2e-3,
    }
    lines = [{"step": step, "loss": 4.0 / step} for step in range(1, steps + 1)]
    return RunFiles(name, plan, "", [], lines, [], 0, {"f1": 90.0})
