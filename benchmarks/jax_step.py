"""Runs an exported training step through JAX, where TensorFlow is missing: its losses, or its
speed.

    PYTHON benchmarks/jax_step.py step.mlir [--device cpu] [--within 1e-4] [--against other.mlir]

`step.mlir` and `step.json` come from `benchmarks/gpu_compile.py`, which runs on any machine with
TensorFlow. JAX compiles with the same compiler, XLA, in another version. PYTHON belongs to an
environment of its own (`pip install "jax[cuda12]"`; tried with JAX 0.10.2 on CPUs), so this file
imports nothing of RingBERT.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jaxlib.mlir import ir

NUM_WARMUP, NUM_STEPS, NUM_RATES = 3, 20, 3
# which result is the new value of which argument
ALIAS = re.compile(r"parameter_number = (\d+) : i64\}, output_index = array<i64: (\d+)>")


class Step:
    """A compiled step on a device, with its batch and its variables."""

    def __init__(self, path: Path, device: Any):
        text = path.read_text()
        facts = json.loads(path.with_suffix(".json").read_text())
        self.rows = facts["rows"]
        self.result_of = {int(argument): int(result) for argument, result in ALIAS.findall(text)}
        module = ir.Module.parse(text, context=mlir.make_ir_context())
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        start_s = time.perf_counter()
        self.compiled = device.client.compile_and_load(
            module, executable_devices=xla_client.DeviceList((device,)), compile_options=options
        )
        seconds = time.perf_counter() - start_s
        temporary = self.compiled.get_compiled_memory_stats().temp_size_in_bytes
        print(
            f"{device.device_kind}: compiled in {seconds:.0f} s, {temporary / 1e9:.2f} GB temporary"
        )
        numbered = enumerate(facts["arguments"])
        self.arguments = [jax.device_put(value(each, seed), device) for seed, each in numbered]

    def take(self) -> list[Any]:
        """One step. Returns loss and gradient norm, which the device may still be computing."""
        outputs = self.compiled.execute_sharded(self.arguments)
        results = [array for (array,) in outputs.disassemble_into_single_device_arrays()]
        # the batch and the learning rate have no result
        for argument, result in self.result_of.items():
            self.arguments[argument] = results[result]
        return results[:2]

    def losses(self, count: int) -> np.ndarray:
        """The losses and norms of the next steps, [count, 2]."""
        return np.array([[float(number) for number in self.take()] for _ in range(count)])


def value(argument: dict[str, Any], seed: int) -> np.ndarray:
    """An argument's value, the same on every machine."""
    shape, dtype = argument["shape"], argument["dtype"]
    if "values" in argument:
        return np.array(argument["values"], dtype).reshape(shape)
    random = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return (argument["mean"] + argument["deviation"] * random).astype(dtype)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", type=Path, help="the exported step, .mlir")
    parser.add_argument("--device", default="cuda", help="JAX's platform (default: cuda)")
    parser.add_argument(
        "--within",
        type=float,
        help="compare two steps with the CPU's instead of measuring the speed; largest relative"
        " difference of their losses and gradient norms",
    )
    parser.add_argument(
        "--against", type=Path, help="what the CPU computes then (default: the same step)"
    )
    options = parser.parse_args()
    step = Step(options.step, jax.devices(options.device)[0])
    if options.within is not None:
        ours = step.losses(2)
        expected = Step(options.against or options.step, jax.devices("cpu")[0]).losses(2)
        difference = float(np.max(np.abs(ours / expected - 1)))
        print(f"losses and gradient norms {ours.tolist()}, on the CPU {expected.tolist()}")
        print(f"largest relative difference: {difference:.1e}, at most {options.within:g}")
        # not a number is no agreement
        sys.exit(not difference <= options.within)
    step.losses(NUM_WARMUP)
    for _ in range(NUM_RATES):
        start_s = time.perf_counter()
        for _ in range(NUM_STEPS):
            last = step.take()
        loss = float(last[0])  # waits for the device
        seconds = time.perf_counter() - start_s
        print(
            f"total examples/sec: {NUM_STEPS * step.rows / seconds:.2f}, loss {loss:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
