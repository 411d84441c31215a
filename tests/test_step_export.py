"""benchmarks/step_export.py: the exported functions and their descriptions."""

import json
import re

import numpy as np
import pytest

from benchmarks import step_export
from bert import ops
from tasks import flags

TINY = ["--size=tiny", "--vocab_size=50", "--batch_size=2", "--seq_length=24", "--lengths=mixed"]
DTYPES = {"f32": "float32", "i32": "int32", "i64": "int64", "i1": "bool"}


def types(text: str) -> list[tuple[str, list[int]]]:
    """The tensor types of a StableHLO signature: dtype and shape."""
    found = re.findall(r"tensor<((?:\d+x)*)(\w+)>", text)
    return [(DTYPES[dtype], [int(size) for size in shape.split("x") if size]) for shape, dtype in found]


def config_of(*argv: str) -> step_export.ExportConfig:
    return flags.parse(step_export.ExportConfig, argv, prog="", description="")


def described(arrays: list[dict]) -> list[tuple[str, list[int]]]:
    return [(array["dtype"], array["shape"]) for array in arrays]


@pytest.mark.parametrize("kind", ["pretraining", "step", "predict"])
def test_the_module_takes_and_returns_what_the_description_says(kind, tmp_path):
    step_export.main([f"--kind={kind}", f"--output_file={tmp_path}/step", *TINY])
    text = (tmp_path / "step.mlir").read_text()
    signature = re.search(r"func\.func (?:public )?@main\((.*?)\) -> (.*?) \{\n", text, re.S)
    assert signature
    description = json.loads((tmp_path / "step.json").read_text())
    assert types(signature[1]) == described(description["parameters"])
    assert types(signature[2]) == described(description["results"])
    names = [array["name"] for array in description["parameters"]]
    assert "bert/embeddings/word_embeddings" in names
    assert len(set(names)) == len(names)
    assert ops.on_cpu()  # the branches for GPUs are off again


@pytest.mark.slow
def test_xla_agrees_with_tensorflows_own_operations(tmp_path):
    """In float32, the exported function on the CPU and the uncompiled branches for CPUs differ by rounding: by
    1e-5 of the largest element of a variable's gradient, or by 1e-6 where it is nearly 0.

    The gradients of the span head's bias, of the last LayerNorm's beta and of the keys' biases are 0, because a
    softmax does not change when all its scores change alike; rounding leaves up to 1e-7 there.
    """
    export = step_export.Export(config_of("--precision=fp32", *TINY))
    (result,), (reference,) = export.result_values(), export.result_values(is_compiled=False)
    assert result.shape == (export.parts[-1][2],)
    assert np.abs(reference).max() > 1
    for name, start, end in export.parts:
        expected = reference[start:end]
        tolerance = max(1e-5 * np.abs(expected).max(), 1e-6)
        np.testing.assert_allclose(result[start:end], expected, rtol=0, atol=tolerance, err_msg=name)


def test_a_bad_size_is_one_line(capsys):
    with pytest.raises(SystemExit) as stop:
        step_export.main(["--size=giant"])
    assert stop.value.code == 2
    expected = "--size must be tiny, minilm, base, large or a number of layers, got 'giant'"
    assert capsys.readouterr().err == f"benchmarks.step_export: error: {expected}\n"
