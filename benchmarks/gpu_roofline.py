"""Predicts how long XLA's compiled code takes on a GPU, from the optimized HLO that XLA writes as
text.

    python -m benchmarks.gpu_roofline step.hlo

A kernel takes the longer of two times: that of the bytes which it reads and writes, at the GPU's
memory bandwidth, and that of the floating-point operations of its matrix products, at the peak of
their dtype. Kernels run one after the other. Caches, launches, arithmetic other than products, and
the real speed of a product are left out, so this is a lower bound: on an H200, steps of BERT-base
and ModernBERT-base took 1.6 and 1.5 times as long (docs/measured.md).
"""

import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SIZES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "s16": 2,
    "u16": 2,
    "bf16": 2,
    "f16": 2,
    "s32": 4,
    "u32": 4,
    "f32": 4,
    "s64": 8,
    "u64": 8,
    "f64": 8,
}
FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "opt-barrier",
    "after-all",
}
PARTS = {"slice", "dynamic-slice", "gather"}  # read a part of their first operand
# of a kernel with this operation
KINDS = {"dot": "product", "scatter": "scatter", "reduce": "reduction"}
INSTRUCTION = re.compile(r"\s*(?:ROOT )?%([\w.$\-]+) = (\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\((.*)$")
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.$\-]+) \([^\n]*\{\n(.*?)^\}", re.DOTALL | re.MULTILINE)


# An H200 on NVIDIA's data sheet, without sparsity: bytes of memory, bytes/s, and FLOP/s of matrix
# products. Those of float32 use no tensor cores, as TF32 is off.
MEMORY_BYTES, BANDWIDTH = 141e9, 4.8e12
FLOPS = {"bf16": 989e12, "f16": 989e12, "f32": 67e12, "f64": 67e12}


class Kernel(NamedTuple):
    """What one kernel does: bytes that it reads and writes, FLOP of its matrix products of this
    `dtype`."""

    name: str
    kind: str  # product, reduction, scatter or other
    bytes_moved: int
    flops: int
    dtype: str

    @property
    def seconds(self) -> float:
        return max(self.bytes_moved / BANDWIDTH, self.product_seconds)

    @property
    def product_seconds(self) -> float:
        return self.flops / FLOPS[self.dtype] if self.flops else 0.0


# -- the text of a module --------------------------------------------------------------------------


class Instruction(NamedTuple):
    """One line of HLO; `rest` is what follows the operands."""

    name: str
    shape: str
    operation: str
    operands: list[str]
    rest: str
    is_root: bool

    def attribute(self, name: str) -> str:
        """The value of `name={…}` or `name=%…`; empty if there is none."""
        found = re.search(rf"\b{name}=(?:\{{([\d,]*)\}}|%?([\w.$\-]+))", self.rest)
        return found[1] or found[2] or "" if found else ""


Computation = dict[str, Instruction]


def parsed(text: str) -> tuple[dict[str, Computation], str]:
    """The computations of a module by name, and the name of the entry."""
    computations: dict[str, Computation] = {}
    entry = ""
    for is_entry, name, body in COMPUTATION.findall(text):
        entry = name if is_entry else entry
        instructions = filter(None, map(parsed_line, body.splitlines()))
        computations[name] = {each.name: each for each in instructions}
    if not entry:
        raise ValueError("no ENTRY computation: this is not XLA's text of a module")
    return computations, entry


def parsed_line(line: str) -> Instruction | None:
    found = INSTRUCTION.match(line)
    if not found:
        return None
    name, shape, operation, rest = found.groups()
    depth, end = 1, 0  # of parentheses; where the one closes that holds the operands
    while depth and end < len(rest):
        depth += (rest[end] == "(") - (rest[end] == ")")
        end += 1
    inside = rest[: end - 1]
    operands = re.findall(r"%([\w.$\-]+)", inside) or [inside.strip()]
    return Instruction(
        name, shape, operation, operands, rest[end:], line.lstrip().startswith("ROOT")
    )


def arrays(shape: str) -> list[tuple[str, list[int]]]:
    """The dtypes and dimensions of an HLO shape, which may be a tuple."""
    found = re.findall(r"(\w+)\[([\d,]*)\]", shape)
    return [
        (dtype, [int(size) for size in sizes.split(",") if size])
        for dtype, sizes in found
        if dtype in SIZES
    ]


def num_bytes(shape: str) -> int:
    return sum(SIZES[dtype] * math.prod(sizes) for dtype, sizes in arrays(shape))


# -- kernels ---------------------------------------------------------------------------------------


def kernels(text: str) -> list[Kernel]:
    """The kernels of a module, in order."""
    return list(kernels_of(*parsed(text)))


def kernels_of(computations: dict[str, Computation], name: str) -> Iterator[Kernel]:
    computation, turns = computations[name], 1
    for each in computation.values():
        if each.operation in FREE:
            continue
        if each.operation == "call":  # a part with kernels of its own
            yield from kernels_of(computations, each.attribute("to_apply"))
            continue
        if each.operation == "while":  # a loop, such as that over a long row's queries
            # That of a gradient, whose number XLA does not know, turns as often as the one before.
            known = re.findall(r'"known_trip_count":\{"n":"(\d+)"', each.rest)
            turns = int(known[0]) if known else turns
            yield from [*kernels_of(computations, each.attribute("body"))] * turns
            continue
        fusion = computations.get(each.attribute("calls"), {})
        flops, dtype = products_of(each, fusion, computation)
        operations = {inside.operation for inside in fusion.values()} or {each.operation}
        kind = next((kind for operation, kind in KINDS.items() if operation in operations), "other")
        yield Kernel(
            name=each.name,
            kind="product" if flops else kind,
            bytes_moved=bytes_of(each, fusion, computation),
            flops=flops,
            dtype=dtype,
        )


def bytes_of(kernel: Instruction, fusion: Computation, around: Computation) -> int:
    """Read and written. Of an operand of which a fusion takes slices or rows, only these count. A
    scatter adds in place: it reads the updates, and reads and writes as many rows."""
    if not fusion:
        shapes = [around[name].shape for name in kernel.operands if name in around]
        return num_bytes(kernel.shape) + sum(map(num_bytes, shapes))
    root = next(each for each in fusion.values() if each.is_root)
    parameters = [each for each in fusion.values() if each.operation == "parameter"]
    if root.operation == "scatter":
        read = [num_bytes(each.shape) for each in parameters if each.name != root.operands[0]]
        return sum(read) + 2 * num_bytes(fusion[root.operands[2]].shape)
    return num_bytes(kernel.shape) + sum(
        bytes_read(fusion, each, num_bytes(each.shape)) for each in parameters
    )


def bytes_read(fusion: Computation, array: Instruction, whole: int) -> int:
    """How many bytes of a parameter, or of another view of it, the fusion reads."""
    total = 0
    for use in (each for each in fusion.values() if array.name in each.operands):
        if use.operation in PARTS and use.operands[0] == array.name:
            total += num_bytes(use.shape)
        elif use.operation == "bitcast" and not use.is_root:
            total += bytes_read(fusion, use, whole)
        else:
            return whole
    return min(whole, total)


def products_of(kernel: Instruction, fusion: Computation, around: Computation) -> tuple[int, str]:
    """FLOP of the kernel's matrix products, two for each multiplication, and the dtype of their
    left operand."""
    if 'custom_call_target="__cudnn$fmha' in kernel.rest:
        return attention(kernel, around)
    if 'custom_call_target="__cublas' in kernel.rest:
        contracted = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', kernel.rest)
        return product(kernel, contracted[1].replace('"', "") if contracted else "", around)
    inside, within = (fusion.values(), fusion) if fusion else ([kernel], around)
    dots = [each for each in inside if each.operation == "dot"]
    products = [product(each, each.attribute("lhs_contracting_dims"), within) for each in dots]
    return sum(flops for flops, _ in products), products[0][1] if products else ""


def attention(kernel: Instruction, around: Computation) -> tuple[int, str]:
    """FLOP and dtype of cuDNN's attention of queries [B, T, N, D] and keys [B, K, N, D], as if all
    queries saw all keys: two products, five in its gradient, which computes the scores again."""
    (dtype, query), (_, key) = (arrays(around[name].shape)[0] for name in kernel.operands[:2])
    products = 5 if 'Backward"' in kernel.rest else 2
    return products * 2 * math.prod(query) * key[1], dtype


def product(instruction: Instruction, contracted: str, around: Computation) -> tuple[int, str]:
    """FLOP and dtype of a product over these dimensions of the left operand."""
    dtype, left = arrays(around[instruction.operands[0]].shape)[0]
    sizes = [left[int(place)] for place in contracted.split(",") if place]
    return 2 * math.prod(arrays(instruction.shape)[0][1]) * math.prod(sizes), dtype


# -- sums over kernels -----------------------------------------------------------------------------


def predict(text: str) -> str:
    """A table: all kernels, and those of each kind."""
    every, kinds = kernels(text), defaultdict[str, list[Kernel]](list)
    for kernel in every:
        kinds[kernel.kind].append(kernel)
    share = sum(kernel.product_seconds for kernel in every) / sum(
        kernel.seconds for kernel in every
    )
    lines = [row("all", every), *(row(kind, kinds[kind]) for kind in sorted(kinds))]
    lines += ["", f"products alone, at their peak: {share:.0%} of the predicted time;"]
    return "\n".join([*lines, "a lower bound: on an H200, steps took 1.5 to 1.6 times as long"])


def row(name: str, some: list[Kernel]) -> str:
    return (
        f"{name:<10} {len(some):>5} kernels"
        f" {sum(kernel.bytes_moved for kernel in some) / 1e9:>8.2f} GB"
        f" {sum(kernel.flops for kernel in some) / 1e12:>7.2f} TFLOP"
        f" {sum(kernel.seconds for kernel in some) * 1e3:>7.2f} ms"
    )


if __name__ == "__main__":
    print(predict(Path(sys.argv[1]).read_text()))
