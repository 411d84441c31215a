"""Exports a function of RingBERT as StableHLO on a machine without a GPU, with the branches for GPUs.

    python -m benchmarks.step_export --kind squad --size base --batch_size 32 --precision bf16 --output_file step

writes `step.mlir`, which XLA can compile for any device, and `step.json` with the names, shapes and dtypes of its
parameters and results. The variables are parameters too. With `--values all`, `step.npz` holds the parameters, and
the results that TensorFlow's own operations compute from them in float32 on this machine; `step.json` says how far
from these the exported function's results are on this machine (benchmarks/step_errors.py).
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.step_errors import errors
from benchmarks.step_functions import APPLYING, ExportConfig, Precision, flop_of, functions, name_of
from tasks import flags
from tasks.job import set_precision

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Array:
    """A parameter or a result of an exported function."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_variable: bool


def main(argv: Sequence[str] | None = None) -> None:
    config = flags.parse(ExportConfig, argv, prog="benchmarks.step_export", description=str(__doc__))
    export = Export(config)
    export.write(Path(config.output_file))
    print(f"{config.output_file}.mlir: {len(export.module):,} bytes, {len(export.parameters)} parameters")


class Export:
    """A function for one shape, compiled as a whole, with example arguments.

    Attributes:
      module: StableHLO as text, because other versions of MLIR cannot always read the bytecode of TensorFlow's.
        Its main function takes `parameters` and returns `results`.
      parameters: the arguments, then the variables.
      results: the function's results, then the variables that it writes.
      parts: of the flat buffer [gradient | loss sums], which is the only result of a gradient: name, start and end
        of each part.
    """

    def __init__(self, config: ExportConfig, precision: Precision | None = None):
        """`precision` replaces that of the configuration, which still decides whether the loss is scaled."""
        import tensorflow as tf

        self.config = config
        with gpu_branches(), precision_of(precision or config.precision):
            self.python_function, arguments, self.variables, self.parts = functions(config)
            self.arguments = tf.nest.map_structure(_as_tensor, arguments)
            self.function = tf.function(self.python_function, jit_compile=True, autograph=False)
            self._graph = self.function.get_concrete_function(*self.arguments)

    @cached_property
    def module(self) -> bytes:
        with gpu_branches(), precision_of(self.config.precision):
            return self.function.experimental_get_compiler_ir(*self.arguments)(stage="stablehlo").encode()

    @cached_property
    def _captured(self) -> list[tuple[str, Any]]:
        """The name of each captured tensor, and its Keras variable or, if it is a constant, its value."""
        known = {id(variable.value.handle): variable for variable in self.variables}
        pairs = []
        for number, tensor in enumerate(self._graph.captured_inputs):
            variable = known.get(id(tensor))
            assert variable is not None or tensor.dtype != "resource", f"captured input {number} has no variable"
            pairs.append((f"constant/{number}", tensor) if variable is None else (name_of(variable), variable))
        return pairs

    @property
    def _written(self) -> "list[tuple[str, keras.Variable]]":
        if self.config.kind not in APPLYING:
            return []
        return [(name, variable) for name, variable in self._captured if not name.endswith("learning_rate")]

    @property
    def _given(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in paths(self.arguments) if hasattr(value, "numpy")]

    @property
    def parameters(self) -> list[Array]:
        captured = [array_of(name, value, is_variable=True) for name, value in self._captured]
        return [array_of(name, value) for name, value in self._given] + captured

    @property
    def results(self) -> list[Array]:
        outputs = [array_of(name, value) for name, value in paths(self._graph.structured_outputs)]
        return outputs + [array_of(name, variable, is_variable=True) for name, variable in self._written]

    def parameter_values(self) -> list[np.ndarray]:
        return [value.numpy() for _, value in (*self._given, *self._captured)]

    def result_values(self, is_compiled: bool = True) -> list[np.ndarray]:
        """What TensorFlow computes on the CPU: by XLA, as it is exported, or by its own operations, with the
        branches for CPUs. The variables are the same before and after."""
        import tensorflow as tf

        before = [variable.numpy() for variable in self.variables]
        if is_compiled:
            outputs = self.function(*self.arguments)
        else:
            outputs = tf.function(self.python_function, autograph=False)(*self.arguments)
        values = [value.numpy() for value in (*tf.nest.flatten(outputs), *(v for _, v in self._written))]
        for variable, value in zip(self.variables, before, strict=True):
            variable.assign(value)
        return values

    def write(self, path: Path) -> None:
        """Writes the module and its description, and the values if the configuration asks for them."""
        described = {
            "config": asdict(self.config),
            "parameters": [asdict(array) for array in self.parameters],
            "results": [asdict(array) for array in self.results],
            "parts": self.parts,
            "flop": flop_of(self.config),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        Path(f"{path}.mlir").write_bytes(self.module)
        values: dict[str, Any] = {}
        if self.config.values == "arguments":
            values = numbered("parameter", [value.numpy() for _, value in self._given])
        elif self.config.values == "all":
            reference = Export(self.config, "fp32").result_values(is_compiled=False)
            values = numbered("parameter", self.parameter_values()) | numbered("reference", reference)
            described["errors_on_cpu"] = errors(self.result_values(), reference, described)
        if values:
            np.savez_compressed(f"{path}.npz", **values)
        Path(f"{path}.json").write_text(json.dumps(described, indent=1) + "\n")


# -- the branches for GPUs, and names -----------------------------------------------------------------------------


@contextlib.contextmanager
def gpu_branches() -> Iterator[None]:
    """While it is open, functions are traced as on a machine with a GPU."""
    from bert import ops

    on_cpu = ops.on_cpu
    ops.on_cpu = lambda: False
    ops._softmax_computes_in_float32.cache_clear()
    try:
        yield
    finally:
        ops.on_cpu = on_cpu
        ops._softmax_computes_in_float32.cache_clear()


@contextlib.contextmanager
def precision_of(precision: Precision) -> Iterator[None]:
    """While it is open, models are made and functions are exported for this precision."""
    import keras
    import tensorflow as tf

    policy, tf32 = keras.config.dtype_policy(), tf.config.experimental.tensor_float_32_execution_enabled()
    set_precision(precision)
    tf.config.experimental.enable_tensor_float_32_execution(precision != "fp32")  # as set_precision does on a GPU
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)
        tf.config.experimental.enable_tensor_float_32_execution(tf32)


def paths(nested: Any) -> list[tuple[str, Any]]:
    """The leaves of nested tuples and dicts in TensorFlow's order, with their paths."""
    import tensorflow as tf

    names = ["/".join(map(str, path)) for path in tf.__internal__.nest.yield_flat_paths(nested)]
    return list(zip(names, tf.nest.flatten(nested), strict=True))


def array_of(name: str, value: Any, is_variable: bool = False) -> Array:
    dtype = value.dtype if isinstance(value.dtype, str) else value.dtype.name
    return Array(name, tuple(value.shape), dtype, is_variable)


def numbered(kind: str, values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The values as entries of an .npz file, in order."""
    return {f"{kind}_{number:04d}": value for number, value in enumerate(values)}


def _as_tensor(value: Any) -> Any:
    import tensorflow as tf

    return tf.constant(value) if isinstance(value, np.ndarray) else value


if __name__ == "__main__":
    main()
