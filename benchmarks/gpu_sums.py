"""When the sums over ranks of a training step begin and end on eight H200, predicted on a machine
without a GPU.

    python -m benchmarks.gpu_sums --jax_python JAX/bin/python --sums layers

exports the step of `--step whole` (`--sums layers`), or one with a single sum of all gradients
(`joined`), and compiles it as `benchmarks/gpu_compile.py` does, for `--ranks` GPUs. The order of
the compiled code is the schedule of each GPU: kernels take the time that `gpu_roofline.py`
predicts, times `SLOWER`, and a sum of S bytes over N ranks 2 (N - 1) / N * S / bandwidth, in a
queue of its own. What the kernels wait for is exposed. The bandwidth is the "busbw" of nccl-tests.
`--hlo` reads code that is there already.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, NamedTuple

import tensorflow as tf

from benchmarks.gpu_compile import FOLDER, Parts, Step, exported
from benchmarks.gpu_roofline import Computation, Instruction, kernels_of, num_bytes, parsed
from bert.model import no_stage
from bert.sizes import SIZES
from distributed.collectives.tensorflow import TensorflowCollectives
from distributed.devices import Device
from distributed.gradient import LossGradient, by_xla
from distributed.optimizer import AllreduceOptimizer
from distributed.step import LayeredStep, WholeStep
from distributed.world import World
from ringbase.settings import made
from tasks.bench.settings import LoadSettings
from tasks.runs.execute.job import POLICIES

Compression = Literal["none", "bf16"]

SLOWER = 1.6  # than predicted: steps on an H200 (docs/measured.md)
LATENCY_S = 30e-6  # of a sum
ENDS = "all-reduce-done", "async-done"
BANDWIDTHS = 460, 20  # GB/s: NVLink between eight H100, and cards on PCIe 4 (assumed)


# The code of a sum, from its name to the dtypes of its vectors.
SUM = re.compile(r'"stablehlo\.all_reduce"(?:.*\n)+?\s*\}\) : .*\n')


class OfExport(TensorflowCollectives):
    """NCCL's sums over ranks that are not there."""

    def __init__(self, num_ranks: int):
        self.name = "nccl"
        self._compiled = tf.function(self._sums, autograph=False)
        self._size = num_ranks
        self._device = nullcontext()


def of_ranks(parts: Parts, num_ranks: int, sums: str, compression: Compression) -> Step:
    """The step of one rank of several, which gives the loss, the norm of the gradient and, with
    `sums` "layers", samples of the sums."""

    def staged(stage):
        return lambda batch, key: parts.loss(batch, key, stage)

    def loss(batch, key):
        return parts.loss(batch, key, no_stage)

    optimizer = AllreduceOptimizer(
        parts.optimizer,
        parts.variables,
        World(device=Device("gpu")),
        OfExport(num_ranks),
        compression=compression,
    )
    task = parts.task
    gradient = LossGradient(loss, task.weights, task.terms, parts.variables, by_xla)
    whole = WholeStep(gradient, optimizer)  # its sink makes one sum
    if sums == "layers":
        whole = LayeredStep(gradient, staged, parts.names, optimizer)

    def step(batch, key):
        factors = tf.constant([1 / (num_ranks * parts.num_rows)])
        outputs = tf.nest.flatten(whole._in_graph(batch, factors, key, []))
        norm, _, _, _, loss_sum = tf.unstack(outputs[0])
        return [loss_sum * factors[0], norm, *outputs[1:]]

    return step


class Sum(NamedTuple):
    """One sum over ranks in a schedule, in seconds from the beginning of the step."""

    num_bytes: int
    start_s: float  # when its input is there
    needed_s: float  # when the kernels need its result
    end_s: float

    @property
    def exposed_s(self) -> float:
        return max(0.0, self.end_s - self.needed_s)


class Schedule(NamedTuple):
    """A step with its sums."""

    kernels_s: float
    sums: list[Sum]

    @property
    def exposed_s(self) -> float:
        return sum(each.exposed_s for each in self.sums)

    @property
    def step_s(self) -> float:
        return self.kernels_s + self.exposed_s

    def __str__(self) -> str:
        total_s = sum(num_bytes for num_bytes, *_ in self.sums)
        first = self.sums[0].start_s if self.sums else 0.0
        return (
            f"{len(self.sums)} sums of {total_s / 1e6:.1f} MB; step {self.step_s * 1e3:.1f} ms,"
            f" kernels {self.kernels_s * 1e3:.1f}; the first sum starts at {first * 1e3:.1f};"
            f" exposed {self.exposed_s * 1e3:.1f}"
        )


