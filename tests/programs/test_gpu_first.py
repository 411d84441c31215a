"""benchmarks.gpu_first: its parts fit into an hour, are ordered by value, and go on where they
were."""

import re
import sys
from pathlib import Path

import pytest
from harness.jobs import shell
from harness.parsing import ROOT
from harness.program_runs import objects_in

from benchmarks.gpu_first import Load, Part, Plan, Pythons, minutes_of, parts_of, run


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
    assert names[:3] == ["doctor_quick", "bench_base", "torch_base"]  # is it there, how fast
    for together in (
        "squad_data squad_killed squad_resumed",
        "export_small exported_small",
        "export_base exported_base",
        "bench_large torch_large",  # a ratio needs both: one directly after the other
    ):
        assert f" {together} " in f" {' '.join(names)} "
    # what trains at all, before what trains fast or in another way
    assert names.index("doctor") < names.index("bench_large") < names.index("bench_base_fp16")


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

    printed = first(out, *pythons, "--minutes=2").stdout
    assert [part["name"] for part in found(out)] == ["exported_small"]  # the one of 90 s
    assert "torch_base left out: its limit is 180 s, 1" in printed
    with (out / "findings.jsonl").open("a") as file:
        file.write('{"name": "torch_base", "status": 0, "seco')  # the machine went away

    first(out, *pythons)
    names = ["exported_small", "torch_base", "exported_base", "torch_large"]
    assert [part["name"] for part in found(out)] == names
    assert [part["status"] for part in found(out)] == [0, 3, 0, 3]  # a failure stops nothing
    ours = found(out)[2]
    assert ours["last_lines"] == [f"ran benchmarks/jax_step.py {out}/base.mlir --device=cuda"]
    assert (out / "exported_base.log").read_text().splitlines() == ours["last_lines"]
    first(out, *pythons)
    assert len(found(out)) == 4


def test_a_part_ends_at_its_limit_and_keeps_its_output(tmp_path):
    command = ["sh", "-c", "echo begun; sleep 600"]
    ended = run(Part("endless", "", 3, "torch", command), tmp_path)
    assert ended["status"] is None
    assert ended["last_lines"] == ["begun"]
    assert ended["seconds"] < 600
