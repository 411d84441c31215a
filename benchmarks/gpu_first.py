"""A GPU machine's first hour: one command after the other, the most valuable first, each with a
time limit; keeps what they find.

    python -m benchmarks.gpu_first OUT [--minutes 15] [--torch_python PYTHON] [--jax_python PYTHON]

`OUT/findings.jsonl` has a line for the end of each part and `OUT/NAME.log` its output, complete
after every line, so that a machine that goes away takes nothing with it. The same command goes on
where it was: what has ended is not run again, unless its line is deleted. Parts whose program is
missing are left out. Without a network, install by `pip install --no-index --find-links WHEELS
'.[gpu]'`.

Without TensorFlow it runs PyTorch's parts and the exported step, through JAX. Then make that step
before, on any machine with TensorFlow, and bring it along in OUT:

    python -m benchmarks.gpu_first OUT --only export_small export_base

`--rehearse` runs all parts with tiny sizes on CPUs. None of this was run on a GPU yet.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

MOST_MINUTES = 60  # of all parts together
ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = "squad/checkpoints/rows-*/manifest.json"
SHAPES = {"tiny": (2, 128), "base": (12, 768), "large": (24, 1024)}  # layers, hidden size


@dataclass(frozen=True)
class Load:
    """How much the parts compute, and where."""

    base: str = "base"  # a model of bert-bench
    large: str = "large"
    rows: int = 32
    seq_length: int = 384
    squad_steps: int = 300
    small: str = "minilm"  # compared with the CPU
    device: Literal["gpu", "cpu"] = "gpu"

    @property
    def library_device(self) -> str:
        """The device's name in JAX and PyTorch."""
        return "cuda" if self.device == "gpu" else "cpu"


REHEARSAL = Load("tiny", "tiny", 2, 64, 6, "tiny", "cpu")


@dataclass(frozen=True)
class Pythons:
    """Interpreters: this one, and those that have PyTorch and JAX, if any."""

    torch: str = ""
    jax: str = ""
    tensorflow: str = sys.executable if importlib.util.find_spec("tensorflow") else ""


@dataclass(frozen=True)
class Part:
    """A command that is killed after `limit_s`, or on purpose as soon as it has written a
    checkpoint."""

    name: str
    tells: str
    limit_s: int
    program: Literal["tensorflow", "torch", "jax"]
    command: list[str]
    needs: str = ""  # files in OUT, a pattern, which an earlier part writes
    killed_after_checkpoint: bool = False


# -- what is run -----------------------------------------------------------------------------------


