"""Runs an exported step with its sums inside on one of several processes of JAX's CPU runtime,
which has collectives of its own.

    PYTHON -m benchmarks.jax_ranks step.mlir RANK RANKS PORT

prints the loss and the gradient norm of some steps; all processes of a job run it together.
`step.mlir` comes from `benchmarks/gpu_sums.py --ranks RANKS`, or for one rank from
`benchmarks/gpu_compile.py`. All ranks have the same batch, so the numbers are those of one rank.
PYTHON belongs to an environment of its own (`pip install jax`; tried with JAX 0.10.2), so this file
imports nothing of RingBERT.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir

from benchmarks.jax_step import ALIAS, value

NUM_STEPS = 3


def joined(rank: int, num_ranks: int, port: int) -> list[Any]:
    """The devices of all processes, once they have found each other."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)  # the step counts in int64
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if num_ranks > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", num_ranks, rank)
    return jax.devices()


def main() -> None:
    path, (rank, num_ranks, port) = Path(sys.argv[1]), map(int, sys.argv[2:])
    devices = joined(rank, num_ranks, port)
    text = path.read_text()
    results = {int(argument): int(result) for argument, result in ALIAS.findall(text)}
    options = compiler.get_compile_options(
        num_replicas=num_ranks,
        num_partitions=1,
        device_assignment=np.array([[device.id] for device in devices]),
    )
    step = devices[0].client.compile_and_load(
        ir.Module.parse(text, context=mlir.make_ir_context()),
        executable_devices=xla_client.DeviceList(tuple(devices)),
        compile_options=options,
    )
    everywhere = NamedSharding(Mesh(np.array(devices), "rank"), PartitionSpec())

    def of_all(own: Any) -> jax.Array:
        return jax.make_array_from_single_device_arrays(own.shape, everywhere, [own])

    facts = json.loads(path.with_suffix(".json").read_text())
    here = jax.local_devices()[0]
    arguments = []
    for seed, each in enumerate(facts["arguments"]):
        arguments.append(of_all(jax.device_put(value(each, seed), here)))
    for number in range(NUM_STEPS):
        outputs = step.execute_sharded(arguments).disassemble_into_single_device_arrays()
        for argument, result in results.items():
            arguments[argument] = of_all(outputs[result][0])
        loss, norm = (float(np.asarray(output[0])) for output in outputs[:2])
        print(json.dumps({"rank": rank, "step": number, "loss": loss, "norm": norm}), flush=True)


if __name__ == "__main__":
    main()
