"""How long the control messages of a training take on many ranks: `pytest -s` prints the table of
docs/scaling.md.

Each collective takes as many latencies as a tree of its ranks has levels, and each rank the time
that its own Python code takes here. What messages take for their bytes is left out.
"""

import gc
import math
from collections import defaultdict
from time import perf_counter  # the real one

import pytest
from greenlet import getcurrent
from harness.simulation import jobs
from harness.simulation.jobs import Job, simulate
from harness.simulation.options import Options

from distributed import elastic, step, train
from distributed.step import TrainingStep

SIZES, LATENCIES_S = (8, 64, 256, 1000), (10e-6, 100e-6, 500e-6)
MEASURED = {
    "weights and requests of a step": (step, "reduce_weights"),
    "agreement before a checkpoint": (train, "check_replicas"),
    "regrouping after a death": (elastic, "regroup"),
    "variables of the furthest": (TrainingStep, "synchronize"),
}


@pytest.mark.parametrize("latency_s", LATENCIES_S)
def test_the_time_of_control_messages_grows_with_the_depth_of_a_tree(
    latency_s, monkeypatch, tmp_path
):
    table = {size: seconds_of(size, latency_s, monkeypatch, tmp_path) for size in SIZES}
    print(f"\nlatency {1e6 * latency_s:.0f} µs")
    for name in MEASURED:
        print(f"| {name} |", *(f"{1e3 * table[size][name]:.2f} |" for size in SIZES))
        # 1,000 ranks are a tree of 10 levels, 8 one of 3; the rest is what Python computes
        assert table[1000][name] < 20 * table[8][name] + 0.5


def seconds_of(size: int, latency_s: float, monkeypatch, folder) -> dict[str, float]:
    """The shortest time of each operation on rank 0."""
    seconds = defaultdict(list)

    class Timed(Job):
        def before_mpi(self, process, name):
            own_s = perf_counter() - getcurrent().resumed_s
            self.scheduler.sleep(own_s + latency_s * math.ceil(math.log2(self.size)))
            super().before_mpi(process, name)

        def run(self):
            self.scheduler.event_s = 0.0
            return super().run()

    def timed(name, function):
        def call(*arguments):
            process = getcurrent().process
            began_s = process.scheduler.now_s
            result = function(*arguments)
            if process.name == "rank 0":
                seconds[name].append(process.scheduler.now_s - began_s)
            return result

        return call

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "Job", Timed)
        for name, (owner, method) in MEASURED.items():
            patch.setattr(owner, method, timed(name, getattr(owner, method)))
        options = Options(
            seed=1,
            ranks=size,
            num_steps=6,
            save_every=1,
            global_batch_size=max(size, 64),
            nth=("death", 1 << 40),
        )
        gc.disable()  # of the objects of all ranks
        ((status, _),) = simulate(options, folder / str(size))
        gc.enable()
    assert status == 0
    return {name: min(times) for name, times in seconds.items()}
