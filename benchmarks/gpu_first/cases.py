"""The functions that are exported for a GPU machine. `prepare` exports them on a machine without one."""

import gzip
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

TINY = {
    "size": "tiny", "vocab_size": 500, "batch_size": 4, "seq_length": 128, "lengths": "mixed", "values": "all",
}  # fmt: skip
# Name -> flags of step_export. The tiny ones are checked, the others timed.
CASES: dict[str, dict] = {
    "tiny_squad_fp32": TINY | {"precision": "fp32"},
    "tiny_squad_bf16": TINY | {"precision": "bf16"},
    "tiny_pretraining_bf16": TINY | {"kind": "pretraining", "precision": "bf16"},
    "tiny_step_fp16": TINY | {"kind": "step", "precision": "fp16"},
    "tiny_predict_bf16": TINY | {"kind": "predict", "lengths": "full", "precision": "bf16"},
}
for _size in ("base", "large"):
    for _rows in (32, 64):
        CASES[f"{_size}_{_rows}"] = {"size": _size, "batch_size": _rows}
    CASES[f"{_size}_32_no_attention_dropout"] = {"size": _size, "attention_dropout": 0.0}
    CASES[f"{_size}_32_step"] = {"size": _size, "kind": "step"}
    CASES[f"{_size}_32_predict"] = {"size": _size, "kind": "predict"}
    CASES[f"{_size}_32_pretraining"] = {"size": _size, "kind": "pretraining", "seq_length": 512}


def prepare(folder: Path, names: Iterable[str] = ()) -> None:
    """Exports cases (default: all) into the folder, each in its own process, which gives its memory back."""
    for name in [*names] or CASES:
        command = [sys.executable, "-m", "benchmarks.gpu_first", "export", name, str(folder)]
        subprocess.run(command, check=True)
    files = [file for file in folder.iterdir() if file.is_file()]
    print(f"{folder}: {len(files)} files, {sum(file.stat().st_size for file in files) / 1e6:.1f} MB")


def export(name: str, folder: Path) -> None:
    from benchmarks.step_export import Export
    from benchmarks.step_functions import ExportConfig

    path = folder / name
    config = ExportConfig(**({"values": "arguments"} | CASES[name] | {"output_file": str(path)}))
    Export(config).write(path)
    pack(path)


def pack(path: Path) -> None:
    """Replaces `PATH.mlir` by `PATH.mlir.gz`, which is far smaller."""
    module = Path(f"{path}.mlir")
    Path(f"{module}.gz").write_bytes(gzip.compress(module.read_bytes(), mtime=0))
    module.unlink()
