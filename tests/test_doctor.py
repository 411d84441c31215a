"""bert-doctor: the page, checks that fail or hang, the model in NumPy, single checks, and a quick page."""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from models import golden
from mpi import ROOT, mpirun

from distributed.doctor import gpus, software, storage
from distributed.doctor.examination import Check, Examination, Finding, combined, failed, not_tested, ok, warning
from distributed.world import World
from ringbert.errors import InputError
from tasks.doctor import reference
from tasks.doctor.page import Page, Style, verdict

# -- the page -----------------------------------------------------------------------------------------------------


def check(run=lambda world: ok("fine"), name: str = "name", **options) -> Check:
    return Check("group", name, run, **options)


def examined(*findings: Finding) -> list:
    return [combined(check(name=f"check {number}"), [finding], 1.0) for number, finding in enumerate(findings)]


FINDINGS = (
    ok("all µ is well"),
    warning("slow", "buy a disk"),
    failed("wrong " * 40, "mend it"),
    not_tested("no GPU"),
)


def printed(encoding: str, as_json: bool = False, *findings: Finding) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding)
    page, results = Page(as_json, file), examined(*(findings or FINDINGS))
    page.begin("RingBERT on vm")
    for result in results:
        page.show(result)
    page.end(results, {"seconds": 12.3})
    file.flush()
    return raw.getvalue().decode(encoding)


def test_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = printed("utf-8")
    assert text.startswith("RingBERT on vm\n\ngroup\n  ✓ check 0             all µ is well\n")
    assert "\n  – check 3             not tested: no GPU\n" in text
    assert "\nwhat to do\n  ! check 1             buy a disk\n  ✗ check 2             mend it\n" in text
    assert text.endswith("\nred: 1 failed, 1 warning, 1 ok, 1 not tested; 12 s\n")
    assert max(map(len, text.splitlines())) <= 80
    assert "\033" not in text


def test_a_page_in_ascii() -> None:
    text = printed("ascii")
    assert "  ok check 0             all u is well\n" in text
    assert "  XX check 2             wrong" in text


def test_json_alone() -> None:
    text = printed("utf-8", True)
    whole = json.loads(text)
    assert whole["verdict"] == "red"
    assert whole["counts"] == {"failed": 1, "warning": 1, "ok": 1, "not tested": 1}
    assert [entry["status"] for entry in whole["checks"]] == ["ok", "warning", "failed", "not tested"]
    assert whole["checks"][1]["advice"] == ["buy a disk"]


def test_warnings_are_green() -> None:
    assert verdict(examined(ok("a"), warning("b", "c"), not_tested("d"))) == "green"


def test_colours_only_on_a_terminal_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "UTF-8"

        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert Style.of(Terminal()).mark("failed") == "\033[31m✗\033[0m"
    for name in ("NO_COLOR", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.setenv(name, "1")
        assert Style.of(Terminal()).mark("failed") == "✗"
        monkeypatch.delenv(name)


# -- checks that fail ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("findings", "status", "text"),
    [
        ([ok("a"), ok("b")], "ok", "a"),
        ([not_tested("x"), ok("b")], "ok", "b"),
        ([ok("a"), failed("b", "c"), failed("b", "c")], "failed", "ranks 1,2: b"),
        ([failed("a", "c"), failed("b", "c")], "failed", "rank 0: a; rank 1: b"),
        ([failed("a", "c"), failed("a", "c")], "failed", "a"),
        ([warning("a", "c"), not_tested("b")], "warning", "rank 0: a"),
    ],
)
def test_what_the_ranks_say_together(findings: list[Finding], status: str, text: str) -> None:
    result = combined(check(), findings, 0.0)
    assert (result.status, result.text) == (status, text)
    assert result.advice == (("c",) if status in ("warning", "failed") else ())


def raises(world: World) -> Finding:
    raise InputError("the GPU is gone; look for it")


def test_an_error_is_a_failed_check_and_what_needs_it_is_not_tested() -> None:
    shown = []
    exam = Examination(World(), shown.append)
    exam.run(check(raises, "first"))
    exam.run(check(name="second", needs=("first",)))
    exam.run(check(name="third"))
    assert [(result.status, result.text) for result in shown] == [
        ("failed", "the GPU is gone"),
        ("not tested", "first failed"),
        ("ok", "fine"),
    ]
    assert shown[0].advice == ("look for it",)