def parts_of(out: Path, num_ranks: int, pythons: Pythons, load: Load) -> list[Part]:
    """All parts, the most valuable first: does it train, how fast, beside whom; then several ranks,
    the exported step, and other sizes and precisions."""
    python = [pythons.tensorflow, "-m"]
    launch = [*python, "distributed.launch", "-np", str(num_ranks), "--"]
    doctor = [*python, "tasks.doctor", f"--device={load.device}", f"--output_dir={out}"]
    sum_on_gpu = "nccl" if load.device == "gpu" else "ring"  # the same code

    def bench(name: str, limit_s: int, size: str, rows: int, *flags: str) -> Part:
        is_of_ranks = name.startswith("ranks")
        command = [
            *(launch if is_of_ranks else []),
            *python,
            "tasks.bench",
            "step",
            f"--device={load.device}",
            f"--model_size={size}",
            f"--batch_size={rows}",
            f"--seq_length={load.seq_length}",
            "--num_steps=20",
            *flags,
            f"--output_file={out}/bench_{name}.json",
        ]
        tells = f"speed, {' '.join(flags)}"
        return Part(f"bench_{name}", tells, limit_s, "tensorflow", command)

    def torch(name: str, limit_s: int, size: str) -> Part:
        layers, hidden = SHAPES[size]
        command = [
            pythons.torch,
            "benchmarks/torch_step.py",
            *map(str, (layers, hidden, load.rows)),
            f"--seq_length={load.seq_length}",
            f"--device={load.library_device}",
        ]
        return Part(f"torch_{name}", "PyTorch's speed in that shape", limit_s, "torch", command)

    def export(name: str, limit_s: int, *flags: str) -> Part:
        program = [*python, "benchmarks.gpu_compile", f"--output_file={out}/{name}"]
        command = ["env", "CUDA_VISIBLE_DEVICES=-1", *program, *flags]
        return Part(f"export_{name}", "the step as StableHLO", limit_s, "tensorflow", command)

    def exported(name: str, tells: str, limit_s: int, *flags: str) -> Part:
        command = [
            pythons.jax,
            "benchmarks/jax_step.py",
            f"{out}/{name}.mlir",
            f"--device={load.library_device}",
            *flags,
        ]
        return Part(f"exported_{name}", tells, limit_s, "jax", command, needs=f"{name}.json")

    data = out / "data"
    make_data = [*python, "scripts.make_docs_squad", str(data)]
    squad = [
        *python,
        "tasks.squad",
        "--do_train",
        f"--output_dir={out / 'squad'}",
        f"--device={load.device}",
        "--log_steps=10",
        f"--num_train_steps={load.squad_steps}",
        f"--save_checkpoints_steps={load.squad_steps // 3}",
        "--train_batch_size=16",
        f"--train_file={data}/train.json",
        f"--vocab_file={data}/vocab.txt",
        f"--bert_config_file={data}/bert_config.json",
        "--max_seq_length=128",
    ]
    small_shape = [f"--size={load.small}", "--batch_size=4", "--seq_length=128", "--precision=fp32"]
    base_shape = [
        f"--size={load.base}",
        f"--batch_size={load.rows}",
        f"--seq_length={load.seq_length}",
    ]
    base, large, rows = load.base, load.large, load.rows
    bf16 = "--precision=bf16"
    return [
        Part("doctor_quick", "is the GPU there", 120, "tensorflow", [*doctor, "--quick"]),
        bench("base", 270, base, rows, bf16, "--xla=on"),
        torch("base", 180, base),
        Part("squad_data", "questions for a training", 60, "tensorflow", make_data),
        Part(
            name="squad_killed",
            tells="a training until it is killed",
            limit_s=240,
            program="tensorflow",
            command=squad,
            needs="data/train.json",
            killed_after_checkpoint=True,
        ),
        Part("squad_resumed", "it goes on", 180, "tensorflow", squad, needs=CHECKPOINT),
        Part("doctor", "are losses right", 330, "tensorflow", [*doctor, bf16]),
        bench("ranks_gpu", 180, base, rows // 2, bf16, "--share_gpus", f"--backend={sum_on_gpu}"),
        bench("ranks_mpi", 180, base, rows // 2, bf16, "--share_gpus", "--backend=mpi"),
        export("small", 90, *small_shape),
        exported("small", "losses against the CPU's", 90, "--within=1e-4"),
        export("base", 150, *base_shape, bf16),
        exported("base", "speed without TensorFlow", 180),
        bench("large", 300, large, rows, bf16, "--xla=on"),
        torch("large", 240, large),
        bench("base_without_xla", 150, base, rows, bf16),
        bench("base_fp16", 180, base, rows, "--precision=fp16", "--xla=on"),
        bench("base_tf32", 180, base, rows, "--tf32", "--xla=on"),
        Part(
            name="doctor_ranks",
            tells="are sums of ranks right",
            limit_s=240,
            program="tensorflow",
            command=[*launch, *doctor, bf16, "--share_gpus"],
        ),
    ]


def minutes_of(parts: list[Part]) -> float:
    """The sum of the limits. Whoever adds a part learns here that the hour is full."""
    minutes = sum(part.limit_s for part in parts) / 60
    assert minutes <= MOST_MINUTES, f"limits of {minutes:g} minutes, at most {MOST_MINUTES}"
    return minutes


# -- running it ------------------------------------------------------------------------------------


def why_not(part: Part, out: Path, pythons: Pythons, left_s: float) -> str:
    """Why a part is left out; empty if it is run."""
    if not getattr(pythons, part.program):
        return f"no Python with {part.program}"
    if part.needs and not any(out.glob(part.needs)):
        return f"{out / part.needs} is missing"
    if part.limit_s > left_s:
        return f"its limit is {part.limit_s} s, {max(0, left_s):.0f} s are left"
    return ""


def run(part: Part, out: Path) -> dict[str, Any]:
    """Runs a command to its end, its limit, or its checkpoint. Returns what is written of it."""
    start_s, path = time.monotonic(), out / f"{part.name}.log"
    with path.open("w") as log:
        process = subprocess.Popen(
            part.command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        while process.poll() is None and time.monotonic() - start_s < part.limit_s:
            if part.killed_after_checkpoint and any(out.glob(CHECKPOINT)):
                break
            time.sleep(0.1)
        status = process.poll()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return {
        "name": part.name,
        "status": status,  # null: killed
        "seconds": round(time.monotonic() - start_s, 1),
        "last_lines": lines[-4:],
        "command": part.command,
    }


def names_in(findings: Path) -> set[str]:
    """The parts that have ended. A line that was cut when the machine went away is dropped."""
    text = findings.read_text() if findings.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        findings.write_text(whole)
    return {json.loads(line)["name"] for line in whole.splitlines()}


def write(found: dict[str, Any], path: Path) -> None:
    """Adds a line that stays when the machine goes away."""
    with path.open("a") as file:
        file.write(json.dumps(found) + "\n")
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    planned = parts_of(Path("OUT"), 2, Pythons(), Load())
    limits = [f"  {part.name:<23} {part.limit_s:>3} s  {part.tells}" for part in planned]
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="\n".join(
            [f"parts, in order; their limits add up to {minutes_of(planned):g} minutes:", *limits]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="folder for everything that is found")
    parser.add_argument(
        "--minutes",
        type=float,
        default=MOST_MINUTES,
        help="end by then: a part whose limit is longer than the time that is left is left out"
        f" (default: {MOST_MINUTES})",
    )
    parser.add_argument(
        "--ranks", type=int, default=2, help="ranks that share the GPU (default: 2)"
    )
    parser.add_argument("--torch_python", default="", help="Python with PyTorch and transformers")
    parser.add_argument("--jax_python", default="", help="Python with JAX for GPUs")
    names = [part.name for part in planned]
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help="these parts")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on CPUs")
    options = parser.parse_args()
    end_s = time.monotonic() + 60 * options.minutes
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    findings = out / "findings.jsonl"
    ended = names_in(findings)
    pythons = Pythons(options.torch_python, options.jax_python)
    load = REHEARSAL if options.rehearse else Load()
    for part in parts_of(out, options.ranks, pythons, load):
        if part.name in ended or (options.only and part.name not in options.only):
            continue
        reason = why_not(part, out, pythons, end_s - time.monotonic())
        if reason:
            print(f"{part.name} left out: {reason}", flush=True)
            continue
        print(f"{part.name} …", flush=True)
        found = run(part, out)
        write(found, findings)
        status = "killed" if found["status"] is None else f"status {found['status']}"
        print("\n".join([f"  {status} after {found['seconds']} s", *found["last_lines"]]))


if __name__ == "__main__":
    main()
