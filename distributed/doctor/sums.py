"""Checks of the sums over ranks: right in each dtype, and how fast they are."""

import hashlib
import statistics
import time

import numpy as np
import tensorflow as tf

from distributed.collectives import Collectives, open_collectives
from distributed.doctor.examination import Finding, failed, not_tested, ok
from distributed.world import World

SIZE = 300_001  # odd, and more than one piece of every backend
LARGE_BYTES, SMALL_BYTES = 64_000_000, 4_000
REPEATS = 5
BUFFER_ADVICE = (
    "the sum over ranks is wrong, so no training on these ranks can be right: give another --backend, and check "
    "the GPUs, their links and the network"
)
ONE_RANK = "there is one rank"


class Sums:
    """The backends that the checks have opened, by name."""

    def __init__(self) -> None:
        self.opened: dict[str, Collectives] = {}
        self.chosen: Collectives | None = None

    def open(self, world: World, backend: str) -> Finding:
        """Opens the backend that training would use. It comes before the first TensorFlow operation."""
        self.chosen = open_collectives(world, backend)
        self.opened[self.chosen.name] = self.chosen
        asked = "" if backend == self.chosen.name else f", which --backend {backend} takes here"
        return ok(f"{self.chosen.name}{asked}", backend=self.chosen.name)

    def check(self, world: World, name: str) -> Finding:
        """The sums of one backend against NumPy's: float32 and float64, float32 sent as bfloat16, broadcasts."""
        if world.size == 1:
            return not_tested(ONE_RANK)
        if name not in self.opened:
            if name != "mpi":
                return not_tested(f"--backend {name} tests it")
            self.opened[name] = open_collectives(world, name)
        collectives = self.opened[name]
        errors = {}
        for dtype in ("float32", "float64"):
            errors[dtype] = self._error(world, collectives, dtype)
        if name != "nccl":  # TensorFlow's has no bfloat16
            errors["bfloat16"] = self._error_of_bfloat16(world, collectives)
        if collectives.in_graph:
            errors["float32 inside XLA"] = self._error_in_graph(world, collectives)
        errors["broadcast"] = self._error_of_broadcast(collectives)
        if wrong := [what for what, error in errors.items() if not error <= 1]:
            times = max(errors[what] for what in wrong)
            return failed(
                f"{name}: wrong for {', '.join(wrong)}: {times:.3g} times the error that rounding allows",
                BUFFER_ADVICE,
            )
        return ok(f"{name}: {', '.join(errors)} as NumPy adds them, the same bits on every rank")

    def _error(self, world: World, collectives: Collectives, dtype: str) -> float:
        """The largest difference from NumPy's sum in float64, as a share of what rounding allows."""
        parts = [values_of(rank, dtype) for rank in range(world.size)]
        total = collectives.all_reduce_sum([tf.constant(parts[world.rank])])[0].numpy()
        bound = world.size * np.finfo(dtype).eps * sum(np.abs(part).astype(np.float64) for part in parts)
        return share_of(world, total, parts, bound)

    def _error_in_graph(self, world: World, collectives: Collectives) -> float:
        parts = [values_of(rank, "float32") for rank in range(world.size)]
        function = tf.function(
            lambda flat: collectives.all_reduce_sum([flat])[0], jit_compile=True, autograph=False
        )
        total = function([tf.constant(parts[world.rank])])[0].numpy()
        bound = world.size * np.finfo(np.float32).eps * sum(np.abs(part).astype(np.float64) for part in parts)
        return share_of(world, total, parts, bound)

    def _error_of_bfloat16(self, world: World, collectives: Collectives) -> float:
        parts = [values_of(rank, "float32") for rank in range(world.size)]
        total = collectives.all_reduce_sum([tf.constant(parts[world.rank])], True)[0].numpy()
        bound = world.size * 2.0**-8 * sum(np.abs(part).astype(np.float64) for part in parts)
        return share_of(world, total, parts, bound)

    def _error_of_broadcast(self, collectives: Collectives) -> float:
        sent = values_of(0, "float32")
        return 0.0 if np.array_equal(collectives.broadcast(tf.constant(sent)).numpy(), sent) else np.inf

    def speed(self, world: World) -> Finding:
        """How long the chosen backend takes to sum a large and a small buffer of float32, on the slowest rank."""
        if world.size == 1 or self.chosen is None:
            return not_tested(ONE_RANK)
        large_s, small_s = (seconds_of_sum(world, self.chosen, size) for size in (LARGE_BYTES, SMALL_BYTES))
        messages_s = seconds_of_messages(world)
        return ok(
            f"{self.chosen.name}: 64 MB in {large_s * 1e3:.3g} ms ({LARGE_BYTES / large_s / 1e9:.3g} GB/s), "
            f"4 kB in {small_s * 1e6:.0f} µs; a message to all ranks {messages_s * 1e6:.0f} µs",
            seconds_of_64_MB=large_s,
            seconds_of_4_kB=small_s,
            seconds_of_message=messages_s,
        )


def values_of(rank: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(SIZE).astype(dtype)


def share_of(world: World, total: np.ndarray, parts: list[np.ndarray], bound: np.ndarray) -> float:
    """The largest error of a sum, as a share of `bound`; infinite if the ranks' bits differ."""
    digests = world.all_gather(hashlib.sha256(total.tobytes()).hexdigest())
    exact = sum(part.astype(np.float64) for part in parts)
    return np.inf if len(set(digests)) > 1 else float(np.max(np.abs(total - exact) / bound))


def seconds_of_sum(world: World, collectives: Collectives, num_bytes: int) -> float:
    values, times = tf.ones([num_bytes // 4]), []
    for _ in range(1 + REPEATS):  # the first allocates memory
        world.comm.Barrier()
        start_s = time.perf_counter()
        collectives.all_reduce_sum([values])[0][:1].numpy()  # waits for a GPU
        times.append(max(world.all_gather(time.perf_counter() - start_s)))
    return statistics.median(times[1:])


def seconds_of_messages(world: World) -> float:
    """The time of the small sum that precedes each step, on the slowest rank."""
    times = []
    for _ in range(20):
        world.comm.Barrier()
        start_s = time.perf_counter()
        world.all_reduce_sum(np.ones(2))
        times.append(time.perf_counter() - start_s)
    return max(world.all_gather(statistics.median(times)))
