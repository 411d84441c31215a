"""One contract for every backend that sums over ranks, in the process of each rank."""

import hashlib
import os
import resource
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from distributed.collectives import BACKENDS, open_collectives
from distributed.collectives.mpi import MpiCollectives
from distributed.optimizer import broadcast_variables
from distributed.world import World
from ringbase.errors import InputError

MIB = 1 << 20
# Up to several of a backend's pieces, in numbers of float32; odd, so that the last piece is a part.
SIZES = (0, 1, 3, 1023, MIB // 4, 3 * MIB // 4 + 1)


# nccl is the ring's module, with a GPU for each rank
@pytest.fixture(params=[name for name in BACKENDS if name != "nccl"])
def backend(request, world, ring):
    """Each backend; TensorFlow's ring is one of all ranks of the session."""
    return ring if request.param == "ring" else open_collectives(world, request.param)


def whole_numbers(size, dtype, rank, call):
    """Values that float32 adds exactly in any order, different on each rank, at each place and in
    each call."""
    return ((np.arange(size, dtype=np.int64) * 7 + 1000 * call) % 9973 * (rank + 1) - rank).astype(
        dtype
    )


def normal(size, rank):
    return np.random.default_rng(rank).standard_normal(size)


def check_sums(world, collectives, dtype, sizes=SIZES):
    """Of lists of tensors, whose parts are small and large, and of other shapes in between."""
    for call in range(3):
        own = [whole_numbers(size, dtype, world.rank, call) for size in sizes]
        own[-1] = own[-1].reshape(1, -1)
        values = [tf.constant(array) for array in own]
        totals = collectives.all_reduce_sum(values)
        for size, array, value, total in zip(sizes, own, values, totals, strict=True):
            expected = sum(whole_numbers(size, dtype, rank, call) for rank in range(world.size))
            assert (total.dtype, total.shape) == (dtype, array.shape)
            np.testing.assert_array_equal(total.numpy().ravel(), expected)
            np.testing.assert_array_equal(value.numpy(), array)
            doubled = (
                tf.function(lambda x: 2 * x, jit_compile=True)(total) if size == 1023 else 2 * total
            )
            np.testing.assert_array_equal(doubled.numpy().ravel(), 2 * expected)


def check_rounding(world, collectives, dtype):
    parts = [normal(SIZES[-1], rank).astype(dtype) for rank in range(world.size)]
    own = [tf.constant(parts[world.rank])]
    calls = [collectives.all_reduce_sum(own)[0].numpy().copy() for _ in range(2)]
    digests = [hashlib.sha256(total.tobytes()).hexdigest() for total in calls]
    bits = set().union(*world.all_gather(digests))
    assert len(bits) == 1, "other bits on another rank or in another call"
    exact = sum(part.astype(np.float64) for part in parts)
    bound = world.size**2 * np.finfo(dtype).eps * np.max(np.abs(exact))
    np.testing.assert_allclose(calls[0], exact, rtol=0, atol=bound)


@pytest.mark.ranks(3)
def test_sums_are_exact_where_they_can_be_and_have_the_same_bits(world, backend):
    for dtype in ("float32", "float64"):
        check_sums(world, backend, dtype)
        check_rounding(world, backend, dtype)


@pytest.mark.ranks(3)
def test_a_broadcast_of_more_than_one_message(world):
    """Of 64 MiB each."""
    large = np.arange(17 * MIB + 3, dtype=np.float32)
    variable = keras.Variable(large * (world.rank == 1))
    broadcast_variables([variable], world, root=1)
    assert np.array_equal(variable.numpy(), large)


@pytest.mark.ranks(3)
def test_sums_leave_no_memory_behind(world, backend):
    values = tf.constant(whole_numbers(MIB // 16, "float32", world.rank, 0))
    resident = []
    for _ in range(120):
        backend.all_reduce_sum([values])
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]))
    grown = (resident[-1] - resident[20]) * resource.getpagesize()
    assert grown < 20 * MIB, f"{grown / MIB:.0f} MiB more after 100 sums of 256 KiB"


@pytest.mark.ranks(3)
@pytest.mark.parametrize("machines", [[0, 0, 0], [0, 1, 2], [0, 0, 1]])
def test_only_large_tensors_that_cross_machines_are_rounded(machines, world):
    """As if the ranks were on one machine, on one each, or two and one."""
    collectives = MpiCollectives(
        World(replace(world.ranks, node=machines[world.rank], num_nodes=max(machines) + 1))
    )
    check_sums(world, collectives, "int32")
    check_rounding(world, collectives, "float32")
    of_ranks = [normal(6047, rank).astype(np.float32) for rank in range(3)]
    # a large one, one of 1023 numbers, and a large one
    own = np.split(of_ranks[world.rank], [2000, 3023])
    total = collectives.all_reduce_sum([tf.constant(part) for part in own], True)
    assert world.broadcast(np.concatenate(total)).tobytes() == np.concatenate(total).tobytes()
    has_16_bits = [not np.any(np.asarray(part).view(np.uint32) & 0xFFFF) for part in total]
    assert has_16_bits == [collectives.compresses, False, collectives.compresses]
    assert collectives.compresses == (max(machines) > 0)
    bound = 1e-5 + collectives.compresses * 3 * 2.0**-8 * sum(map(np.abs, of_ranks))
    assert np.all(np.abs(np.concatenate(total) - sum(of_ranks)) <= bound)
    spoilt = tf.fill([2000], np.nan if world.rank == 0 else 1.0)
    (infinite,) = collectives.all_reduce_sum([spoilt], True)
    assert not np.isfinite(infinite.numpy()).any(), "a gradient that is not finite vanishes"


@pytest.mark.ranks(3)
def test_where_memory_cannot_be_shared_mpi_sums_and_says_so(world, monkeypatch, capsys):
    if world.rank == 2:
        monkeypatch.setattr(os, "readlink", lambda place: "another process's")
    collectives = open_collectives(world, "mpi")
    monkeypatch.undo()
    assert ("another process" in capsys.readouterr().err) == (world.rank == 0)
    check_sums(world, collectives, "float32")


@pytest.mark.ranks(1, 2)
def test_backends_that_cannot_work_here_are_refused(world):
    for backend in BACKENDS if world.size == 1 else ("nccl", "local"):
        with pytest.raises(InputError, match=f"--backend {backend}"):
            open_collectives(world, backend)
    assert open_collectives(world).name == ("local" if world.size == 1 else "mpi")


@pytest.mark.ranks(2)
def test_memory_for_sums_of_any_number_of_shapes_is_bounded(collectives):
    """Horovod's scripts may sum a tensor of a new shape in each call."""
    for size in range(1, 200):
        (total,) = collectives.all_reduce_sum([tf.ones([size])])
        assert total.numpy().tolist() == [2.0] * size
    maps = Path("/proc/self/maps").read_text().count("ringbert-")
    assert maps < 100
