"""A GPU machine's first hour: one command after the other, the most valuable first, each with a
time limit; keeps what they find.

    python -m benchmarks.gpu_first OUT [--minutes 15] [--torch_python PYTHON] [--jax_python PYTHON]

`OUT/findings.jsonl` has a line for the end of each part and `OUT/NAME.log` its output, complete
after every line, so that a machine that goes away takes nothing with it. The same command goes on
where it was: what has ended is not run again, unless its line is deleted. Parts whose program is
missing are left out. Without a network, install by `pip install --no-index --find-links WHEELS
'.[gpu]'`.

With 5 minutes or fewer a whole training to its scores comes first: whether the programs work is
worth more than how fast they are. Parts with an XLA flag tell what it gains; the flag is their
command's own, so an XLA that does not know it ends that part alone.

Without TensorFlow it runs PyTorch's parts and the exported steps, through JAX. Then make these
before, on any machine with TensorFlow, and bring them along in OUT (250 MB):

    python -m benchmarks.gpu_first OUT --only export_small export_small_plain export_small_cudnn
      export_base export_plain export_cudnn

`--rehearse` runs all parts with tiny sizes on CPUs, but for those of cuDNN, through JAX. On an H200
bench_base, torch_base and exported_base took 83, 84 and 35 s; the other parts have not run on a GPU
yet.
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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

MOST_MINUTES = 60  # of all parts together
FEW_MINUTES = 5  # in which a whole training comes first
ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = "squad/checkpoints/rows-*/manifest.json"
TUNES_FUSIONS = "--xla_gpu_experimental_enable_fusion_autotuner=true"
SHAPES = {"tiny": (2, 128), "base": (12, 768), "large": (24, 1024)}  # layers, hidden size


@dataclass(frozen=True)
class Load:
    """How much the parts compute, and where."""

    base: str = "base"  # a model of bert-bench
    large: str = "large"
    rows: int = 32
    seq_length: int = 384
    modern: str = "modernbert-base"
    modern_rows: int = 2
    modern_length: int = 8192
    num_steps: int = 20
    squad_steps: int = 300
    small: str = "minilm"  # compared with the CPU
    device: Literal["gpu", "cpu"] = "gpu"
    nccl: str = "nccl"  # on CPUs the same code is called ring
    patience: int = 1  # times a part's limit, which is that of a GPU machine

    @property
    def library_device(self) -> str:
        """The device's name in JAX and PyTorch."""
        return "cuda" if self.device == "gpu" else "cpu"


REHEARSAL = Load(
    base="tiny",
    large="tiny",
    rows=2,
    seq_length=64,
    modern="tiny",
    modern_rows=2,
    modern_length=64,
    num_steps=2,
    squad_steps=6,
    small="tiny",
    device="cpu",
    nccl="ring",
    patience=4,
)


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
    needs_gpu: bool = False


