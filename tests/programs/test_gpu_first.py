"""benchmarks.gpu_first: its parts fit into an hour, are ordered by value, and go on where they
were."""

import re
import sys
from pathlib import Path

import pytest
from harness.jobs import shell
from harness.parsing import ROOT
from harness.program_runs import objects_in

from benchmarks.gpu_first import (
    TUNES_FUSIONS,
    Load,
    Part,
    Plan,
    Pythons,
    minutes_of,
    parts_of,
    run,
)


def first(*arguments):
    """The program without TensorFlow: a Python without site-packages."""
    return shell(sys.executable, "-S", "-m", "benchmarks.gpu_first", *arguments)


def other_python(path, status=0):
    """A Python of another environment: it says what it was to run, and ends."""
    path.write_text(f'#!/bin/sh\necho "ran $*"\nexit {status}\n')
    path.chmod(0o755)
    return path


def found(out):
    return objects_in(out / "findings.jsonl")


def test_help_lists_the_parts_in_order_with_limits_of_an_hour_at_most():
    text = first("--help").stdout
    limits = {name: int(limit) for name, limit in re.findall(r"(?m)^  (\w+) +(\d+) s  ", text)}
    told = re.search(r"add up to (\d+) minutes", text)
    assert sum(limits.values()) == 60 * int(told[1]) <= 3600
    page = (ROOT / "docs/machines.md").read_text()
    assert f"all together {told[1]} minutes" in page
    names = list(limits)
    assert names[0] == "doctor_quick"  # is it there
    for together in (
        "squad_data squad_whole",
        "squad_killed squad_resumed",
        "export_small exported_small",
        "export_small_plain export_small_cudnn exported_small_cudnn",
        "export_base exported_base",
        # a ratio needs both: one directly after the other
        "export_plain exported_plain export_cudnn exported_cudnn",
        "bench_base bench_base_again bench_base_fusions bench_base_cudnn",
        "bench_modern bench_modern_cudnn",
        "bench_large torch_large",
    ):
        assert f" {together} " in f" {' '.join(names)} "
    # how fast, beside whom, whether it learns at all, whether it is right, other sizes
    by_value = ["exported_base", "exported_cudnn", "exported_base_fusions", "bench_base"]
    by_value += ["bench_base_cudnn", "torch_base", "ranks_inside", "squad_whole", "doctor"]
    by_value += ["squad_killed", "bench_large", "bench_base_fp16"]
    assert sorted(by_value, key=names.index) == by_value


def test_with_few_minutes_a_whole_training_is_first():
    plan = Plan(Path("out"), 2, Pythons(), Load())
    few, many = (parts_of(plan, minutes) for minutes in (5, 6))
    assert [part.name for part in few[:2]] == ["squad_data", "squad_whole"]
    assert sum(part.limit_s for part in few[:2]) < 300
    assert sorted(part.name for part in few) == sorted(part.name for part in many)


def test_flags_that_tune_are_of_one_command_each():
    plan = Plan(Path("out"), 2, Pythons("torch", "jax", "ours"), Load())
    tuned = [part for part in parts_of(plan) if "XLA_FLAGS" in " ".join(part.command)]
    assert [part.name for part in tuned] == ["exported_base_fusions", "bench_base_fusions"]
    for part in tuned:
        assert part.command[:2] == ["env", f"XLA_FLAGS={TUNES_FUSIONS}"]


def test_a_rehearsal_leaves_out_what_only_a_gpu_computes(tmp_path):
    python = other_python(tmp_path / "jax")
    out = tmp_path / "out"
    out.mkdir()
    for name in ("small", "small_cudnn", "cudnn"):
        (out / f"{name}.json").touch()
    printed = first(out, f"--jax_python={python}", "--rehearse").stdout
    for name in ("exported_small_cudnn", "exported_cudnn"):
        assert f"{name} left out: it needs a GPU" in printed
    assert [part["name"] for part in found(out)] == ["exported_small"]


def test_a_part_too_many_is_refused_at_every_start():
    parts = parts_of(Plan(Path("out"), 2, Pythons(), Load()))
    one_more = Part("more", "", 3600 - sum(part.limit_s for part in parts), "jax", [])
    assert minutes_of([*parts, one_more]) == 60
    with pytest.raises(AssertionError, match="at most 60"):
        minutes_of([*parts, one_more, Part("last", "", 1, "jax", [])])


def test_what_fits_into_the_minutes_runs_and_the_rest_the_next_time(tmp_path):
    pythons = [
        f"--torch_python={other_python(tmp_path / 'torch', status=3)}",
        f"--jax_python={other_python(tmp_path / 'jax')}",
    ]
    out = tmp_path / "out"
    out.mkdir()
    printed = first(out, *pythons, "--minutes=2").stdout
    assert not (out / "findings.jsonl").exists()  # nobody brought the exported step
    assert "exported_small left out: " in printed
    assert f"{out}/small.json is missing" in printed
    assert "bench_base left out: no Python with tensorflow" in printed
    for name in ("small", "base"):
        (out / f"{name}.json").touch()

    printed = first(out, *pythons, "--minutes=1").stdout
    assert [part["name"] for part in found(out)] == ["exported_small"]  # the one of 45 s
    assert "torch_base left out: its limit is 150 s, " in printed
    with (out / "findings.jsonl").open("a") as file:
        file.write('{"name": "torch_base", "status": 0, "seco')  # the machine went away

    first(out, *pythons)
    names = ["exported_small", "exported_base", "exported_base_fusions", "torch_base"]
    names += ["torch_large"]
    assert [part["name"] for part in found(out)] == names
    assert [part["status"] for part in found(out)] == [0, 0, 0, 3, 3]  # a failure stops nothing
    ours = found(out)[1]
    assert ours["last_lines"] == [f"ran benchmarks/jax_step.py {out}/base.mlir --device=cuda"]
    assert (out / "exported_base.log").read_text().splitlines() == ours["last_lines"]
    first(out, *pythons)
    assert len(found(out)) == 5


def test_a_part_ends_at_its_limit_and_keeps_its_output(tmp_path):
    command = ["sh", "-c", "echo begun; sleep 600"]
    ended = run(Part("endless", "", 3, "torch", command), tmp_path)
    assert ended["status"] is None
    assert ended["last_lines"] == ["begun"]
    assert ended["seconds"] < 600
