"""The steps that JAX runs: `python -m benchmarks.gpu_first.jax_steps STEP FOLDER [CASE]`.

values: the exported functions of a tiny model, against TensorFlow's results on the CPU. speed: the milliseconds of
an exported function. profile: which kernels take the time.
"""

import argparse
import gzip
import platform
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_first.executable import Executable, times_of
from benchmarks.gpu_first.findings import PEAK_FLOP_PER_S, say
from benchmarks.gpu_first.hlo import kernels
from benchmarks.step_errors import errors, is_close, worst

PRODUCT_SIZE = {"gpu": 8192, "cpu": 512}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("machine", "values", "speed", "profile"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="*", help="default for values: all whose name begins with tiny")
    parser.add_argument("--logs", type=Path, default=Path("."), help="folder for optimized HLO")
    flags = parser.parse_args()
    if flags.step == "machine":
        return machine()
    names = flags.cases or sorted(path.stem for path in flags.folder.glob("tiny*.json"))
    for name in names:
        path = flags.folder / name
        match flags.step:
            case "values":
                attempt(check_values, name, path)
            case "speed":
                measure_speed(name, path, flags.logs)
            case "profile":
                profile(name, path)
    return None


def machine() -> None:
    device = jax.devices()[0]
    text = f"JAX {jax.__version__} on {device.device_kind} ({device.platform}), Python {platform.python_version()}"
    say("JAX", text, device.platform == "gpu", jax=jax.__version__, device=device.device_kind)
    flop = product_flop_per_s()
    size = PRODUCT_SIZE[device.platform]
    say("largest product", f"bfloat16 {size}^3: {flop / 1e12:.4g} TFLOP/s", product_flop_per_s=flop)


def product_flop_per_s() -> float:
    """Of one large bfloat16 product of random numbers."""
    size = PRODUCT_SIZE[jax.devices()[0].platform]
    left, right = (jax.random.normal(jax.random.key(n), (size, size), jnp.bfloat16) for n in (0, 1))
    product = jax.jit(jnp.matmul)
    return 2 * size**3 / (times_of(lambda: product(left, right)).in_row_ms / 1e3)


def attempt(check: Any, name: str, path: Path) -> None:
    """One case may fail without ending the others."""
    try:
        check(name, path)
    except Exception as error:
        say(name, f"failed: {type(error).__name__}: {str(error).splitlines()[0][:300]}", False)


# -- values and speed ---------------------------------------------------------------------------------------------


def check_values(name: str, path: Path) -> None:
    executable = Executable(path)
    results = [np.asarray(result) for result in executable(executable.parameters())]
    reference, description = executable.stored("reference"), executable.description
    on_device = errors(results, reference, description)
    on_cpu = description["errors_on_cpu"]
    part, error, limit = worst(on_device, on_cpu)
    median, median_on_cpu = (np.median(list(found.values())) for found in (on_device, on_cpu))
    say(
        name,
        f"relative to float32 on the CPU, the worst error is {error:.2g} ({part}), allowed {limit:.2g}; "
        f"the median is {median:.2g}, of TensorFlow on the CPU {median_on_cpu:.2g}",
        is_close(on_device, on_cpu),
        compile_s=executable.compile_s, errors=on_device, errors_on_cpu=on_cpu,
    )  # fmt: skip


def measure_speed(name: str, path: Path, logs: Path) -> None:
    executable = Executable(path)
    text = executable.text
    logs.mkdir(parents=True, exist_ok=True)
    (logs / f"{name}.hlo.gz").write_bytes(gzip.compress(text.encode()))
    counts, memory = kernels(text), executable.loaded.get_compiled_memory_stats()
    product = product_flop_per_s()
    times = executable.times(executable.parameters())
    config, flop = executable.description["config"], executable.description["flop"]
    flop_per_s = flop / (times.in_row_ms / 1e3)
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    say(
        name,
        f"{times.ms:.2f} ms awaited, {times.in_row_ms:.2f} ms in a row, "
        f"{config['batch_size'] / times.in_row_ms * 1e3:.1f} rows/s, {flop_per_s / 1e12:.4g} TFLOP/s "
        f"({flop_per_s / PEAK_FLOP_PER_S:.1%} of 989, {flop_per_s / product:.1%} of one large product now), "
        f"{sum(counts.values())} kernels, {memory.temp_size_in_bytes / 1e9:.2f} GB temporary, "
        f"{peak / 1e9:.2f} GB at most, compiled in {executable.compile_s:.0f} s",
        **vars(times), flop_per_s=flop_per_s, product_flop_per_s=product, kernels=counts, peak_bytes=peak,
        temporary_bytes=memory.temp_size_in_bytes, compile_s=executable.compile_s,
    )  # fmt: skip


# -- where the time goes ------------------------------------------------------------------------------------------


def profile(name: str, path: Path, num_shown: int = 25) -> None:
    """The kernels of a few calls, by the time that they take together."""
    executable = Executable(path)
    parameters = executable.parameters()
    jax.block_until_ready(executable(parameters))
    parameters = executable.parameters()  # the first call may have taken the memory of its parameters
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(executable(parameters))
        (file,) = Path(folder).rglob("*.xplane.pb")
        planes = jax.profiler.ProfileData.from_file(str(file)).planes
        spent: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for plane in planes:
            if "/device:GPU" not in plane.name:
                continue
            for line in plane.lines:
                if "Stream" not in line.name:
                    continue
                for event in line.events:
                    spent[event.name] += event.duration_ns / 1e6
                    counts[event.name] += 1
    total = sum(spent.values())
    say(name, f"{sum(counts.values())} kernels took {total:.2f} ms together", total > 0, kernels_ms=total)
    for kernel, ms in sorted(spent.items(), key=lambda pair: -pair[1])[:num_shown]:
        say(f"{name} kernel", f"{kernel[:120]}: {counts[kernel]} times, {ms:.3f} ms, {ms / total:.1%}", ms=ms)


if __name__ == "__main__":
    main()