def schedule(text: str, bandwidth: float, num_ranks: int) -> Schedule:
    """That of optimized HLO, with a bandwidth in bytes/s."""
    computations, entry = parsed(text)
    code = computations[entry]
    seconds_of: dict[str, float] = {}
    for kernel in kernels_of(computations, entry):
        seconds_of[kernel.name] = SLOWER * kernel.seconds
    now_s = kernels_s = queue_s = 0.0
    under_way: dict[str, tuple[int, float, float]] = {}
    sums = []
    for name, each in code.items():
        if each.operation in ("while", "call"):
            raise ValueError(f"{name} is a {each.operation}, whose place in time is not known")
        if begins_sum(each, computations):
            size = sum(num_bytes(code[operand].shape) for operand in each.operands)
            lasts_s = LATENCY_S + size * 2 * (num_ranks - 1) / num_ranks / bandwidth
            queue_s = max(now_s, queue_s) + lasts_s
            under_way[name] = size, now_s, queue_s
        elif each.operation in ENDS and each.operands[0] in under_way:
            size, start_s, end_s = under_way[each.operands[0]]
            sums.append(Sum(size, start_s, now_s, end_s))
            now_s = max(now_s, end_s)
        elif name in seconds_of:
            kernels_s += seconds_of[name]
            now_s += seconds_of[name]
    return Schedule(kernels_s, sums)


def begins_sum(each: Instruction, computations: dict[str, Computation]) -> bool:
    """Whether an instruction begins a sum. One that also waits for it is refused."""
    if each.operation == "all-reduce":
        raise ValueError(f"{each.name} is no asynchronous sum")
    called = computations.get(each.attribute("calls"), {})
    operations = {inside.operation for inside in called.values()}
    return each.operation == "all-reduce-start" or (
        each.operation == "async-start" and "all-reduce" in operations
    )


def as_parsed(code: str) -> str:
    """The code of a sum as JAX's parser wants it: TensorFlow adds bfloat16 in float32."""
    is_bf16 = "xbf16>) ->" in code
    return code.replace("tensor<f32>", "tensor<bf16>") if is_bf16 else code


def table(text: str, num_ranks: int) -> Iterator[str]:
    """The schedule at each of BANDWIDTHS, in words."""
    for bandwidth in BANDWIDTHS:
        yield f"{bandwidth} GB/s: {schedule(text, bandwidth * 1e9, num_ranks)}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jax_python", help="Python of an environment with jax[cuda12]")
    parser.add_argument("--hlo", type=Path, help="read this file instead of compiling")
    parser.add_argument("--sums", choices=("layers", "joined"), default="layers", help="(layers)")
    parser.add_argument("--compression", choices=("none", "bf16"), default="none", help="(none)")
    parser.add_argument("--ranks", type=int, default=8, help="GPUs (default: 8)")
    parser.add_argument("--size", choices=SIZES, default="base", help="model size (default: base)")
    parser.add_argument("--batch_size", type=int, default=32, help="rows of a rank (default: 32)")
    parser.add_argument("--seq_length", type=int, default=384, help="tokens per row (default: 384)")
    parser.add_argument("--precision", choices=POLICIES, default="bf16", help="(default: bf16)")
    parser.add_argument(
        "--output_file", default="step", help="path of the files to write (default: step)"
    )
    options = parser.parse_args(argv)
    if options.hlo:
        print(*table(options.hlo.read_text(), options.ranks), sep="\n")
        return
    if options.compression != "none" and options.sums != "layers":
        sys.exit("gpu_sums: --compression needs --sums layers: TensorFlow's NCCL sums no bfloat16")
    shape = {
        "batch_size": options.batch_size,
        "seq_length": options.seq_length,
        "precision": options.precision,
    }
    load = made(LoadSettings, {"model_size": options.size, "xla": "on", **shape})
    kind = options.ranks, options.sums, options.compression
    text, arguments = exported(load, lambda parts: of_ranks(parts, *kind))
    text = SUM.sub(lambda found: as_parsed(found[0]), text)
    module = Path(f"{options.output_file}.mlir")
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text(text)
    facts = {"rows": options.batch_size, "arguments": arguments}
    module.with_suffix(".json").write_text(json.dumps(facts))
    print(f"{module}: {text.count('stablehlo.all_reduce')} sums, {len(text):,} characters")
    if options.jax_python:
        program = str(FOLDER / "jax_compile.py"), str(FOLDER / "h200.txtpb"), str(module)
        subprocess.run([options.jax_python, *program, str(options.ranks)], check=True)
        print(*table(module.with_suffix(".hlo").read_text(), options.ranks), sep="\n")


if __name__ == "__main__":
    main()
