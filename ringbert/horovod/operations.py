"""Horovod's operations on tensors and objects of all ranks: eagerly, or in a `tf.function`."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow import Tensor

from distributed import arrays
from ringbase.errors import InputError
from ringbert.horovod.process_sets import ProcessSet, root_in, session_of
from ringbert.horovod.session import (
    PAGE,
    Call,
    Session,
    Unsupported,
    WrongValue,
    as_written,
    collective,
    current,
)

Average, Sum, Min, Max, Product = "average", "sum", "min", "max", "product"
Adasum = "Adasum"  # may be named, as in a branch that is not taken
SUMS = (Average, Sum)  # which have a gradient
MPI_NAMES = {Average: "SUM", Sum: "SUM", Min: "MIN", Max: "MAX", Product: "PROD"}
OWN_STATE = ("seed_generator_state", "gradient_accumulator")  # ends of Keras' names of variables
# MPI knows none of these
WIDE = {tf.float16: tf.float32, tf.bfloat16: tf.float32, tf.bool: tf.int32}


class Compressor:
    """Makes tensors of numbers smaller. Others with these methods may be given too."""

    half: tf.DType | None = None

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor to send, and what `decompress` needs."""
        if cls.half is None or not tensor.dtype.is_floating:
            return tensor, None
        return tf.cast(tensor, cls.half), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, context) -> Tensor:
        return tensor if context is None else tf.cast(tensor, context)


class NoneCompressor(Compressor):
    """Sends tensors as they are."""


class FP16Compressor(Compressor):
    """Sends float32 values in 16 bits between machines."""

    half = tf.float16


class BF16Compressor(Compressor):
    """The same."""

    half = tf.bfloat16


class Compression:
    """`fp16` and `bf16` both send float32 values as bfloat16 between machines, which has the range
    of float32, and add in float32. Within a machine nothing is sent, and so nothing is rounded."""

    none, fp16, bf16 = NoneCompressor, FP16Compressor, BF16Compressor


OF_BACKEND = (Compression.fp16, Compression.bf16)  # which rounds, and only what it sends


def checked_op(op: str, allowed: Iterable[str], what: str) -> str:
    """The operation. Raises Unsupported for any other than these."""
    if op not in allowed:
        names = ", ".join(f"hvd.{name.capitalize()}" for name in allowed)
        raise Unsupported(f"{what} takes op={names}, got op={op!r:.40} ({PAGE})")
    return op


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
    process_set: ProcessSet | None = None,
    ignore_name_scope: bool = False,
) -> list:
    """Tensors averaged (`op` `Sum`: summed, …) over ranks in one call; the same on every rank.

    Of `tf.IndexedSlices` each index of any rank comes once. Gradients pass through. Integers are
    averaged without the fraction, and multiplied by the factors in float64.
    """
    if isinstance(average, str):  # the second argument of horovod.keras.allreduce is the name
        average, name = None, average
    if isinstance(device_dense, bool):  # and the third one what is here the second
        average = device_dense
    if op is not None and average is not None:
        raise InputError("give op or average, not both: op=hvd.Average, hvd.Sum …")
    op = checked_op(op or (Sum if average is False else Average), MPI_NAMES, "hvd.allreduce")
    session = session_of(process_set)
    is_half = compression in OF_BACKEND
    compressor = Compression.none if is_half else compression

    def gradient(name, _, *upstream):
        if op not in SUMS:
            raise Unsupported(f"hvd.allreduce: there is no gradient of op={op}")
        options = {"compression": compression, "op": op, "name": name}
        return grouped_allreduce(upstream, **options, process_set=process_set)

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
            results[place] = _gathered(tensor, op, f"{name or 'slices'} {place}", process_set)
        else:
            raise Unsupported(
                "hvd.allreduce: sparse tensors are averaged or summed, without factors"
            )
    call = Call("hvd.allreduce", name, (op, is_half))
    reduce = functools.partial(_reduced, session, op, is_half)
    totals = collective(call, reduce, gradient, own, session)
    for (place, (dtype, context)), total in zip(sent.items(), totals, strict=True):
        total = tf.cast(_scaled(total, postscale_factor), dtype)
        results[place] = compressor.decompress(total, context)
    return results


def _scaled(value: Tensor, factor: float) -> Tensor:
    if factor == 1:
        return value
    wide = tf.cast(value, tf.float64) if value.dtype.is_integer else value
    return tf.cast(wide * tf.cast(factor, wide.dtype), value.dtype)


