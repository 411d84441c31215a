"""What stands in the step of `--step whole`: which sums over ranks, of what, and in which order.
The step is that which `benchmarks/gpu_sums.py` exports."""

import itertools
import re

import pytest

from benchmarks.gpu_compile import exported
from benchmarks.gpu_sums import of_ranks
from ringbase.settings import made
from tasks.bench.settings import LoadSettings

ASSIGNED = re.compile(r"^\s*%(\w+)(?::\d+)? = (.*)$")
USED = re.compile(r"%(\w+)")
SUM = re.compile(r"\}\) : \((tensor<\d+x\w+>)\) -> ")
LAYER = 4 * 128 * 128 + 4 * 128 + 2 * 128 * 512 + 128 + 512 + 4 * 128  # of width 128, 512 inside
# words, positions, types and their LayerNorm; the head has two scores of a token
REST = (30522 + 512 + 2) * 128 + 2 * 128 + 2 * 128 + 2


def step_with(sums, compression="none"):
    shape = {"model_size": "tiny", "batch_size": 2, "seq_length": 32, "xla": "on"}
    kind = 8, sums, compression
    text, _ = exported(made(LoadSettings, shape), lambda parts: of_ranks(parts, *kind))
    return text


def sums_in(text):
    """The vectors that are summed, and for each whether the one before it is among what its input
    is made of."""
    inputs, of_sums, found = {}, [], []
    for line in text.splitlines():
        assigned = ASSIGNED.match(line)
        if assigned:
            name, code = assigned.groups()
            inputs[name] = set(USED.findall(code))
            if '"stablehlo.all_reduce"' in code:
                of_sums.append(name)
        elif len(found) < len(of_sums) and SUM.search(line):
            found.append(SUM.search(line)[1])
    assert len(found) == len(of_sums)
    follows = [before in made_of(name, inputs) for before, name in itertools.pairwise(of_sums)]
    return found, follows


def made_of(name, inputs):
    """The names from which a value is computed."""
    seen, todo = set(), [name]
    while todo:
        for each in inputs.get(todo.pop(), ()):
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return seen


@pytest.mark.parametrize(("compression", "dtype"), [("none", "f32"), ("bf16", "bf16")])
def test_each_layer_has_a_sum_and_each_sum_needs_the_one_before(compression, dtype):
    """So all ranks make them in one order, whatever the shapes of their batches."""
    vectors, follows = sums_in(step_with("layers", compression))
    of_layers = [f"tensor<{LAYER}x{dtype}>"] * 2
    assert vectors == [*of_layers, f"tensor<{REST}x{dtype}>", "tensor<1xf32>"]
    assert follows == [True] * 3


def test_the_other_step_has_one_sum_of_everything():
    vectors, _ = sums_in(step_with("joined"))
    assert vectors == [f"tensor<{2 * LAYER + REST + 1}xf32>"]
