"""benchmarks/gpu_first/: what runs first on a new GPU machine, as far as it runs without one."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import step_errors
from benchmarks.gpu_first import __main__ as program
from benchmarks.gpu_first import cases, libraries, plan, wheels
from benchmarks.gpu_first.hlo import kernels
from benchmarks.gpu_first.runner import Journal, Step, run_all
from ringbert.errors import InputError
from tasks import flags
from tasks.bench.step import StepConfig
from tasks.doctor.settings import Config as DoctorConfig

ROOT = Path(__file__).resolve().parent.parent


# -- the runner ---------------------------------------------------------------------------------------------------


def step(name: str, code: str, limit_s: float = 60) -> Step:
    return Step(name, [sys.executable, "-c", f"from benchmarks.gpu_first.findings import say\n{code}"], limit_s)


def test_findings_are_kept_when_steps_fail_hang_or_are_killed(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    steps = [
        step("good", "say('a', 'one', True, ms=2.5)"),
        step("broken", "say('b', 'before the end'); raise SystemExit('no device')"),
        step("hangs", "say('c', 'printed'); import time; time.sleep(100)", limit_s=2),
        step("wrong", "say('d', 'too large', False)"),
    ]
    assert not run_all(steps, tmp_path, minutes=2)
    journal = Journal(tmp_path)
    assert [(entry["step"], entry["text"]) for entry in journal.entries if "text" in entry] == [
        ("good", "one"), ("broken", "before the end"), ("hangs", "printed"), ("wrong", "too large"),
    ]  # fmt: skip
    assert [entry["status"] for entry in journal.entries if "status" in entry] == [0, 1, None, 0]
    assert [journal.is_well(one) for one in steps] == [True, False, False, False]
    page = (tmp_path / "findings.md").read_text()
    for line in ("- a: ok: one", "no device", "killed: out of time", "- d: FAILED: too large"):
        assert line in page

    number = len(journal.entries)
    run_all(steps, tmp_path, minutes=2)  # all have ended
    assert len(Journal(tmp_path).entries) == number
    assert not run_all(steps, tmp_path, 2, again=["good"])
    assert len(Journal(tmp_path).entries) == number + 3


def test_a_step_that_ran_out_of_the_whole_time_is_run_again(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    slow = step("slow", "import time; time.sleep(3); say('e', 'done', True)", limit_s=30)
    assert not run_all([slow], tmp_path, minutes=0.02)
    assert run_all([slow], tmp_path, minutes=1)


def test_a_line_that_was_cut_by_a_kill_is_left_out(tmp_path):
    (tmp_path / "findings.jsonl").write_text('{"step": "a", "command": "b"}\n{"step": "a", "sta')
    assert len(Journal(tmp_path).entries) == 1


# -- the plan -----------------------------------------------------------------------------------------------------


def test_all_steps_name_cases_and_programs_that_exist(tmp_path):
    steps = plan.without_tensorflow(tmp_path, tmp_path)
    named = {part for one in steps for part in one.command}
    assert {*plan.TIMED, cases.ATTENTION} <= named
    assert {*plan.TIMED, *plan.RIVALS} <= {*cases.CASES}
    every = [*steps, *plan.with_tensorflow(tmp_path, [])]
    assert len({one.name for one in every}) == len(every)
    for one in every:
        modules = [part for flag, part in zip(one.command, one.command[1:], strict=False) if flag == "-m"]
        for module in modules:
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_the_programs_take_the_flags_of_their_steps(tmp_path):
    configs: dict[str, type] = {"tasks.bench": StepConfig, "tasks.doctor": DoctorConfig}
    checked: set[str] = set()
    for one in plan.with_tensorflow(tmp_path, []):
        for module in configs.keys() & {*one.command}:
            argv = [part for part in one.command[one.command.index(module) + 1 :] if part != "step"]
            flags.parse(configs[module], argv, prog=module, description="")
            checked.add(one.name)
    assert {"doctor", "doctor_2_ranks", "bench_base", "bench_base_2_ranks_nccl"} <= checked


def test_unknown_steps_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="no step value: machine, values, "):
        program.main(["run", str(tmp_path), str(tmp_path), "--only", "value"])


# -- errors and kernels -------------------------------------------------------------------------------------------


def test_errors_find_a_missing_term_and_not_rounding():
    generator = np.random.default_rng(0)
    whole = generator.standard_normal(1100)
    whole[1000:] *= 1e-9  # 0 in exact arithmetic
    description = {"parts": [["a/kernel", 0, 1000], ["a/bias", 1000, 1100]], "results": []}

    def of(array: np.ndarray) -> dict[str, float]:
        return step_errors.errors([array], [whole], description)

    rounding = 2.0**-9 * generator.standard_normal((2, 1100))
    rounding[:, 1000:] *= 1e-6
    on_cpu = of(whole + rounding[0])
    assert step_errors.is_close(of(whole + rounding[1]), on_cpu)
    halved = np.concatenate([whole[:1000] / 2, whole[1000:]])
    for wrong in (halved, np.where(np.arange(1100) == 3, np.nan, whole)):
        assert not step_errors.is_close(of(wrong), on_cpu)
        assert step_errors.worst(of(wrong), on_cpu)[0] == "a/kernel"


def test_kernels_are_counted_by_kind():
    text = """HloModule m
