"""The errors of an exported function's results, part by part, and what is allowed.

An error is the Euclidean norm of the difference, relative to the norm of the reference, which TensorFlow's own
operations computed on the CPU in float32. Some gradients are 0 in exact arithmetic (of the keys' biases, for
example), and rounding is all that they hold; so a part's norm counts as at least 1/1000 of its share, by size, of
the norm of its group.

A device may err four times as much as TensorFlow's XLA on the CPU in the same precision, where the rounding is as
coarse but its order is another one; also as much as the CPU in the median part, because in a part of few numbers
the CPU can be exact by chance; and 1e-4. An error in the code, such as a missing factor or term, is of order 1.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

LEAST_SHARE, TIMES_CPU, ALWAYS_ALLOWED = 1e-3, 4.0, 1e-4


def errors(results: Sequence[np.ndarray], reference: Sequence[np.ndarray], description: dict) -> dict[str, float]:
    """Name of each part -> its error."""
    found, expected = parts(results, description), parts(reference, description)
    norms: dict[str, float] = defaultdict(float)
    sizes: dict[str, int] = defaultdict(int)
    for name, part in expected.items():
        norms[group_of(name)] += float(np.sum(np.square(part)))
        sizes[group_of(name)] += part.size
    figures = {}
    for name, part in expected.items():
        group = group_of(name)
        least = LEAST_SHARE * np.sqrt(norms[group] * part.size / sizes[group])
        scale = max(float(np.linalg.norm(part)), least)
        difference = float(np.linalg.norm(found[name] - part))
        figures[name] = difference / scale if scale else difference
    return figures


def parts(results: Sequence[np.ndarray], description: dict) -> dict[str, np.ndarray]:
    """The parts of the flat gradient, or the results one by one, by name, as float64."""
    whole = [np.asarray(result).astype(np.float64).ravel() for result in results]
    if description["parts"]:
        return {name: whole[0][start:end] for name, start, end in description["parts"]}
    names = [array["name"] or "result" for array in description["results"]]
    return dict(zip(names, whole, strict=True))


def group_of(name: str) -> str:
    """Parts of one group have comparable norms."""
    if "/" not in name:
        return name
    return next((kind for kind in ("adam_m", "adam_v", "iteration") if name.endswith(kind)), "tensor")


def allowed(on_cpu: dict[str, float]) -> dict[str, float]:
    least = max(float(np.median(list(on_cpu.values()))), ALWAYS_ALLOWED)
    return {name: max(TIMES_CPU * error, least) for name, error in on_cpu.items()}


def is_close(on_device: dict[str, float], on_cpu: dict[str, float]) -> bool:
    limits = allowed(on_cpu)
    return all(error <= limits[name] for name, error in on_device.items())  # NaN is not


def worst(on_device: dict[str, float], on_cpu: dict[str, float]) -> tuple[str, float, float]:
    """The part that comes closest to its limit, or exceeds it most: its name, error and limit."""
    limits = allowed(on_cpu)
    excess = {name: float(np.nan_to_num(error / limits[name], nan=np.inf)) for name, error in on_device.items()}
    name = max(excess, key=lambda name: excess[name])
    return name, on_device[name], limits[name]
