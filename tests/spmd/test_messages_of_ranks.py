"""What the ranks of a World tell each other, and which GPU each takes on machines that are made
up."""

import pickle
import time
from dataclasses import replace

import numpy as np
import pytest
from harness.fake_gpus import machine

from distributed.devices import DeviceSettings, use_device
from distributed.messages import FirstRankError
from distributed.world import World
from ringbase.errors import InputError

ALL = pytest.mark.ranks(1, 2, 3)


@ALL
def test_messages(world, num_ranks):
    rank, size, everyone = world.rank, world.size, list(range(num_ranks))
    assert size == num_ranks
    assert world.all_gather(("rank", rank)) == [("rank", r) for r in everyone]
    assert world.gather(rank * 10) == ([r * 10 for r in everyone] if rank == 0 else None)
    large = world.broadcast((np.arange(300_000), "한국어") if rank == 0 else None)
    assert (large[0].sum(), large[1]) == (300_000 * 299_999 // 2, "한국어")
    total = world.all_reduce_sum(np.array([0.1 * (rank + 1), rank, 2.0**53]))
    expected = [0.1 * size * (size + 1) / 2, sum(everyone), size * 2.0**53]
    np.testing.assert_allclose(total, expected, rtol=1e-15)
    assert world.all_reduce_sum(np.array([1, 2])).tolist() == [size, 2 * size]


@ALL
def test_the_first_rank_of_a_machine_works_before_its_others(world, num_ranks, tmp_path):
    """Who comes later finds what it has left."""
    folder = world.broadcast(tmp_path if world.rank == 0 else None)
    seen = []

    def work():
        if world.rank == 0:
            time.sleep(0.2)
        seen.append((folder / "left").exists())
        (folder / "left").touch()

    world.first_here_first(work)
    assert world.all_gather(seen) == [[False], *[[True]] * (num_ranks - 1)]


class Watched:
    """MPI's communicator, and in `sizes` the bytes of each object that was sent with it."""

    def __init__(self, comm):
        self.comm, self.sizes = comm, []

    def __getattr__(self, name):
        method = getattr(self.comm, name)
        if name not in ("bcast", "gather", "allgather"):
            return method

        def watched(value):
            self.sizes.append(len(pickle.dumps(value)))
            return method(value)

        return watched


@pytest.mark.ranks(3)
def test_values_of_any_size_travel_in_messages_of_some_hundred_megabytes(world):
    """MPI ends at 2 GiB for all ranks together. The last rank has more than a message holds, the
    others nearly nothing."""
    watched = Watched(world.comm)
    world = World(replace(world.ranks, comm=watched))
    last = world.size - 1
    own = np.arange(25_000_000 if world.rank == last else world.rank, dtype=np.uint64)  # 200 MB

    def is_complete(received):
        numbers = [
            np.array_equal(values, np.arange(rank)) for rank, values in enumerate(received[:-1])
        ]
        return all(numbers) and np.array_equal(received[-1], np.arange(25_000_000))

    of_all = world.gather(own)
    assert is_complete(of_all) if world.rank == 0 else of_all is None
    del of_all
    assert len(watched.sizes) > 1
    assert max(watched.sizes) * world.size < 300e6
    assert is_complete(world.all_gather(own))
    assert world.broadcast(b"x" * 300_000_000 if world.rank == 0 else None) == b"x" * 300_000_000
    assert max(watched.sizes) * world.size < 300e6


@ALL
def test_work_of_the_first_rank_whose_failure_reaches_all(world):
    calls = []
    found = world.on_first(lambda: calls.append(world.rank) or f"from rank {world.rank}")
    assert found == "from rank 0"
    assert calls == ([0] if world.rank == 0 else [])
    assert world.on_each_machine(lambda: calls.append("machine") or world.rank) == 0
    assert calls.count("machine") == (world.rank == 0)
    kind = ZeroDivisionError if world.rank == 0 else FirstRankError
    with pytest.raises(kind, match="division by zero"):
        world.on_first(lambda: 1 / 0)
    assert world.all_gather(1) == [1] * world.size


@ALL
def test_ranks_that_disagree_are_named(world):
    world.agree({"same": {"a": 1}, "also": None})
    if world.size > 1:
        with pytest.raises(
            InputError, match=r"^the ranks disagree about differs: ranks? 0.*: 4; rank 1: 5$"
        ):
            world.agree({"same": 1, "differs": 5 if world.rank == 1 else 4})
        with pytest.raises(InputError, match="about here"):
            world.agree({"here": 1} if world.rank == 0 else {})


@ALL
def test_waiting_takes_no_core(world):
    world.barrier()
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    if world.rank == 0:
        time.sleep(1)
    world.barrier()
    waited_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    assert cpu_s < 0.5 * waited_s


ONE, TWO, THREE = (f"0000:0{number}:00.0" for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("share_gpus", "seen", "taken"),
    [
        (False, [[ONE, TWO, THREE], [ONE, TWO, THREE]], [ONE, TWO]),
        # as Slurm shows them: each rank its own, under the same number
        (False, [[TWO], [ONE]], [TWO, ONE]),
        (True, [[ONE], [ONE]], [ONE, ONE]),
        (False, [[ONE], [TWO, ONE]], None),
    ],
)
def test_ranks_share_a_gpu_only_if_they_may(share_gpus, seen, taken, world):
    settings = DeviceSettings(device="gpu", share_gpus=share_gpus)
    with machine(seen[world.rank]) as done:
        if taken is None:
            with pytest.raises(InputError, match=rf"{ONE}.*--share_gpus"):
                use_device(world, settings)
        else:
            assert [use_device(world, settings).bus_id] == done["visible"] == [taken[world.rank]]
