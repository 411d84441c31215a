"""Compiles RingBERT's steps for an NVIDIA H200 on a machine without a GPU: kernels, memory and a predicted time.

    python -m benchmarks.gpu_compile --jax_python JAX/bin/python --kind squad --size base --precision bf16
    python -m benchmarks.gpu_compile --jax_python JAX/bin/python --table --output_file compiled.json

JAX is the folder of an environment with `jax[cuda12]`; its XLA compiles what `benchmarks.step_export` exports.
TensorFlow has another version of XLA, and without a GPU none tries out which kernel of a product is fastest, so
TensorFlow's code may differ. `benchmarks.gpu_roofline` says how the time is predicted.

The largest batch is where the memory of weights, moments, gradient, arguments and temporary buffers reaches that
of the GPU, on the line through two batch sizes.
"""

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_roofline import H200, Prediction, predict
from benchmarks.step_functions import ExportConfig, Kind, Precision, bert_config
from ringbase.errors import InputError
from ringbase.settings import setting
from tasks import flags

FOLDER = Path(__file__).resolve().parent
TRAINING = ("squad", "pretraining")
# What the table of docs/measured.md holds: kind, size, rows, tokens, precision, and further settings.
TABLE: list[tuple[Kind, str, int, int, Precision, dict[str, Any]]] = [
    ("squad", "base", 32, 384, "bf16", {}),
    ("squad", "base", 32, 384, "fp16", {}),
    ("squad", "base", 32, 384, "fp32", {}),
    ("squad", "base", 64, 128, "bf16", {}),
    ("squad", "base", 32, 512, "bf16", {}),
    ("squad", "large", 32, 384, "bf16", {}),
    ("pretraining", "base", 64, 128, "bf16", {}),
    ("pretraining", "large", 64, 128, "bf16", {}),
    ("predict", "base", 64, 384, "bf16", {}),
    ("step", "base", 32, 384, "bf16", {}),
    ("update", "base", 32, 384, "bf16", {}),
]


@dataclass(frozen=True, kw_only=True)
class CompileConfig(ExportConfig):
    """What is compiled, and with what."""

    jax_python: str | None = setting(None, "Python of an environment with jax[cuda12]", "machine")
    target_file: str = setting(
        str(FOLDER / "h200.txtpb"), "description of the GPU", "machine", shown_default="benchmarks/h200.txtpb"
    )
    table: bool = setting(False, "compile all cases of the documentation's table", "load")
    largest_batch: bool = setting(False, "compile for half the batch too, to predict the largest", "load")
    hlo_dir: str | None = setting(None, "folder that keeps StableHLO and HLO", "load", shown_default="none")
    output_file: str | None = setting(None, "JSON file for the figures", "load", shown_default="none")  # type: ignore[assignment]


@dataclass(frozen=True)
class Compiled:
    """The figures of one case; bytes and seconds.

    Attributes:
      arguments, results, temporary: bytes, as XLA reports them.
      moments: of the optimizer, where they are no arguments.
    """

    config: ExportConfig
    compile_seconds: float
    arguments: int
    results: int
    temporary: int
    moments: int
    prediction: Prediction

    @property
    def memory_bytes(self) -> int:
        """On the GPU while it runs. TensorFlow writes variables in place: as results they do not count."""
        written = self.results if self.config.kind in ("step", "update") else 0
        return self.arguments + self.results - written + self.temporary + self.moments


def main(argv: Sequence[str] | None = None) -> None:
    prog = "benchmarks.gpu_compile"
    config = flags.parse(CompileConfig, argv, prog=prog, description=str(__doc__))
    if not config.jax_python:
        raise SystemExit(f"{prog}: error: --jax_python must be given")
    figures = []
    try:
        for case in cases_of(config):
            figures.append(measured(case, config))
            print(table([figures[-1]]) if config.table else report(figures[-1]), flush=True)
    except InputError as error:
        raise SystemExit(f"{prog}: error: {error}") from error
    if config.table:
        print(table(figures))
    if config.output_file:
        Path(config.output_file).write_text(json.dumps(figures, indent=1) + "\n")


def cases_of(config: CompileConfig) -> list[CompileConfig]:
    if not config.table:
        return [config]
    return [
        replace(
            config, kind=kind, size=size, batch_size=rows, seq_length=tokens, precision=precision,
            largest_batch=kind in TRAINING, **more,
        )
        for kind, size, rows, tokens, precision, more in TABLE
    ]  # fmt: skip