def test_a_check_that_hangs_ends_after_its_time() -> None:
    exam = Examination(World(), lambda result: None)
    start_s = time.monotonic()
    exam.run(check(lambda world: time.sleep(30) or ok("late"), "slow", limit_s=0.2, advice="hurry"))
    exam.run(check(name="after"))
    assert time.monotonic() - start_s < 5
    assert [(r.status, r.text) for r in exam.results] == [
        ("failed", "did not end within 0 s"),
        ("not tested", "the check slow hangs"),
    ]


def test_ranks_stay_in_step() -> None:
    """Rank 1 fails while the others wait for it; later rank 1 hangs."""
    done = mpirun(3, "doctor.py", timeout=60)
    assert done.status == 3, done
    waits, adds, again, hangs, after, needs = json.loads(done.stdout.splitlines()[0])
    assert waits[1:3] == ["failed", "rank 1: ZeroDivisionError: planned failure"]
    assert waits[3] < 5, "the others waited for the whole time"
    assert adds[1:3] == again[1:3] == ["ok", "gathered [0, 1, 2]"]
    assert hangs[1:3] == ["failed", "rank 1: did not end within 5 s"]
    assert after[1:3] == needs[1:3] == ["not tested", "the check hangs hangs"]


# -- single checks ------------------------------------------------------------------------------------------------


def test_the_numpy_model_has_the_loss_of_pytorchs(goldens: Path) -> None:
    """transformers' loss of the same weights."""
    model, there, _ = golden(goldens, "span_gelu")
    tensors = {name: variable.numpy().astype(np.float64) for name, variable in model.named_tensors().items()}
    windows = [
        reference.Window(ids[:count], int((kinds[:count] == 0).sum()), int(start), int(end))
        for ids, kinds, count, start, end in zip(
            there["input_ids"], there["token_type_ids"], there["attention_mask"].sum(1),
            there["start_positions"], there["end_positions"], strict=True,
        )
    ]  # fmt: skip
    heads = model.config.num_attention_heads
    assert reference.mean_loss(tensors, windows, heads) == pytest.approx(float(there["loss"]), rel=1e-5)


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_two_mpis_are_red(name: str) -> None:
    finding = software.check_mpi(World(), "MPI sees one process", {name: "4"})
    assert finding.status == "failed"
    assert f"{name}=4: the launcher started 4 processes, but each is alone: MPI sees one process" in finding.text
    assert "bert-launch" in finding.advice


SMI = "#!/bin/sh\nprintf '%s' \"$FAKE_SMI\"\nexit ${FAKE_STATUS:-0}\n"


@pytest.mark.parametrize(
    ("output", "status", "words"),
    [
        ("GPU-1, NVIDIA H200, 4, 143771, 0\nGPU-2, NVIDIA H200, 4, 143771, 0\n", "ok", "2 GPUs"),
        ("GPU-1, NVIDIA H200, 90000, 143771, 0\n", "warning", "90000 of 143771 MiB are in use"),
        ("GPU-1, NVIDIA H200, 4, 143771, 3\n", "failed", "3 memory errors"),
        ("GPU-1, NVIDIA GeForce RTX 4090, 4, 24564, [N/A]\n", "ok", "1 GPUs"),
    ],
)
def test_what_nvidia_smi_says(output: str, status: str, words: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_SMI", output)
    finding = gpus.check_health(World())
    assert finding.status == status
    assert words in finding.text
    monkeypatch.setenv("FAKE_STATUS", "9")
    assert gpus.check_health(World()).status == "failed"


def test_a_folder_that_cannot_be_written() -> None:
    finding = storage.check_disk(Path("/proc/self"), "take another")
    assert (finding.status, finding.advice) == ("failed", "take another")


def test_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    finding = storage.check_disk(tmp_path / "new" / "run", "")
    assert finding.status in ("ok", "warning")
    assert finding.details["folder"] == str(tmp_path)
    assert not list(tmp_path.iterdir())


# -- the program --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_quick_page_of_one_process(tmp_path: Path) -> None:
    arguments = ["--quick", "--json", f"--output_dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "tasks.doctor", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "RINGBERT_CACHE": str(tmp_path)},
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    page = json.loads(done.stdout)
    assert page["verdict"] == "green"
    found = {entry["name"]: entry for entry in page["checks"]}
    assert found["MPI"]["status"] == "ok"
    assert found["GPUs"]["text"] == "there is no NVIDIA GPU here; the ranks compute on CPUs"
    assert found["BERT-base"]["text"] == "--quick"
