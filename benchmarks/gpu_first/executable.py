"""An exported function (benchmarks/step_export.py), compiled and run by JAX on this machine's device.

Needs JAX and NumPy, and nothing of RingBERT's other packages.
"""

import gzip
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)  # the optimizer counts its steps in int64
NUM_WARMUP, NUM_TIMED = 3, 20


@dataclass(frozen=True)
class Times:
    """Milliseconds of a call: the median of calls that are awaited one by one, and of calls in a row."""

    ms: float
    least_ms: float
    in_row_ms: float


class Executable:
    """`PATH.mlir.gz`, with its description `PATH.json` and its values `PATH.npz`.

    Attributes:
      compile_s: how long XLA took.
    """

    def __init__(self, path: Path):
        from jax.extend.backend import get_backend
        from jaxlib import xla_client

        self.path = path
        self.description = json.loads(Path(f"{path}.json").read_text())
        client, options = get_backend(), xla_client.CompileOptions()
        devices = xla_client.DeviceList((jax.devices()[0],))
        start_s = time.perf_counter()
        self.loaded = client.compile_and_load(
            gzip.decompress(Path(f"{path}.mlir.gz").read_bytes()), devices, options
        )
        self.compile_s = time.perf_counter() - start_s

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        with np.load(f"{self.path}.npz") as file:
            return dict(file)

    def stored(self, kind: str) -> list[np.ndarray]:
        """The stored values of one kind: parameter, result or reference."""
        return [self.values[name] for name in sorted(self.values) if name.startswith(f"{kind}_")]

    def parameters(self) -> list[jax.Array]:
        """On the device: the stored values, and made-up ones for the others."""
        arrays = []
        for number, array in enumerate(self.description["parameters"]):
            name = f"parameter_{number:04d}"
            given = self.values.get(name)
            arrays.append(made_up(array, number) if given is None else on_device(given, array["dtype"]))
        return arrays

    def __call__(self, parameters: Sequence[jax.Array]) -> list[jax.Array]:
        results = self.loaded.execute_sharded(list(parameters)).disassemble_into_single_device_arrays()
        return [array for (array,) in results]

    @property
    def text(self) -> str:
        """The optimized HLO."""
        return "\n".join(module.to_string() for module in self.loaded.hlo_modules())

    def times(self, parameters: list[jax.Array]) -> Times:
        """A function that writes variables gets the new ones in the next call, as in training."""
        places = self._places_of_written()

        def call() -> list[jax.Array]:
            results = self(parameters)
            for place, number in places:
                parameters[place] = results[number]
            return results

        return times_of(call)

    def _places_of_written(self) -> list[tuple[int, int]]:
        """For each result that is a variable: the number of its parameter, and its own."""
        names = {array["name"]: number for number, array in enumerate(self.description["parameters"])}
        results = enumerate(self.description["results"])
        return [(names[array["name"]], number) for number, array in results if array["is_variable"]]


def times_of(call: Callable[[], Any]) -> Times:
    seconds = []
    for number in range(NUM_WARMUP + NUM_TIMED):
        start_s = time.perf_counter()
        jax.block_until_ready(call())
        if number >= NUM_WARMUP:
            seconds.append(time.perf_counter() - start_s)
    start_s = time.perf_counter()
    for _ in range(NUM_TIMED):
        results = call()
    jax.block_until_ready(results)
    in_row_s = (time.perf_counter() - start_s) / NUM_TIMED
    return Times(1e3 * statistics.median(seconds), 1e3 * min(seconds), 1e3 * in_row_s)


def on_device(value: np.ndarray, dtype: str) -> jax.Array:
    """NumPy files keep bfloat16 as raw bytes."""
    return jax.device_put(value.view(jnp.dtype(dtype)) if value.dtype.kind == "V" else value)


def made_up(array: dict, number: int) -> jax.Array:
    """Values like those of a model at the start of training, made on the device."""
    name, shape, dtype = array["name"], array["shape"], jnp.dtype(array["dtype"])
    if name.endswith("learning_rate"):
        return jnp.asarray(1e-5, dtype)
    if name.endswith("loss_scale"):
        return jnp.asarray([2.0**15, 0.0], dtype)
    if name.endswith(("adam_m", "adam_v", "beta", "bias")) or not jnp.issubdtype(dtype, jnp.floating):
        return jnp.zeros(shape, dtype)
    if name.endswith("gamma"):
        return jnp.ones(shape, dtype)
    return (0.02 * jax.random.normal(jax.random.key(number), shape, jnp.float32)).astype(dtype)
