"""Horovod's operations on tensors and objects of all ranks: eagerly, or in a `tf.function`."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow import Tensor

from distributed import arrays
from ringbase.errors import InputError
from ringbert.horovod.session import (
    Call,
    Unsupported,
    WrongValue,
    as_written,
    checked_root,
    collective,
    current,
)

Average, Sum, Min, Max, Product = "average", "sum", "min", "max", "product"
SUMS = (Average, Sum)  # which have a gradient
MPI_NAMES = {Average: "SUM", Sum: "SUM", Min: "MIN", Max: "MAX", Product: "PROD"}
OWN_STATE = ("seed_generator_state", "gradient_accumulator")  # ends of Keras' names of variables
# MPI knows none of these
WIDE = {tf.float16: tf.float32, tf.bfloat16: tf.float32, tf.bool: tf.int32}


@dataclass(frozen=True)
class Compressor:
    """Makes tensors of numbers smaller. Others with these methods may be given too."""

    half: tf.DType | None = None

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor to send, and what `decompress` needs."""
        if self.half is None or not tensor.dtype.is_floating:
            return tensor, None
        return tf.cast(tensor, self.half), tensor.dtype

    def decompress(self, tensor: Tensor, context) -> Tensor:
        return tensor if context is None else tf.cast(tensor, context)


class Compression:
    """`fp16` and `bf16` both send float32 values as bfloat16 between machines, which has the range
    of float32, and add in float32. Within a machine nothing is sent, and so nothing is rounded."""

    none, fp16, bf16 = Compressor(), Compressor(tf.float16), Compressor(tf.bfloat16)


OF_BACKEND = (Compression.fp16, Compression.bf16)  # which rounds, and only what it sends