# -- what is run -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Makes the parts: each method gives one kind its command."""

    out: Path
    num_ranks: int
    pythons: Pythons
    load: Load

    def ours(self, name: str, tells: str, limit_s: int, module: str, *flags: str) -> Part:
        is_of_ranks = name.startswith("ranks_")
        launch = ["-m", "distributed.launch", "-np", str(self.num_ranks), "--"]
        python = self.pythons.tensorflow
        command = [*([python, *launch] if is_of_ranks else []), python, "-m", module, *flags]
        return Part(name, tells, limit_s, "tensorflow", command)

    def doctor(self, name: str, tells: str, limit_s: int, *flags: str) -> Part:
        device, folder = f"--device={self.load.device}", f"--output_dir={self.out}"
        return self.ours(name, tells, limit_s, "tasks.doctor", device, folder, *flags)

    def bench(self, name: str, limit_s: int, size: str, *flags: str) -> Part:
        """`flags` may give another shape than that of most parts."""
        shape = [
            f"--device={self.load.device}",
            f"--model_size={size}",
            f"--batch_size={self.load.rows}",
            f"--seq_length={self.load.seq_length}",
            f"--num_steps={self.load.num_steps}",
            f"--output_file={self.out}/{name}.json",
        ]
        tells = f"speed, {' '.join(flags)}"
        return self.ours(name, tells, limit_s, "tasks.bench", "step", *shape, *flags)

    def tuned(self, part: Part) -> Part:
        """The same with a flag of XLA, which then tries out fusions too."""
        command = ["env", f"XLA_FLAGS={TUNES_FUSIONS}", *part.command]
        tells = f"{part.tells}, tuned fusions"
        return replace(part, tells=tells, command=command)

    def whole(self) -> list[Part]:
        """A training to its end, and its scores."""
        data, module = self.out / "data", "scripts.make_docs_squad"
        flags = [
            f"--config={ROOT}/configs/quickstart.toml",
            f"--output_dir={self.out}/whole",
            f"--device={self.load.device}",
            f"--train_file={data}/train.json",
            f"--predict_file={data}/dev.json",
            f"--vocab_file={data}/vocab.txt",
            f"--bert_config_file={data}/bert_config.json",
        ]
        if self.load.device == "cpu":  # a rehearsal
            few = f"--num_train_steps={self.load.squad_steps}"
            flags += [few, "--max_train_examples=200", "--max_predict_examples=50"]
        made = self.ours("squad_data", "questions for a training", 45, module, str(data))
        tells = "a training to its end, F1 about 80 to 96"
        whole = self.ours("squad_whole", tells, 240, "tasks.squad", *flags)
        return [made, replace(whole, needs="data/train.json")]

    def squad(self) -> list[Part]:
        steps, data = self.load.squad_steps, self.out / "data"
        flags = [
            "--do_train",
            f"--output_dir={self.out}/squad",
            f"--device={self.load.device}",
            "--log_steps=10",
            f"--num_train_steps={steps}",
            f"--save_checkpoints_steps={steps // 3}",
            "--train_batch_size=16",
            f"--train_file={data}/train.json",
            f"--vocab_file={data}/vocab.txt",
            f"--bert_config_file={data}/bert_config.json",
            "--max_seq_length=128",
        ]
        tells = "a training, killed after a checkpoint"
        killed = self.ours("squad_killed", tells, 120, "tasks.squad", *flags)
        killed = replace(killed, needs="data/train.json", killed_after_checkpoint=True)
        resumed = self.ours("squad_resumed", "it goes on", 90, "tasks.squad", *flags)
        return [killed, replace(resumed, needs=CHECKPOINT)]

    def torch(self, name: str, limit_s: int, size: str) -> Part:
        layers, hidden = SHAPES[size]
        command = [
            self.pythons.torch,
            "benchmarks/torch_step.py",
            *map(str, (layers, hidden, self.load.rows)),
            f"--seq_length={self.load.seq_length}",
            f"--device={self.load.library_device}",
        ]
        return Part(name, "PyTorch's speed in that shape", limit_s, "torch", command)

    def export(self, step: str, limit_s: int, *flags: str) -> Part:
        file = f"--output_file={self.out}/{step}"
        tells = "makes the step as StableHLO, on the CPU"
        part = self.ours(f"export_{step}", tells, limit_s, "benchmarks.gpu_compile", file, *flags)
        return replace(part, command=["env", "CUDA_VISIBLE_DEVICES=-1", *part.command])

    def exported(self, step: str, tells: str, limit_s: int, *flags: str) -> Part:
        command = [
            self.pythons.jax,
            "benchmarks/jax_step.py",
            f"{self.out}/{step}.mlir",
            f"--device={self.load.library_device}",
            *flags,
        ]
        return Part(f"exported_{step}", tells, limit_s, "jax", command, needs=f"{step}.json")