def _gathered(
    slices: tf.IndexedSlices, op: str, name: str, process_set: ProcessSet | None
) -> tf.IndexedSlices:
    """Each index once: Keras 3 takes the square of each slice for the square of their sum."""
    all_indices = allgather(slices.indices, f"indices of {name}", process_set=process_set)
    indices, places = tf.unique(all_indices)
    values = allgather(slices.values, f"values of {name}", process_set=process_set)
    if op == Average:
        values /= tf.cast(session_of(process_set).world.size, values.dtype)
    sums = tf.math.unsorted_segment_sum(values, places, tf.size(indices))
    return tf.IndexedSlices(sums, indices, slices.dense_shape)


def _reduced(session: Session, op: str, is_half: bool, *tensors: Tensor) -> list[Tensor]:
    """Each tensor, of a dtype that MPI knows, reduced over ranks; float ones in one sum.

    Averages are over the ranks that have not joined, those of integers without their fraction. With
    `is_half`, float32 values may be sent in 16 bits between machines.
    """
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
def grouped_reducescatter(
    tensors: Sequence,
    device_dense: str = "",
    compression=Compression.none,
    op: str = Average,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list:
    """This rank's parts of averages (or `op` `Sum`) over ranks, cut along the first dimension.

    The first ranks get one row more if the rows do not divide evenly. The gradient of a `Sum` is
    multiplied by the number of ranks, as in Horovod.
    """
    what = "hvd.reducescatter"
    checked_op(op, SUMS, what)
    world = session_of(process_set).world

    @tf.custom_gradient
    def with_larger_gradient(value):
        return tf.identity(value), lambda upstream: upstream * world.size

    def part(total):  # the gradient of tf.split mixes dtypes
        num_rows = tf.shape(total)[0]
        ranks = tf.constant([world.rank, world.rank + 1])
        starts = ranks * (num_rows // world.size) + tf.minimum(ranks, num_rows % world.size)
        return total[starts[0] : starts[1]]

    own = []
    for tensor in tensors:
        value = _with_rows(tensor, what)
        own.append(with_larger_gradient(value))
    factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    options = {"compression": compression, "op": op, "name": name or what, **factors}
    totals = grouped_allreduce(own, **options, process_set=process_set)
    return [*map(part, totals)]


@as_written
def allgather(
    tensor,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | None = None,
) -> Tensor:
    """The tensors of all ranks one after the other; their first dimensions may differ.

    Gradients are averaged over the ranks, as in Horovod: what all ranks compute from the same
    tensors is one loss.
    """
    session = session_of(process_set)
    rank = session.world.rank
    value = _with_rows(tensor, "hvd.allgather")

    def gradient(name, results, upstream, _):
        mean = allreduce(upstream, name=name, process_set=process_set)
        _, num_rows = results  # of each rank
        start = tf.reduce_sum(num_rows[:rank])
        return [mean[start : start + num_rows[rank]], None]

    call = Call("hvd.allgather", name)
    own = [value, tf.shape(value, tf.int64)[:1]]
    gather = functools.partial(_gather, session)
    gathered, _ = collective(call, gather, gradient, own, session, resizes=True)
    return gathered


def _gather(session: Session, value: Tensor, _) -> Sequence:
    return arrays.gathered(session.world.comm, value.numpy())


def _with_rows(tensor, what: str) -> Tensor:
    value = tf.convert_to_tensor(tensor)
    if value.shape.rank == 0:
        raise InputError(f"{what}: a tensor with at least one dimension is needed, got a scalar")
    return value


@as_written
def grouped_allgather(
    tensors: Sequence,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | None = None,
) -> list:
    """As `allgather` of each tensor."""
    names = [f"{name or 'hvd.allgather'} {place}" for place in range(len(tensors))]
    return [
        allgather(tensor, own, process_set=process_set)
        for tensor, own in zip(tensors, names, strict=True)
    ]


@as_written
def grouped_broadcast(
    tensors: Sequence,
    root_rank: int = 0,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | None = None,
) -> list[Tensor]:
    """The tensors of rank `root_rank`, by its number among all ranks, on every rank. Their gradient
    is the mean of the ranks' gradients."""
    session = session_of(process_set)
    world, root = session.world, root_in(process_set, root_rank)

    def send(*values):
        return [arrays.broadcast(world.comm, value.numpy(), root) for value in values]

    def gradient(name, _, *upstream):
        means = grouped_allreduce(upstream, name=name, process_set=process_set)
        return means if world.rank == root else [*map(tf.zeros_like, means)]

    call = Call("hvd.broadcast", name, (f"from rank {root_rank}",))
    values = [*map(tf.convert_to_tensor, tensors)]
    return collective(call, send, gradient, values, session)


def _of_one_tensor(grouped: Callable[..., list]) -> Callable[..., Any]:
    """The same function of one tensor, which returns one."""

    @functools.wraps(grouped)
    def of_one(tensor, *args, **options):
        return grouped([tensor], *args, **options)[0]

    return as_written(of_one)


allreduce, reducescatter = _of_one_tensor(grouped_allreduce), _of_one_tensor(grouped_reducescatter)
broadcast = _of_one_tensor(grouped_broadcast)


@as_written
def broadcast_(
    variables: Sequence,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list:
    """Gives every rank the variables' values of rank `root_rank`, and returns the values.

    The state of Keras' random numbers and the gradients that a rank still adds up stay its own:
    otherwise dropout would be the same on all ranks, and `backward_passes_per_step` lose gradients.
    """
    variables = list(variables)
    shared = []
    for variable in variables:
        if not variable.name.removesuffix(":0").endswith(OWN_STATE):
            shared.append(variable)
    name = name or "variables"
    values = grouped_broadcast(shared, root_rank, name, process_set=process_set)
    for variable, value in zip(shared, values, strict=True):
        variable.assign(value)
    return [*map(tf.convert_to_tensor, variables)]


@as_written
def broadcast_variables(
    variables: Sequence,
    root_rank: int = 0,
    process_set: ProcessSet | str | None = None,
    inplace: bool = False,
    name: str | None = None,
) -> list:
    """As `broadcast_`; `inplace` is without effect."""
    if isinstance(process_set, str):
        process_set, name = None, process_set
    return broadcast_(variables, root_rank, name, process_set)


@as_written
def alltoall(
    tensor,
    splits=None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | None = None,
):
    """Sends `splits[r]` rows to each rank r, and returns those that this rank receives, in order of
    rank.

    Without `splits` every rank gets equally many; with them, how many rows each rank sent is
    returned too.
    """
    session = session_of(process_set)
    world = session.world
    value = _with_rows(tensor, "hvd.alltoall")
    each = [tf.shape(value)[0] // world.size] * world.size
    rows_to = tf.convert_to_tensor(each if splits is None else splits, tf.int32)

    def exchange(value, rows_to):
        numbers = rows_to.numpy().tolist()
        if len(numbers) != world.size or min(numbers) < 0 or sum(numbers) != len(value):
            needed = f"{world.size} splits from 0 that add up to its {len(value)} rows"
            raise WrongValue(f"hvd.alltoall: rank {world.rank} needs {needed}, got {numbers}")
        return arrays.exchanged(world.comm, value.numpy(), numbers)

    def gradient(name, results, upstream, _):
        _, rows_from = results
        gradient_of_value, _ = alltoall(upstream, rows_from, name, process_set=process_set)
        return [gradient_of_value, None]

    call = Call("hvd.alltoall", name)
    own = [value, rows_to]
    received, rows_from = collective(call, exchange, gradient, own, session, resizes=True)
    return received if splits is None else (received, rows_from)


@as_written
def barrier(process_set: ProcessSet | None = None) -> None:
    """Waits for all ranks."""
    with session_of(process_set).meeting(Call("hvd.barrier")):
        pass


@as_written
def broadcast_object(
    obj,
    root_rank: int = 0,
    session=None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
):
    """The object of rank `root_rank` on every rank (pickled)."""
    name = _name_of(session, name)
    part, root = session_of(process_set), root_in(process_set, root_rank)
    sent = obj if part.world.rank == root else None
    with part.meeting(Call("hvd.broadcast_object", name, (root_rank,))):
        objects = part.world.all_gather(sent)
    return objects[root]


@as_written
def broadcast_object_fn(
    root_rank: int = 0,
    session=None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Callable[..., Any]:
    """A function of an object, which returns that of rank `root_rank`."""
    name = _name_of(session, name)
    return lambda obj: broadcast_object(obj, root_rank, None, name, process_set)


@as_written
def allgather_object(
    obj, session=None, name: str | None = None, process_set: ProcessSet | None = None
) -> list:
    """The objects of all ranks (pickled), in order of rank."""
    part = session_of(process_set)
    with part.meeting(Call("hvd.allgather_object", _name_of(session, name))):
        return part.world.all_gather(obj)


def _name_of(session, name: str | None) -> str | None:
    """The name of a call. Raises Unsupported for a session of TensorFlow 1; where it stands, other
    versions have the name."""
    if session is None or isinstance(session, str):
        return name or session
    raise Unsupported(f"there are no sessions in TensorFlow 2: leave out session= ({PAGE})")


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
                _reduced(session, op, is_half, *zeros)
            elif call.what == "hvd.allgather":
                dtype, shape = call.kind[0]
                _gather(session, tf.zeros([0, *shape], dtype), None)
            else:
                raise InputError(
                    f"{call} cannot go on without the ranks that have called hvd.join()"
                )
    entered_of_ranks = session.world.all_gather(entered)
    _, last = max((number, rank) for rank, number in enumerate(entered_of_ranks))
    return last