def measured(case: CompileConfig, config: CompileConfig) -> dict[str, Any]:
    """The figures of a case, ready for JSON."""
    whole = compiled(case, config)
    prediction, layers = whole.prediction, bert_config(case).num_hidden_layers
    figures: dict[str, Any] = {
        "case": {name: value for name, value in asdict(case).items() if name in CASE_FIELDS},
        "compile_s": whole.compile_seconds,
        "kernels": len(prediction.kernels),
        "kernels_per_layer": len(prediction.kernels) / layers,
        "gigabytes": prediction.bytes_moved / 1e9,
        "teraflop": prediction.flops / 1e12,
        "predicted_ms": prediction.seconds * 1e3,
        "share_of_peak": prediction.share_of_peak,
        "temporary_gigabytes": whole.temporary / 1e9,
        "memory_gigabytes": whole.memory_bytes / 1e9,
        "report": str(prediction),
    }
    if case.largest_batch:
        half = compiled(replace(case, batch_size=case.batch_size // 2), config)
        per_row = (whole.memory_bytes - half.memory_bytes) / (case.batch_size - case.batch_size // 2)
        fixed = whole.memory_bytes - per_row * case.batch_size
        figures["largest_batch"] = int((H200.memory_bytes - fixed) / per_row)
    return figures


CASE_FIELDS = (
    "kind", "size", "batch_size", "seq_length", "precision", "dropout", "attention_dropout", "attention",
)  # fmt: skip


def compiled(case: ExportConfig, config: CompileConfig) -> Compiled:
    """Exports and compiles, each in a process of its own.

    Raises InputError: one of them failed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(config.hlo_dir or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        name = "_".join(str(getattr(case, field)) for field in CASE_FIELDS)
        path = folder / name
        values = {field: getattr(case, field) for field in CASE_FIELDS}
        exported = [f"--{field}={value}" for field, value in values.items() if value is not None]
        _run([sys.executable, "-m", "benchmarks.step_export", *exported, f"--output_file={path}"])
        _run([str(config.jax_python), str(FOLDER / "jax_compile.py"), config.target_file, f"{path}.mlir"])
        described = json.loads(Path(f"{path}.json").read_text())
        memory = json.loads(Path(f"{path}.memory.json").read_text())
        prediction = predict(Path(f"{path}.hlo").read_text())
    weights = [array for array in described["parameters"] if array["is_variable"] and array["shape"]]
    moments = 2 * 4 * sum(math.prod(array["shape"]) for array in weights) if case.kind in TRAINING else 0
    return Compiled(
        case, memory["seconds"], memory["arguments"], memory["results"], memory["temporary"], moments, prediction
    )


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"{command[0]} {Path(command[1]).name} {command[2]} ended with {done.returncode}: {last}")


# -- what is printed ----------------------------------------------------------------------------------------------


def report(figures: dict[str, Any]) -> str:
    lines = [
        f"compiled in {figures['compile_s']:.0f} s; {figures['kernels']:,} kernels, "
        f"{figures['kernels_per_layer']:.0f} per layer",
        f"memory: {figures['memory_gigabytes']:.2f} GB, {figures['temporary_gigabytes']:.2f} GB of it temporary",
    ]
    if "largest_batch" in figures:
        lines.append(f"largest batch in {H200.memory_bytes / 1e9:.0f} GB: {figures['largest_batch']:,} rows")
    return "\n".join([*lines, "", figures["report"]])


def table(figures: Sequence[dict[str, Any]]) -> str:
    """The figures as Markdown."""
    columns = (
        "what", "rows x tokens", "precision", "compile, s", "kernels (per layer)", "GB moved", "TFLOP",
        "predicted ms", "share of peak", "temporary, GB", "largest batch",
    )  # fmt: skip
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for each in figures:
        case = each["case"]
        what = f"{case['kind']} {case['size']}"
        shape = "" if case["kind"] == "update" else f"{case['batch_size']} x {case['seq_length']}"
        largest = f"{each['largest_batch']:,}" if "largest_batch" in each else ""
        rows.append(
            f"| {what} | {shape} | {case['precision']} | {each['compile_s']:.0f} | "
            f"{each['kernels']:,} ({each['kernels_per_layer']:.0f}) | {each['gigabytes']:.1f} | "
            f"{each['teraflop']:.2f} | {each['predicted_ms']:.2f} | {each['share_of_peak']:.0%} | "
            f"{each['temporary_gigabytes']:.2f} | {largest} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