def parts_of(plan: Plan, minutes: float = MOST_MINUTES) -> list[Part]:
    """All parts, the most valuable first: how fast is the step, compiled by a newer XLA and by
    TensorFlow's, with which flags and which attention, and beside whom; does it sum inside XLA,
    does a whole training learn; then everything else. With few minutes the training is first."""
    load = plan.load
    base, large = load.base, load.large
    bf16, xla, shared = "--precision=bf16", "--xla=on", "--share_gpus"
    cudnn, plain = "--attention=cudnn", "--attention_probs_dropout_prob=0"
    small_shape = [f"--size={load.small}", "--batch_size=4", "--seq_length=128"]
    base_shape = [f"--size={base}", f"--batch_size={load.rows}", f"--seq_length={load.seq_length}"]
    long_rows = [f"--batch_size={load.modern_rows}", f"--seq_length={load.modern_length}"]
    base_step = plan.exported("base", "its speed without TensorFlow", 75)
    on_gpu_alone = partial(replace, needs_gpu=True)
    whole = plan.whole()
    parts = [
        plan.doctor("doctor_quick", "is the GPU there", 60, "--quick"),
        # JAX's XLA: the anchor, and cuDNN's attention beside the same step without it
        plan.export("small", 60, *small_shape, "--precision=fp32"),
        plan.exported("small", "its losses against the CPU's", 45, "--within=1e-4"),
        plan.export("small_plain", 60, *small_shape, "--precision=fp32", plain),
        plan.export("small_cudnn", 60, *small_shape, bf16, plain, cudnn),
        on_gpu_alone(
            plan.exported(
                "small_cudnn",
                "losses with cuDNN against the CPU's without",
                45,
                f"--against={plan.out}/small_plain.mlir",
                "--within=2e-2",
            )
        ),
        plan.export("base", 75, *base_shape, bf16),
        base_step,
        plan.export("plain", 75, *base_shape, bf16, plain),
        plan.exported("plain", "its speed without dropout in attention", 75),
        plan.export("cudnn", 75, *base_shape, bf16, plain, cudnn),
        on_gpu_alone(plan.exported("cudnn", "its speed with cuDNN's attention", 75)),
        plan.tuned(replace(base_step, name="exported_base_fusions", limit_s=120)),
        # TensorFlow's XLA: the second finds what the first has tuned
        plan.bench("bench_base", 180, base, bf16, xla),
        plan.bench("bench_base_again", 120, base, bf16, xla),
        plan.tuned(plan.bench("bench_base_fusions", 180, base, bf16, xla)),
        plan.bench("bench_base_cudnn", 120, base, bf16, xla, plain, cudnn),
        plan.bench("bench_modern", 135, load.modern, bf16, xla, *long_rows),
        plan.bench("bench_modern_cudnn", 135, load.modern, bf16, xla, *long_rows, cudnn),
        plan.torch("torch_base", 150, base),
        plan.bench("ranks_inside", 150, base, bf16, xla, shared, f"--backend={load.nccl}"),
        *whole,
        # everything else
        plan.doctor("doctor", "are losses right", 240, bf16),
        *plan.squad(),
        plan.bench("ranks_mpi", 120, base, bf16, shared, "--backend=mpi"),
        plan.bench("bench_large", 150, large, bf16, xla),
        plan.torch("torch_large", 120, large),
        plan.bench("bench_base_without_xla", 90, base, bf16),
        plan.bench("bench_base_fp16", 90, base, "--precision=fp16", xla),
        plan.bench("bench_base_tf32", 90, base, "--tf32", xla),
        plan.doctor("ranks_doctor", "are sums of ranks right", 135, bf16, shared),
    ]
    if minutes <= FEW_MINUTES:
        parts = [*whole, *(part for part in parts if part not in whole)]
    return parts


def minutes_of(parts: list[Part]) -> float:
    """The sum of the limits. Whoever adds a part learns here that the hour is full."""
    minutes = sum(part.limit_s for part in parts) / 60
    assert minutes <= MOST_MINUTES, f"limits of {minutes:g} minutes, at most {MOST_MINUTES}"
    return minutes


# -- running it ------------------------------------------------------------------------------------


def why_not(part: Part, plan: Plan, left_s: float) -> str:
    """Why a part is left out; empty if it is run."""
    out = plan.out
    if not getattr(plan.pythons, part.program):
        return f"no Python with {part.program}"
    if part.needs_gpu and plan.load.device == "cpu":
        return "it needs a GPU"
    if part.needs and not any(out.glob(part.needs)):
        return f"{out / part.needs} is missing"
    if part.limit_s > left_s:
        return f"its limit is {part.limit_s} s, {max(0, left_s):.0f} s are left"
    return ""


def run(part: Part, out: Path, patience: int = 1) -> dict[str, Any]:
    """Runs a command to its end, so many times its limit, or its checkpoint. Returns what is
    written of it."""
    most_s = patience * part.limit_s
    start_s, path = time.monotonic(), out / f"{part.name}.log"
    with path.open("w") as log:
        process = subprocess.Popen(
            part.command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        while process.poll() is None and time.monotonic() - start_s < most_s:
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
    planned = parts_of(Plan(Path("OUT"), 2, Pythons(), Load()))
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
    plan = Plan(out, options.ranks, pythons, load)
    for part in parts_of(plan, options.minutes):
        if part.name in ended or (options.only and part.name not in options.only):
            continue
        reason = why_not(part, plan, end_s - time.monotonic())
        if reason:
            print(f"{part.name} left out: {reason}", flush=True)
            continue
        print(f"{part.name} …", flush=True)
        found = run(part, out, load.patience)
        write(found, findings)
        status = "killed" if found["status"] is None else f"status {found['status']}"
        print("\n".join([f"  {status} after {found['seconds']} s", *found["last_lines"]]))


if __name__ == "__main__":
    main()