%fused (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %e = f32[2]{0} exponential(%p)
}
%body (q: f32[2]) -> f32[2] {
  %q = f32[2]{0} parameter(0)
  ROOT %s = f32[2]{0} sort(%q), dimensions={0}
}
ENTRY %main (a: f32[2]) -> f32[2] {
  %a = f32[2]{0} parameter(0)
  %f = f32[2]{0} fusion(%a), kind=kLoop, calls=%fused
  %t = f32[2]{0} fusion(%f), kind=kCustom, calls=%fused, backend_config={"kind":"__triton_gemm"}
  %c = (f32[2]{0}, s8[0]{0}) custom-call(%t), custom_call_target="__cublas$gemm"
  %w = f32[2]{0} while(%t), condition=%cond, body=%body
  ROOT %r = f32[2]{0} get-tuple-element(%c), index=0
}
"""
    assert kernels(text) == {
        "sort": 1, "fusion loop": 1, "fusion __triton_gemm": 1, "call __cublas$gemm": 1,
    }  # fmt: skip


# -- wheels and libraries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [5 << 20, (4 << 20) + 12345, 1])
def test_a_wheel_survives_splitting_and_joining(length, tmp_path):
    wheel = tmp_path / "some-1.0-py3-none-any.whl"
    wheel.write_bytes(np.random.default_rng(0).bytes(length))
    *pieces, listed = wheels.split(wheel, tmp_path / "pieces", piece_mib=2)
    assert [piece.stat().st_size for piece in pieces[:-1]] == [2 << 20] * (length >> 21)
    (joined,) = wheels.join(tmp_path / "pieces", tmp_path / "wheels")
    assert hashlib.sha256(joined.read_bytes()).digest() == hashlib.sha256(wheel.read_bytes()).digest()

    whole = pieces[-1].read_bytes()
    pieces[-1].write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    joined.unlink()
    with pytest.raises(InputError, match=rf"{pieces[-1].name} is damaged"):
        wheels.join(tmp_path / "pieces", tmp_path / "wheels")
    pieces[-1].unlink()
    with pytest.raises(InputError, match=rf"1 of {len(pieces)} pieces are missing: {pieces[-1].name}"):
        wheels.join(tmp_path / "pieces", tmp_path / "wheels")
    assert not joined.exists()
    listed.unlink()
    with pytest.raises(InputError, match="no list of pieces"):
        wheels.join(tmp_path / "pieces", tmp_path / "wheels")


def test_cuda_libraries_get_the_names_of_cuda_12(tmp_path):
    """Another version of cuBLAS is linked; what BERT never calls and is not there can be opened, with its name."""
    here, other = tmp_path / "lib", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    for name in ("libcudart.so.12", "libcudnn.so.9", "libnccl.so.2", "libcublas.so.9", "libcusparse.so.12"):
        libraries.make_empty(here / name)
    libraries.make_empty(other / "libcublasLt.so.13")
    libraries.make_empty(other / "libcublas.so.13", str(other / "libcublasLt.so.13"))  # needs the first, by name
    with pytest.raises(InputError, match=r"not found in .*: libcublasLt\.so\.12$"):
        libraries.make_folder(tmp_path / "named", [here])
    (here / "libcublas.so.9").unlink()
    made = libraries.make_folder(tmp_path / "named", [here, other])
    assert made["libcublas.so.12"] == str(other / "libcublas.so.13")
    assert made["libcusparse.so.12"] == str(here / "libcusparse.so.12")
    assert made["libcufft.so.11"] == made["libcusolver.so.11"] == "empty"
    names = (*libraries.EXACT, *libraries.ANY_VERSION, *libraries.NEVER_CALLED)
    code = f"import ctypes\nfor name in {names}: ctypes.CDLL(name)"
    command = f'. "{tmp_path}/named/environment.sh"; exec "$0" -c "$1"'
    subprocess.run(["sh", "-c", command, sys.executable, code], check=True)
    dynamic = subprocess.run(["readelf", "-d", tmp_path / "named/libcufft.so.11"], capture_output=True, text=True)
    assert "soname: [libcufft.so.11]" in dynamic.stdout


# -- with JAX -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_jax_computes_what_tensorflow_does(tmp_path, monkeypatch):
    """The exported gradient of a tiny model, in another process, because both libraries bring an XLA."""
    folder = tmp_path / "jax"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir", f"--target={folder}"]
    subprocess.run([*install, "jax==0.10.2", "jaxlib==0.10.2", "opt_einsum"], check=True, timeout=600)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)])))
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    cases.export("tiny_squad_bf16", tmp_path / "exported")
    (values,) = (one for one in plan.without_tensorflow(tmp_path / "exported", tmp_path) if one.name == "values")
    assert run_all([values], tmp_path / "out", minutes=5)
    findings = [json.loads(line) for line in (tmp_path / "out/findings.jsonl").read_text().splitlines()]
    assert [entry["ok"] for entry in findings if "ok" in entry] == [True]