@as_written
def grouped_allreduce(
    tensors: Sequence,
    average: bool | str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression=Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list:
    """Tensors averaged (`op` `Sum`: summed, …) over ranks in one call; the same on every rank.

    Of `tf.IndexedSlices` each index of any rank comes once. Gradients pass through. Integers are
    averaged without the fraction, and multiplied by the factors in float64.
    """
    if isinstance(average, str):  # the second argument of horovod.keras.allreduce is the name
        average, name = None, average
    if op is not None and average is not None:
        raise InputError("give op or average, not both: op=hvd.Average, hvd.Sum …")
    op = op or (Sum if average is False else Average)
    if op not in MPI_NAMES:
        raise InputError(f"op must be hvd.Average, Sum, Min, Max or Product, got {op}")
    is_half = compression in OF_BACKEND
    compressor = Compression.none if is_half else compression

    def gradient(name, _, *upstream):
        if op not in SUMS:
            raise Unsupported(f"hvd.allreduce: there is no gradient of op={op}")
        return grouped_allreduce(upstream, compression=compression, op=op, name=name)

    results = list(tensors)
    own = []
    sent = {}  # dtype and context of each of these, by its place
    for place, tensor in enumerate(tensors):
        if not isinstance(tensor, tf.IndexedSlices):
            value = tf.convert_to_tensor(tensor)
            if value.dtype == tf.string:
                raise WrongValue("hvd.allreduce: tensors must hold numbers, got strings")
            value, context = compressor.compress(value)
            sent[place] = value.dtype, context
            wide = tf.cast(value, WIDE.get(value.dtype, value.dtype))
            value = _scaled(wide, prescale_factor)
            if postscale_factor != 1 and value.dtype.is_integer:
                value = tf.cast(value, tf.float64)  # of an average the fraction too
            own.append(value)
        elif op in SUMS and prescale_factor == postscale_factor == 1:
            results[place] = _gathered(tensor, op, f"{name or 'slices'} {place}")
        else:
            raise Unsupported(
                "hvd.allreduce: sparse tensors are averaged or summed, without factors"
            )
    call = Call("hvd.allreduce", name, (op, is_half))
    reduce = functools.partial(_reduced, op, is_half)
    totals = collective(call, reduce, gradient, own)
    for (place, (dtype, context)), total in zip(sent.items(), totals, strict=True):
        total = tf.cast(_scaled(total, postscale_factor), dtype)
        results[place] = compressor.decompress(total, context)
    return results


def _scaled(value: Tensor, factor: float) -> Tensor:
    if factor == 1:
        return value
    wide = tf.cast(value, tf.float64) if value.dtype.is_integer else value
    return tf.cast(wide * tf.cast(factor, wide.dtype), value.dtype)


def _gathered(slices: tf.IndexedSlices, op: str, name: str) -> tf.IndexedSlices:
    """Each index once: Keras 3 takes the square of each slice for the square of their sum."""
    all_indices = allgather(slices.indices, f"indices of {name}")
    indices, places = tf.unique(all_indices)
    values = allgather(slices.values, f"values of {name}")
    if op == Average:
        values /= tf.cast(current().world.size, values.dtype)
    sums = tf.math.unsorted_segment_sum(values, places, tf.size(indices))
    return tf.IndexedSlices(sums, indices, slices.dense_shape)


def _reduced(op: str, is_half: bool, *tensors: Tensor) -> list[Tensor]:
    """Each tensor, of a dtype that MPI knows, reduced over ranks; float ones in one sum.

    Averages are over the ranks that have not joined, those of integers without their fraction. With
    `is_half`, float32 values may be sent in 16 bits between machines.
    """
    session = current()
    results = {}
    for dtype in dict.fromkeys(value.dtype for value in tensors):
        own = [value for value in tensors if value.dtype == dtype]
        if dtype.is_floating and op in SUMS:
            totals = session.host.all_reduce_sum(own, is_half and dtype == tf.float32)
        else:
            comm = session.world.comm
            totals = [arrays.reduced(comm, value.numpy(), MPI_NAMES[op]) for value in own]
        num_ranks = session.num_active if op == Average else 1
        divisor = tf.constant(num_ranks, dtype)
        divide = tf.truediv if dtype.is_floating else tf.truncatediv  # into memory of their own
        results[dtype] = iter([divide(total, divisor) for total in totals])
    return [next(results[value.dtype]) for value in tensors]


@as_written
def grouped_reducescatter(tensors: Sequence, *, op: str = Average, **options) -> list:
    """This rank's parts of averages (or `op` `Sum`) over ranks, cut along the first dimension.

    The first ranks get one row more if the rows do not divide evenly. The gradient of a `Sum` is
    multiplied by the number of ranks, as in Horovod. The options are those of `grouped_allreduce`.
    """
    if op not in SUMS:
        raise Unsupported(f"hvd.reducescatter: op must be hvd.Average or hvd.Sum, got {op}")
    world = current().world

    @tf.custom_gradient
    def with_larger_gradient(value):
        return tf.identity(value), lambda upstream: upstream * world.size

    def part(total):  # the gradient of tf.split mixes dtypes
        num_rows = tf.shape(total)[0]
        ranks = tf.constant([world.rank, world.rank + 1])
        starts = ranks * (num_rows // world.size) + tf.minimum(ranks, num_rows % world.size)
        return total[starts[0] : starts[1]]

    what = "hvd.reducescatter"
    own = []
    for tensor in tensors:
        value = _with_rows(tensor, what)
        own.append(with_larger_gradient(value))
    options = {"name": what} | options
    totals = grouped_allreduce(own, op=op, **options)
    return [*map(part, totals)]


@as_written
def allgather(tensor, name: str | None = None) -> Tensor:
    """The tensors of all ranks one after the other; their first dimensions may differ.

    Gradients are averaged over the ranks, as in Horovod: what all ranks compute from the same
    tensors is one loss.
    """
    rank = current().world.rank
    value = _with_rows(tensor, "hvd.allgather")

    def gradient(name, results, upstream, _):
        mean = allreduce(upstream, name=name)
        _, num_rows = results  # of each rank
        start = tf.reduce_sum(num_rows[:rank])
        return [mean[start : start + num_rows[rank]], None]

    call = Call("hvd.allgather", name)
    own = [value, tf.shape(value, tf.int64)[:1]]
    gathered, _ = collective(call, _gather, gradient, own, resizes=True)
    return gathered


def _gather(value: Tensor, _) -> Sequence:
    return arrays.gathered(current().world.comm, value.numpy())


def _with_rows(tensor, what: str) -> Tensor:
    value = tf.convert_to_tensor(tensor)
    if value.shape.rank == 0:
        raise InputError(f"{what}: a tensor with at least one dimension is needed, got a scalar")
    return value


@as_written
def grouped_allgather(tensors: Sequence, name: str | None = None) -> list:
    """As `allgather` of each tensor."""
    return [allgather(tensor, f"{name or 'hvd.allgather'} {n}") for n, tensor in enumerate(tensors)]


@as_written
def grouped_broadcast(
    tensors: Sequence, root_rank: int = 0, name: str | None = None
) -> list[Tensor]:
    """The tensors of rank `root_rank` on every rank. Their gradient is the mean of the ranks'
    gradients."""
    world = current().world
    root_rank = checked_root(root_rank)

    def send(*values):
        return [arrays.broadcast(world.comm, value.numpy(), root_rank) for value in values]

    def gradient(name, _, *upstream):
        means = grouped_allreduce(upstream, name=name)
        return means if world.rank == root_rank else [*map(tf.zeros_like, means)]

    call = Call("hvd.broadcast", name, (f"from rank {root_rank}",))
    values = [*map(tf.convert_to_tensor, tensors)]
    return collective(call, send, gradient, values)


def _of_one_tensor(grouped: Callable[..., list]) -> Callable[..., Any]:
    """The same function of one tensor, which returns one."""

    @functools.wraps(grouped)
    def of_one(tensor, *args, **options):
        return grouped([tensor], *args, **options)[0]

    return as_written(of_one)


allreduce, reducescatter = _of_one_tensor(grouped_allreduce), _of_one_tensor(grouped_reducescatter)
broadcast = _of_one_tensor(grouped_broadcast)


@as_written
def broadcast_(variables: Sequence, root_rank: int = 0, name: str | None = None) -> list:
    """Gives every rank the variables' values of rank `root_rank`, and returns the values.

    The state of Keras' random numbers and the gradients that a rank still adds up stay its own:
    otherwise dropout would be the same on all ranks, and `backward_passes_per_step` lose gradients.
    """
    variables = list(variables)
    shared = []
    for variable in variables:
        if not variable.name.removesuffix(":0").endswith(OWN_STATE):
            shared.append(variable)
    values = grouped_broadcast(shared, root_rank, name or "variables")
    for variable, value in zip(shared, values, strict=True):
        variable.assign(value)
    return [*map(tf.convert_to_tensor, variables)]


@as_written
def alltoall(tensor, splits=None, name: str | None = None):
    """Sends `splits[r]` rows to each rank r, and returns those that this rank receives, in order of
    rank.

    Without `splits` every rank gets equally many; with them, how many rows each rank sent is
    returned too.
    """
    world = current().world
    value = _with_rows(tensor, "hvd.alltoall")
    own = [tf.shape(value)[0] // world.size] * world.size if splits is None else splits
    rows_to = tf.convert_to_tensor(own, tf.int32)

    def exchange(value, rows_to):
        numbers = rows_to.numpy().tolist()
        if len(numbers) != world.size or min(numbers) < 0 or sum(numbers) != len(value):
            needed = f"{world.size} splits from 0 that add up to its {len(value)} rows"
            raise WrongValue(f"hvd.alltoall: rank {world.rank} needs {needed}, got {numbers}")
        return arrays.exchanged(world.comm, value.numpy(), numbers)

    def gradient(name, results, upstream, _):
        _, rows_from = results
        gradient_of_value, _ = alltoall(upstream, rows_from, name)
        return [gradient_of_value, None]

    call = Call("hvd.alltoall", name)
    received, rows_from = collective(call, exchange, gradient, [value, rows_to], resizes=True)
    return received if splits is None else (received, rows_from)


@as_written
def barrier() -> None:
    """Waits for all ranks."""
    with current().meeting(Call("hvd.barrier")):
        pass


@as_written
def broadcast_object(obj, root_rank: int = 0, name: str | None = None):
    """The object of rank `root_rank` on every rank (pickled)."""
    session = current()
    sent = obj if session.world.rank == checked_root(root_rank) else None
    with session.meeting(Call("hvd.broadcast_object", name, (root_rank,))):
        objects = session.world.all_gather(sent)
    return objects[root_rank]


@as_written
def allgather_object(obj, name: str | None = None) -> list:
    """The objects of all ranks (pickled), in order of rank."""
    with current().meeting(Call("hvd.allgather_object", name)):
        return current().world.all_gather(obj)


@as_written
def join() -> int:
    """For a rank whose data have ended: waits until all ranks call it, and returns the rank that
    did so last.

    Until then this rank takes part in the sums of the others, which are averaged over the ranks
    that have data. Messages other than `allreduce`, `allgather` and the gradients of an optimizer
    or tape cannot go on without it.
    """
    session = current()
    entered = session.num_calls
    while True:
        with session.meeting(None) as call:
            if call is None:  # all have joined
                break
            # A rank without data adds nothing to a call of the others.
            if call.what == "hvd.allreduce" and call.kind[0] in SUMS:
                op, is_half, *kinds = call.kind
                zeros = [tf.zeros(shape, dtype) for dtype, shape in kinds]
                _reduced(op, is_half, *zeros)
            elif call.what == "hvd.allgather":
                dtype, shape = call.kind[0]
                _gather(tf.zeros([0, *shape], dtype), None)
            else:
                raise InputError(
                    f"{call} cannot go on without the ranks that have called hvd.join()"
                )
    entered_of_ranks = session.world.all_gather(entered)
    _, last = max((number, rank) for rank, number in enumerate(entered_of_ranks))
    return last
