"""The functions that are exported for a GPU machine. `prepare` exports them on a machine without one."""

import gzip
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

TINY = {
    "size": "tiny", "vocab_size": 500, "batch_size": 4, "seq_length": 128, "lengths": "mixed", "values": "all",
}  # fmt: skip
CUDNN = {"attention": "cudnn", "attention_dropout": 0.0}
# Name -> flags of step_export. The tiny ones are checked, the others timed.
CASES: dict[str, dict] = {
    "tiny_squad_fp32": TINY | {"precision": "fp32"},
    "tiny_squad_bf16": TINY | {"precision": "bf16"},
    "tiny_cudnn_bf16": TINY | CUDNN | {"precision": "bf16"},
    "tiny_pretraining_bf16": TINY | {"kind": "pretraining", "precision": "bf16"},
    "tiny_step_fp16": TINY | {"kind": "step", "precision": "fp16"},
    "tiny_predict_bf16": TINY | {"kind": "predict", "lengths": "full", "precision": "bf16"},
}
for _size in ("base", "large"):
    for _rows in (32, 64):
        CASES[f"{_size}_{_rows}"] = {"size": _size, "batch_size": _rows}
    CASES[f"{_size}_32_no_attention_dropout"] = {"size": _size, "attention_dropout": 0.0}
    CASES[f"{_size}_32_cudnn"] = {"size": _size} | CUDNN
    CASES[f"{_size}_32_step"] = {"size": _size, "kind": "step"}
    CASES[f"{_size}_32_predict"] = {"size": _size, "kind": "predict"}
    CASES[f"{_size}_32_pretraining"] = {"size": _size, "kind": "pretraining", "seq_length": 512}
ATTENTION = "attention_cudnn"
ATTENTION_SHAPE = (32, 384, 12, 64)


def prepare(folder: Path, names: Iterable[str] = ()) -> None:
    """Exports cases (default: all) into the folder, each in its own process, which gives its memory back."""
    for name in [*names] or [*CASES, ATTENTION]:
        command = [sys.executable, "-m", "benchmarks.gpu_first", "export", name, str(folder)]
        subprocess.run(command, check=True)
    files = [file for file in folder.iterdir() if file.is_file()]
    print(f"{folder}: {len(files)} files, {sum(file.stat().st_size for file in files) / 1e6:.1f} MB")


def export(name: str, folder: Path) -> None:
    from benchmarks.step_export import Export
    from benchmarks.step_functions import ExportConfig

    if name == ATTENTION:
        return export_attention(folder / name)
    path = folder / name
    config = ExportConfig(**({"values": "arguments"} | CASES[name] | {"output_file": str(path)}))
    Export(config).write(path)
    pack(path)
    return None


def pack(path: Path) -> None:
    """Replaces `PATH.mlir` by `PATH.mlir.gz`, which is far smaller."""
    module = Path(f"{path}.mlir")
    Path(f"{module}.gz").write_bytes(gzip.compress(module.read_bytes(), mtime=0))
    module.unlink()


def export_attention(path: Path) -> None:
    """`bert.cudnn_attention.attention` with its gradients: (query, key, value, d_context, lengths) -> (context,
    d_query, d_key, d_value), each [B, T, N, D] in bfloat16, but lengths int32 [B]."""
    import tensorflow as tf

    from benchmarks.step_export import Array
    from bert.cudnn_attention import attention

    def function(query, key, value, d_context, lengths):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            context = attention(query, key, value, lengths)
        return context, *tape.gradient(context, [query, key, value], d_context)

    rows, length, _, _ = ATTENTION_SHAPE
    lengths = np.random.default_rng(0).integers(length // 8, length + 1, rows).astype(np.int32)
    matrices = tf.zeros(ATTENTION_SHAPE, tf.bfloat16)
    compiled = tf.function(function, jit_compile=True, autograph=False)
    module = compiled.experimental_get_compiler_ir(*[matrices] * 4, lengths)(stage="stablehlo")
    names = ("query", "key", "value", "d_context")
    parameters = [Array(name, ATTENTION_SHAPE, "bfloat16", False) for name in names]
    parameters.append(Array("lengths", (rows,), "int32", False))
    results = [
        Array(name, ATTENTION_SHAPE, "bfloat16", False) for name in ("context", "d_query", "d_key", "d_value")
    ]
    described = {
        "parameters": [asdict(a) for a in parameters],
        "results": [asdict(a) for a in results],
        "parts": [],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{path}.mlir").write_text(module)
    pack(path)
    Path(f"{path}.json").write_text(json.dumps(described, indent=1) + "\n")
    stored: Any = {f"parameter_{len(names):04d}": lengths}
    np.savez_compressed(f"{path}.npz", **stored)
