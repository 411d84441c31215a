"""SPMD: the contract of every backend that works with this number of ranks, and of World's messages.

Usage: collectives.py BACKEND... (the backends that must work here; all others must refuse)
Prints the number of checks.
"""

import contextlib
import hashlib
import io
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from tensorflow.python.eager import context

from distributed.collectives import BACKENDS, compression_note, open_collectives
from distributed.collectives.machine_memory import CACHED_BYTES, SLOT_BYTES, MachineMemory, open_memory
from distributed.collectives.mpi import MpiCollectives
from distributed.devices import DeviceSettings
from distributed.environment import launched_rank
from distributed.flat import buckets
from distributed.gradient import Gradient, dropout_key
from distributed.world import FirstRankError, World
from ringbert.errors import InputError

MIB = 1 << 20
# Up to several of a backend's pieces, in bytes of float32; odd, so that the last piece is a part.
SIZES = (0, 1, 3, 1023, MIB // 4, 3 * MIB // 4 + 1)


@partial(tf.function, jit_compile=True)
def compiled_double(values: tf.Tensor) -> tf.Tensor:
    return 2 * values


def whole_numbers(size: int, dtype: str, rank: int, call: int) -> np.ndarray:
    """Values that float32 adds exactly in any order, different on each rank, at each place and in each call."""
    return ((np.arange(size, dtype=np.int64) * 7 + 1000 * call) % 9973 * (rank + 1) - rank).astype(dtype)


def same_on_all_ranks(world: World, array: np.ndarray) -> bool:
    return len(set(world.all_gather(hashlib.sha256(array.tobytes()).hexdigest()))) == 1


def check_sums(world: World, collectives, dtype: str, size: int) -> None:
    what = f"{collectives.name}: sum of {size} {dtype}"
    pointers = set()
    # The others' sums lie in TensorFlow's memory, which it uses again; and those cut to size.
    own_buffer = collectives.name == "mpi" and size % world.size == 0
    for call in range(3):
        own = whole_numbers(size, dtype, world.rank, call)
        values = tf.constant(own)
        total = collectives.all_reduce_sum(values)
        expected = sum(whole_numbers(size, dtype, rank, call) for rank in range(world.size))
        assert total.dtype == dtype, what
        assert total.shape == (size,), what
        np.testing.assert_array_equal(total.numpy(), expected, err_msg=f"{what}, call {call}")
        np.testing.assert_array_equal(values.numpy(), own, err_msg=f"{what}, call {call}, the argument")
        pointers.add(np.from_dlpack(total).ctypes.data)
        # What the step does next: compiled code reads the sum, without a copy on the host in between.
        doubled = compiled_double(total) if call and size == 1023 else 2 * total
        np.testing.assert_array_equal(doubled.numpy(), 2 * expected, err_msg=f"{what}, call {call}, used")
    assert not own_buffer or len(pointers) == 1, f"{what}: each call takes new memory"


def check_rounding(world: World, collectives, dtype: str) -> None:
    size = 3 * MIB // 4 + 1
    values = np.random.default_rng(world.rank).standard_normal(size).astype(dtype)
    first = collectives.all_reduce_sum(tf.constant(values)).numpy()
    again = collectives.all_reduce_sum(tf.constant(values)).numpy()
    what = f"{collectives.name}: sum of random {dtype}"
    assert same_on_all_ranks(world, first), f"{what}: the ranks have different bits"
    assert first.tobytes() == again.tobytes(), f"{what}: other bits in another call"
    exact = sum(np.random.default_rng(rank).standard_normal(size).astype(dtype).astype(np.float64)
                for rank in range(world.size))  # fmt: skip
    bound = world.size * world.size * np.finfo(dtype).eps * np.max(np.abs(exact))
    np.testing.assert_allclose(first, exact, rtol=0, atol=bound, err_msg=what)


def check_bfloat16(world: World, collectives) -> None:
    """Sums that travel in bfloat16 are equal on all ranks and as near as its 8 bits allow."""
    for size in (1, 1023, MIB // 4):
        mine = np.random.default_rng(world.rank).standard_normal(size).astype(np.float32)
        first = collectives.all_reduce_sum_bf16(tf.constant(mine)).numpy()
        again = collectives.all_reduce_sum_bf16(tf.constant(mine)).numpy()
        what = f"{collectives.name}: bfloat16 sum of {size}"
        assert first.dtype == np.float32, what
        assert first.shape == (size,), what
        assert same_on_all_ranks(world, first), f"{what}: the ranks have different bits"
        assert first.tobytes() == again.tobytes(), f"{what}: other bits in another call"
        parts = [np.random.default_rng(rank).standard_normal(size) for rank in range(world.size)]
        bound = 2.0**-8 * sum(np.abs(part.astype(np.float32)) for part in parts) * world.size
        assert np.all(np.abs(first - sum(parts)) <= bound + 1e-6), what
    infinite = collectives.all_reduce_sum_bf16(tf.constant([np.nan if world.rank == 0 else 1.0, np.inf]))
    assert not np.isfinite(infinite.numpy()).any(), f"{collectives.name}: a gradient that is not finite vanishes"


def check_machines(world: World) -> None:
    """As if the ranks were on several machines: what crosses the network is rounded, what does not is not."""
    values = (np.random.default_rng(world.rank).standard_normal(1001) * 3).astype(np.float32)
    exact = sum((np.random.default_rng(r).standard_normal(1001) * 3).astype(np.float32) for r in range(world.size))
    layouts = [[0] * world.size, list(range(world.size)), [rank // 2 for rank in range(world.size)]]
    for machines, shares_memory in itertools.product(layouts, (True, False)):
        number = max(machines) + 1
        collectives = MpiCollectives(world.comm, machines[world.rank], number, shares_memory)
        for size in (*SIZES, MIB // 2):
            check_sums(world, collectives, "float32", size)
        check_sums(world, collectives, "float64", MIB // 4 + 3)
        check_rounding(world, collectives, "float32")
        check_bfloat16(world, collectives)
        total = collectives.all_reduce_sum_bf16(tf.constant(values)).numpy()
        is_rounded = np.array_equal(total, tf.cast(tf.cast(total, tf.bfloat16), tf.float32).numpy())
        assert is_rounded == (number > 1), machines
        if number == 1:
            np.testing.assert_allclose(total, exact, rtol=0, atol=1e-5)
        collectives.close()


def check_means_of_parts(world: World, memory: MachineMemory) -> None:
    """Parts of many sizes are averaged as one vector would be."""
    piece = CACHED_BYTES // 8
    sizes = [
        3,
        16,
        0,
        1,
        piece // 2,
        5,
        piece // 3,
        piece // 3,
        piece // 3,
        piece,
        2 * piece + 5,
        1,
        7 * piece + 1,
    ]
    starts = [int(start) for start in np.cumsum([0, *(16 * (size // 16 + 1) for size in sizes)])]
    *starts, whole = starts
    values = [np.random.default_rng([rank, 5]).standard_normal(whole) for rank in range(world.size)]
    expected = values[0]
    for other in values[1:]:
        expected = expected + other
    own = [values[world.rank][start : start + size] for start, size in zip(starts, sizes, strict=True)]
    for num_large, divisor in ((0, 3.0), (1, 3.0), (0, 1.0)):
        if world.rank == 0:
            memory._large_left[0] = num_large
        world.barrier()
        result = np.full(whole, -5.0)
        memory.mean(own, starts, divisor, result)
        for start, size, end in zip(starts, sizes, [*starts[1:], whole], strict=True):
            np.testing.assert_array_equal(result[start : start + size], expected[start : start + size] / divisor)
            assert np.all(np.isin(result[start + size : end], (0, -5)))


def check_reused_results(world: World) -> None:
    """Memory is used again when its tensor is gone, and never before."""
    collectives = MpiCollectives(world.comm)
    average = collectives.mean_of_parts
    assert average is not None
    parts = [tf.fill([7], float(world.rank)), tf.fill([3, 1000], 2.0)]
    first = average(parts, [0, 16], 3024, world.size)
    place = np.from_dlpack(first).ctypes.data
    second = average([2 * part for part in parts], [0, 16], 3024, world.size)
    middle = (world.size - 1) / 2
    assert first[:7].numpy().tolist() == [middle] * 7, "a result that is still in use has changed"
    assert second[:7].numpy().tolist() == [2 * middle] * 7
    assert second[16:3016].numpy().tolist() == [4.0] * 3000
    del first
    third = average(parts, [0, 16], 3024, world.size)
    assert np.from_dlpack(third).ctypes.data == place, "each call takes new memory"
    doubled = tf.function(lambda x: 2 * x, jit_compile=True)(third)
    np.testing.assert_array_equal(doubled[16:3016].numpy(), 4.0)
    assert MpiCollectives(world.comm, shares_memory=False).mean_of_parts is None
    assert MpiCollectives(world.comm, world.rank, world.size).mean_of_parts is None
    collectives.close()


def check_shared_memory(world: World) -> None:
    """Numbers are added in the order of the ranks, wherever they stand; every rank hears why none is shared."""
    memory, size = open_memory(world.comm), 5 * SLOT_BYTES // 4 + 7
    parts = [np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(world.size)]
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part
    for num_large in (0, 0, 1, 2):  # sums with large pieces, as if the pieces had been slow
        if world.rank == 0:
            memory._large_left[0] = num_large
        world.barrier()
        total = memory.vector("sum", size, np.dtype(np.float32))
        memory.sum([parts[world.rank]], [0], total)
        if num_large:
            assert memory._large_left[0] == num_large - 1
        np.testing.assert_array_equal(total, expected)
        world.barrier()
        total[:] = world.rank  # the next sum forgets it
    check_means_of_parts(world, memory)
    mapped = {line.split(maxsplit=5)[5].strip() for line in Path("/proc/self/maps").read_text().splitlines()
              if "/memfd:ringbert" in line}  # fmt: skip
    assert mapped == {"/memfd:ringbert (deleted)"}, "a killed job would leave it behind"

    def fail(*_):
        raise OSError("planned failure")

    def another(*_):  # what rank 0's number is in another container
        descriptor = os.memfd_create("another")
        os.truncate(descriptor, 1 << 30)
        return descriptor

    for rank, name, function, reason in (
        (0, "memfd_create", fail, "planned failure"),
        (world.size - 1, "open", fail, "planned failure"),
        (world.size - 1, "open", another, "belongs to another process"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            if world.rank == rank:
                patch.setattr(os, name, function)
            with pytest.raises(OSError, match=f"{reason}$"):
                open_memory(world.comm)
        world.barrier()
    with pytest.MonkeyPatch.context() as patch:
        if world.rank == 0:
            patch.setattr(os, "memfd_create", fail)
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr):
            collectives = open_collectives(world, "mpi")
    warning = "warning: ranks of a machine share no memory (planned failure): MPI sums their gradients"
    assert stderr.getvalue().startswith(warning) == (world.rank == 0), stderr.getvalue()
    check_sums(world, collectives, "float32", 1023)


def check_memory(world: World, collectives) -> None:
    """Sums of 256 KiB leave nothing behind."""
    values = tf.constant(whole_numbers(MIB // 16, "float32", world.rank, 0))
    for call in range(220):
        total = collectives.all_reduce_sum(values)
        if call == 20:
            before = resident_bytes()
    assert total.shape == values.shape
    grown = resident_bytes() - before
    assert grown < 25 * MIB, f"{collectives.name}: {grown / MIB:.0f} MiB more after 200 sums of 256 KiB"


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def check_broadcasts(world: World, collectives) -> None:
    for dtype in (tf.float32, tf.float64, tf.int32, tf.int64, tf.bool, tf.float16, tf.bfloat16):
        for shape in ((), (0,), (3,), (5, 7)):
            numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2 + world.rank + 1
            got = collectives.broadcast(tf.cast(tf.constant(numbers), dtype))
            expected = tf.cast(tf.constant(numbers - world.rank), dtype)
            what = f"{collectives.name}: broadcast of {dtype.name} {shape}"
            assert got.dtype == dtype, what
            assert got.shape == shape, what
            np.testing.assert_array_equal(got.numpy(), expected.numpy(), err_msg=what)
    large = np.arange(17 * MIB + 3, dtype=np.float32)  # more than one message of 64 MiB
    got = collectives.broadcast(tf.constant(large if world.rank == 0 else np.zeros_like(large))).numpy()
    assert np.array_equal(got, large), f"{collectives.name}: broadcast of {large.nbytes} bytes"


def check_overlap(world: World, collectives) -> None:
    """Gradients that are summed during the backward pass are those that are summed after it."""
    model = toy.make_model(seed=1)
    batches = [toy.collate(toy.rows().take(np.arange(6) + 6 * number + world.rank)) for number in range(3)]
    small = 50  # bytes of a bucket: each holds one or two variables
    for compresses in (False, True):
        options = {"compresses": compresses, "optimizer": keras.optimizers.SGD(0.0)}
        after, during = (
            toy.make_optimizer(model, world, collectives, overlaps=overlaps, **options)
            for overlaps in (False, True)
        )
        can = collectives.name in ("nccl", "ring")
        assert (after.overlaps, during.overlaps) == (False, can)
        if not can:
            continue
        layout = during.layout
        layout._buckets = buckets([8 * size for size in layout._sizes], small)
        assert len(layout._buckets) == 3
        functions = [Gradient(optimizer, toy.squared_loss(model)) for optimizer in (after, during)]
        inverse = after.inverse_weights({"loss": 18.0 * world.size})
        for turn, chosen in enumerate((batches[:1], batches, batches[1:], batches)):
            keys = [dropout_key(0, turn, number, world.rank) for number in range(len(chosen))]
            if turn == world.rank:
                time.sleep(0.2)  # the others wait for this rank's sums
            expected = after.all_reduce(functions[0](chosen, inverse, keys)).numpy().copy()
            summed = functions[1](chosen, inverse, keys)
            summed = summed.numpy()
            what = f"{collectives.name}: overlap, compresses {compresses}, {len(chosen)} micro-batches"
            assert np.abs(expected).max() > 0, what
            if world.size == 2:  # a + b is b + a
                assert summed.tobytes() == expected.tobytes(), what
            np.testing.assert_allclose(
                summed, expected, rtol=2e-2 if compresses else 1e-12, atol=1e-3 * compresses, err_msg=what
            )
            assert len(set(world.all_gather(summed.tobytes()))) == 1, what


def check_overlap_in_training(world: World, collectives) -> None:
    """`train` ends as it does without overlap: 20 steps of 14 rows; three ranks have unequal numbers of rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(world.broadcast(name))
        for accumulation in (1, 2) if world.size > 2 else (2,):
            ends, logged = [], []
            for overlaps in (False, True):
                into = folder / f"{accumulation}-{overlaps}"
                optimizer, state = toy.train(
                    world, collectives, into, accumulation=accumulation, overlaps=overlaps
                )
                assert (optimizer.overlaps, state.step) == (overlaps, toy.STEPS)
                ends.append(toy.flat(optimizer))
                if world.rank == 0:  # Adam hardly sees a gradient that was summed twice; its norm and loss show it
                    lines = map(json.loads, (into / "metrics.jsonl").read_text().splitlines())
                    logged.append([(line["loss"], line["gradient_norm"]) for line in lines])
            if world.rank == 0:
                assert len(logged[0]) == toy.STEPS
                np.testing.assert_allclose(*logged, rtol=1e-9, err_msg=f"accumulation {accumulation}")
            np.testing.assert_allclose(*ends, rtol=1e-12, atol=1e-12, err_msg=f"accumulation {accumulation}")
        world.barrier()


# Connects to every port of TensorFlow's servers from an address that is not theirs, again and again. A server of
# gRPC's speaks first.
STRANGER = """
import contextlib, json, select, socket, sys
print("starts", flush=True)
tried, reached = {}, {}
while not select.select([sys.stdin], [], [], 0)[0]:
    for line in open("/proc/net/tcp6").readlines() + open("/proc/net/tcp").readlines():
        words = line.split()
        port = int(words[1].rpartition(":")[2], 16) if words[3] == "0A" else 0
        if 15000 <= port < 32000:
            tried[port] = tried.get(port, 0) + 1
            with contextlib.suppress(OSError):
                with socket.create_connection(("127.0.0.1", port), 0.005, ("127.0.0.2", 0)) as connection:
                    connection.settimeout(0.02)
                    if connection.recv(1):
                        reached[port] = reached.get(port, 0) + 1
print(json.dumps([tried, reached]))
"""


@contextlib.contextmanager
def strangers(world: World, backend: str):
    """While TensorFlow's servers start, and after, a stranger tries to connect to them, and never does."""
    if world.rank or backend != "ring":
        yield
        world.barrier()
        return
    command, pipe = [sys.executable, "-c", STRANGER], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout.readline() == "starts\n"
    yield
    time.sleep(0.3)
    tried, reached = json.loads(process.communicate("stop", timeout=30)[0])
    tasks = context.context()._collective_ops_server_def.cluster.job[0].tasks.values()
    ports = {server.rpartition(":")[2] for server in tasks}  # other jobs have servers too
    assert ports <= set(tried), (ports, tried)
    assert not ports & set(reached), f"a stranger reached {reached} of {ports}"
    world.barrier()


def check_backends(world: World, working: list[str]) -> int:
    checks = 0
    for backend in BACKENDS:
        if backend not in working:
            with pytest.raises(InputError, match=f"--backend {backend}"):
                open_collectives(world, backend)
            continue
        with strangers(world, backend):
            collectives = open_collectives(world, backend)
        for dtype in ("float32", "float64"):
            for size in SIZES:
                check_sums(world, collectives, dtype, size)
            check_rounding(world, collectives, dtype)
        check_bfloat16(world, collectives)
        check_memory(world, collectives)
        check_broadcasts(world, collectives)
        check_overlap(world, collectives)
        if backend == "ring":
            check_overlap_in_training(world, collectives)
        collectives.close()
        checks += 1
    auto = open_collectives(world)
    assert auto.name == ("local" if world.size == 1 else "mpi"), f"auto is {auto.name}"
    auto.close()
    return checks + 1


def check_messages(world: World) -> None:
    rank, size = world.rank, world.size
    everyone = list(range(size))
    large = {"array": np.arange(300_000), "text": "한국어"}
    assert world.all_gather(("rank", rank)) == [("rank", r) for r in everyone], "all_gather"
    gathered = world.gather(rank * 10)
    assert gathered == ([r * 10 for r in everyone] if rank == 0 else None), "gather"
    got = world.broadcast(large if rank == 0 else None)
    assert got["text"] == "한국어", "broadcast"
    assert np.array_equal(got["array"], large["array"]), "broadcast"
    total = world.all_reduce_sum(np.array([0.1 * (rank + 1), rank, 2.0**53]))
    assert total.dtype == np.float64, "all_reduce_sum"
    np.testing.assert_allclose(total, [0.1 * size * (size + 1) / 2, sum(everyone), size * 2.0**53], rtol=1e-15)
    assert total[2] == size * 2.0**53, "all_reduce_sum"
    assert world.all_reduce_sum(np.array([1, 2])).tolist() == [size, 2 * size], "all_reduce_sum of integers"


def check_on_first(world: World) -> None:
    calls = []
    result = world.on_first(lambda: calls.append(world.rank) or f"from rank {world.rank}")
    assert result == "from rank 0", "on_first: result"
    assert calls == ([0] if world.rank == 0 else []), "on_first: called off rank 0"
    assert world.on_each_machine(lambda: calls.append("machine") or world.rank) == 0, "on_each_machine: result"
    # All ranks are on one machine here; tests/test_two_hosts.py has two.
    assert calls.count("machine") == (world.rank == 0), "on_each_machine: not once per machine"

    def fail():
        raise ZeroDivisionError("planned failure")

    # Rank 0 has the exception itself, which it reports; the others know of it.
    expected = (
        (ZeroDivisionError, "planned failure") if world.rank == 0 else (FirstRankError, "ZeroDivisionError: plan")
    )
    with pytest.raises(expected[0], match=expected[1]):
        world.on_first(fail)
    if world.size > 1:  # one rank sends nothing, and so may return what cannot be sent
        with pytest.raises(Exception, match="pickle"):
            world.on_first(lambda: lambda: None)
    assert world.all_gather(1) == [1] * world.size, "messages after a failed on_first"


def check_agree(world: World) -> None:
    world.agree({"same": {"a": 1}, "also": None})
    if world.size == 1:
        return
    facts = {"same": 1, "differs": 5 if world.rank == 1 else 4}
    if world.rank == 0:
        facts["only here"] = 1
    others = ",".join(str(rank) for rank in range(world.size) if rank != 1)
    ranks = "ranks" if world.size > 2 else "rank"
    with pytest.raises(InputError, match=f"^the ranks disagree about differs: {ranks} {others}: 4; rank 1: 5$"):
        world.agree(facts)
    with pytest.raises(InputError, match=r"about here: rank 0: 1; .*: nothing$"):
        world.agree({"here": 1} if world.rank == 0 else {})


def check_waiting(world: World) -> None:
    """The others wait for rank 0 without taking its core."""
    world.barrier()
    started, cpu_started = time.monotonic(), time.process_time()
    if world.rank == 0:
        time.sleep(1.5)
    world.barrier()
    waited, cpu = time.monotonic() - started, time.process_time() - cpu_started
    if world.size > 1:
        assert waited > 1.4, f"barrier: rank {world.rank} went on after {waited:.2f} s, rank 0 came after 1.5"
        assert cpu < 0.75, f"barrier: rank {world.rank} spent {cpu:.2f} s of CPU time in {waited:.2f} s of waiting"


def check_cores(world: World, mine: set[int]) -> None:
    """What a machine's first rank does for all has the cores of all; each rank keeps its own."""
    of_ranks = world.all_gather(mine)
    assert world.machine_cores == set().union(*of_ranks), world.machine_cores
    used = world.on_each_machine(lambda: os.sched_getaffinity(0))
    assert used == world.machine_cores, f"on_each_machine: cores {used}"
    assert os.sched_getaffinity(0) == mine, "on_each_machine: cores not given back"


# Each rank on a core of its own, as mpirun and Slurm bind them, while there are any.
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[int(launched_rank()) % len(cores)]})
with World.join(DeviceSettings(device="cpu")) as world:
    check_cores(world, {cores[world.rank % len(cores)]})
    os.sched_setaffinity(0, cores)
    places = world.all_gather((world.rank, world.local_rank, world.local_size, world.node, world.num_nodes))
    assert places == [(rank, rank, world.size, 0, 1) for rank in range(world.size)], places
    checks = check_backends(world, sys.argv[1:])
    for check in (check_messages, check_on_first, check_agree, check_waiting):
        check(world)
        checks += 1
    if world.size > 1:
        check_machines(world)
        check_shared_memory(world)
        check_reused_results(world)
        note = compression_note(world, open_collectives(world))
        assert "no gradients travel between machines" in note, note
        note = compression_note(world, MpiCollectives(world.comm, world.rank, world.size))
        assert "16 MiB of gradients take" in note, note
    if world.rank == 0:
        print(json.dumps({"size": world.size, "checks": checks}), flush=True)
