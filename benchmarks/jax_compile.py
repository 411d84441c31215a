"""Compiles StableHLO for a GPU that is described in a file, with JAX's CUDA packages, on a machine
without one.

    PYTHON benchmarks/jax_compile.py h200.txtpb step.mlir [NUMBER OF GPUS]

writes `step.hlo`, the optimized HLO, and `step.memory.json`. PYTHON belongs to an environment of
its own (`pip install "jax[cuda12]"`, 5.4 GB; tried with JAX 0.10.2), so this file imports nothing
of RingBERT.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # there is no driver
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax.experimental import topologies
from jaxlib.mlir import ir


def main() -> None:
    target, module = map(Path, sys.argv[1:3])
    num_gpus = int(sys.argv[3]) if sys.argv[3:] else 1
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=target.read_text(), topology=f"1x1x{num_gpus}"
    )
    parsed = ir.Module.parse(module.read_text(), context=mlir.make_ir_context())
    options = compiler.get_compile_options(
        num_replicas=num_gpus,
        num_partitions=1,
        device_assignment=np.arange(num_gpus).reshape(num_gpus, 1),
    )
    start = time.perf_counter()
    devices = xla_client.DeviceList(tuple(topology.devices))
    compiled = topology.devices[0].client.compile(parsed, devices, options)
    seconds = time.perf_counter() - start
    module.with_suffix(".hlo").write_text(compiled.hlo_modules()[0].to_string())
    stats = compiled.get_compiled_memory_stats()
    sizes = {
        "temporary": stats.temp_size_in_bytes,
        "arguments": stats.argument_size_in_bytes,
        "seconds": seconds,
    }
    module.with_suffix(".memory.json").write_text(json.dumps(sizes))


if __name__ == "__main__":
    main()
