"""Predicts how long XLA's compiled code takes on a GPU, from the optimized HLO that XLA writes as text.

    python -m benchmarks.gpu_roofline step.hlo

A kernel takes the longer of two times: that of the bytes which it reads and writes, at the GPU's memory bandwidth,
and that of the floating-point operations of its matrix products, at the peak of their dtype. Kernels run one after
the other. Caches, launches, arithmetic other than products, and the real speed of a product are left out, so this
is a lower bound; the model's error is unknown until it is measured on a GPU.
"""

import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SIZES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8,
    "u64": 8, "f64": 8,
}  # fmt: skip
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "after-all"}
PARTS = {"slice", "dynamic-slice", "gather"}  # read a part of their first operand
INSTRUCTION = re.compile(r"\s*(?:ROOT )?%([\w.$\-]+) = (\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\((.*)$")
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.$\-]+) \([^\n]*\{\n(.*?)^\}", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """Peaks of a GPU: bytes of memory, bytes/s, and FLOP/s of matrix products by dtype."""

    memory_bytes: float
    bandwidth: float
    flops: dict[str, float]


# NVIDIA's data sheet, without sparsity. float32 products use no tensor cores, as TF32 is off.
H200 = Gpu(141e9, 4.8e12, {"bf16": 989e12, "f16": 989e12, "f32": 67e12, "f64": 67e12})


def arrays(shape: str) -> list[tuple[str, list[int]]]:
    """The dtypes and dimensions of an HLO shape, which may be a tuple."""
    found = re.findall(r"(\w+)\[([\d,]*)\]", shape)
    return [(dtype, [int(size) for size in sizes.split(",") if size]) for dtype, sizes in found if dtype in SIZES]


def num_bytes(shape: str) -> int:
    return sum(SIZES[dtype] * math.prod(sizes) for dtype, sizes in arrays(shape))


@dataclass(frozen=True)
class Instruction:
    """One line of HLO; `rest` is what follows the operands."""

    name: str
    shape: str
    operation: str
    operands: list[str]
    rest: str
    is_root: bool

    def attribute(self, name: str) -> str | None:
        """The value of `name={…}` or `name=%…`."""
        found = re.search(rf"\b{name}=(?:\{{([\d,]*)\}}|%?([\w.$\-]+))", self.rest)
        return found and (found.group(1) if found.group(1) is not None else found.group(2))


@dataclass
class Computation:
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @property
    def root(self) -> Instruction:
        return next(each for each in self.instructions.values() if each.is_root)

    @property
    def parameters(self) -> list[Instruction]:
        return [each for each in self.instructions.values() if each.operation == "parameter"]


@dataclass(frozen=True)
class Kernel:
    """What one kernel does.

    Attributes:
      kind: product, attention, reduction, scatter, loop or other.
      bytes_moved, flops: read and written; of its matrix products, whose operands have this `dtype`.
    """

    name: str
    kind: str
    shape: str
    bytes_moved: int
    flops: int
    dtype: str

    def seconds(self, gpu: Gpu) -> float:
        of_products = self.flops / gpu.flops[self.dtype] if self.flops else 0.0
        return max(self.bytes_moved / gpu.bandwidth, of_products)


def parsed(text: str) -> tuple[dict[str, Computation], str]:
    """The computations of a module by name, and the name of the entry."""
    computations, entry = {}, ""
    for found in COMPUTATION.finditer(text):
        is_entry, name, body = found.groups()
        computation = computations[name] = Computation()
        entry = name if is_entry else entry
        for line in body.splitlines():
            if instruction := _instruction(line):
                computation.instructions[instruction.name] = instruction
    if not entry:
        raise ValueError("no ENTRY computation: this is not XLA's text of a module")
    return computations, entry


def _instruction(line: str) -> Instruction | None:
    found = INSTRUCTION.match(line)
    if not found:
        return None
    name, shape, operation, rest = found.groups()
    end = _closing(rest)
    operands = re.findall(r"%([\w.$\-]+)", rest[:end]) or [rest[:end].strip()]
    return Instruction(name, shape, operation, operands, rest[end + 1 :], line.lstrip().startswith("ROOT"))


def _closing(text: str) -> int:
    """Where the parenthesis that is open at the beginning of the text closes."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return place
    return len(text)


def kernels(text: str) -> list[Kernel]:
    """The kernels of a module, in order."""
    return list(_kernels(*parsed(text)))


def _kernels(computations: dict[str, Computation], name: str) -> Iterator[Kernel]:
    computation = computations[name]
    for each in computation.instructions.values():
        if each.operation in FREE:
            continue
        if each.operation == "call":  # a part with kernels of its own
            yield from _kernels(computations, str(each.attribute("to_apply")))
            continue
        body = computations.get(str(each.attribute("calls")))
        inside = list(body.instructions.values()) if body else [each]
        within = body or computation
        flops, dtype = _flops(each, inside, within, computation)
        yield Kernel(
            name=each.name,
            kind=_kind(each, inside),
            shape=re.sub(r"\{[^}]*\}", "", each.shape),
            bytes_moved=_bytes(each, body, computation),
            flops=flops,
            dtype=dtype,
        )


def _kind(kernel: Instruction, inside: Sequence[Instruction]) -> str:
    operations = {each.operation for each in inside}
    target = _target(kernel)
    if "dot" in operations or target.startswith("__cublas"):
        return "product"
    for operation, kind in (("scatter", "scatter"), ("reduce", "reduction")):
        if operation in operations:
            return kind
    return "loop" if kernel.operation == "fusion" or operations & {"copy", "transpose", "broadcast"} else "other"


def _target(kernel: Instruction) -> str:
    found = re.search(r'custom_call_target="([^"]+)"', kernel.rest)
    return found.group(1) if found else ""


def _bytes(kernel: Instruction, body: Computation | None, around: Computation) -> int:
    """Read and written. Of an operand of which a fusion takes slices or rows, only these count. A scatter adds in
    place: it reads the updates, and reads and writes as many rows."""
    shapes = [around.instructions[name].shape for name in kernel.operands if name in around.instructions]
    if body is None:
        return num_bytes(kernel.shape) + sum(map(num_bytes, shapes))
    root = body.root
    if root.operation == "scatter":
        read = [num_bytes(each.shape) for each in body.parameters if each.name != root.operands[0]]
        return sum(read) + 2 * num_bytes(body.instructions[root.operands[2]].shape)
    return num_bytes(kernel.shape) + sum(_read(body, each, num_bytes(each.shape)) for each in body.parameters)


def _read(body: Computation, array: Instruction, whole: int) -> int:
    """How many bytes of a parameter, or of another view of it, the fusion reads."""
    total = 0
    for use in (each for each in body.instructions.values() if array.name in each.operands):
        if use.operation in PARTS and use.operands[0] == array.name:
            total += num_bytes(use.shape)
        elif use.operation == "bitcast" and not use.is_root:
            total += _read(body, use, whole)
        else:
            return whole
    return min(whole, total)


def _flops(
    kernel: Instruction, inside: Sequence[Instruction], within: Computation, around: Computation
) -> tuple[int, str]:
    """Of the kernel's matrix products, two for each multiplication; and the dtype of their left operand."""
    target = _target(kernel)
    if target.startswith("__cublas"):
        contracted = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', kernel.rest)
        return _product(kernel, contracted.group(1).replace('"', "") if contracted else "", around)
    products = [
        _product(each, each.attribute("lhs_contracting_dims") or "", within)
        for each in inside
        if each.operation == "dot"
    ]
    return sum(flops for flops, _ in products), products[0][1] if products else ""


def _product(product: Instruction, contracted: str, around: Computation) -> tuple[int, str]:
    """FLOP and dtype of a product over these dimensions of the left operand."""
    dtype, left = arrays(around.instructions[product.operands[0]].shape)[0]
    sizes = [left[int(place)] for place in contracted.split(",") if place]
    return 2 * math.prod(arrays(product.shape)[0][1]) * math.prod(sizes), dtype


# -- sums over kernels --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """What the model says about one call of the compiled code."""

    kernels: list[Kernel]
    gpu: Gpu

    @property
    def bytes_moved(self) -> int:
        return sum(kernel.bytes_moved for kernel in self.kernels)

    @property
    def flops(self) -> int:
        return sum(kernel.flops for kernel in self.kernels)

    @property
    def seconds(self) -> float:
        return sum(kernel.seconds(self.gpu) for kernel in self.kernels)

    @property
    def share_of_peak(self) -> float:
        """The time of the products alone, at their peak, as a share of the predicted time."""
        at_peak = sum(kernel.flops / self.gpu.flops[kernel.dtype] for kernel in self.kernels if kernel.flops)
        return at_peak / self.seconds if self.seconds else 0.0

    def by_kind(self) -> dict[str, "Prediction"]:
        kinds: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in self.kernels:
            kinds[kernel.kind].append(kernel)
        return {kind: Prediction(each, self.gpu) for kind, each in sorted(kinds.items())}

    def largest_groups(self, number: int) -> list[tuple[str, "Prediction"]]:
        """Kernels of one kind, name and result shape: the groups that move the most bytes."""
        groups: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in self.kernels:
            name = re.sub(r"[\d.]+$", "", kernel.name)
            groups[f"{kernel.kind}: {name} {kernel.shape}"].append(kernel)
        predictions = [(name, Prediction(each, self.gpu)) for name, each in groups.items()]
        return sorted(predictions, key=lambda pair: -pair[1].bytes_moved)[:number]

    def line(self, name: str) -> str:
        return (
            f"{name:<60} {len(self.kernels):>5} kernels {self.bytes_moved / 1e9:>8.2f} GB "
            f"{self.flops / 1e12:>7.2f} TFLOP {self.seconds * 1e3:>7.2f} ms"
        )

    def __str__(self) -> str:
        lines = [self.line("all"), *(each.line(kind) for kind, each in self.by_kind().items())]
        lines += ["", "the groups of kernels that move the most bytes:"]
        lines += [each.line(name[:60]) for name, each in self.largest_groups(12)]
        lines += ["", f"products alone, at their peak: {self.share_of_peak:.0%} of the predicted time;"]
        return "\n".join([*lines, "the model's error is unknown until it is measured on a GPU"])


def predict(text: str) -> Prediction:
    return Prediction(kernels(text), H200)


if __name__ == "__main__":
    print(predict(Path(sys.argv[1]).read_text()))
