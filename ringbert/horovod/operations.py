"""Sums and messages of tensors, as in Horovod: now, or in a `tf.function`."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from distributed import arrays
from ringbase.errors import InputError
from ringbert.horovod.compression import Compression
from ringbert.horovod.host import on_host
from ringbert.horovod.session import Call, Session, current

Average, Sum, Min, Max, Product = "average", "sum", "min", "max", "product"
MPI_NAMES = {Average: "SUM", Sum: "SUM", Min: "MIN", Max: "MAX", Product: "PROD"}
as_written = tf.autograph.experimental.do_not_convert
HALVES = (tf.float16, tf.bfloat16)


@as_written
def allreduce(
    tensor: Any,
    average: bool | str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = None,
    ignore_name_scope: bool = False,
) -> Any:
    """A tensor averaged (`op` `Sum`: summed, …) over ranks; the same on every rank.

    `tf.IndexedSlices` of all ranks are put one after the other, as Horovod does. Gradients pass through. Integers
    are averaged by division without a remainder, and multiplied by the factors in float64, without the fraction.
    """
    if isinstance(average, str):  # the second argument of horovod.keras.allreduce
        average, name = None, average
    op = chosen(op, average)
    refuse_process_set(process_set)
    if isinstance(tensor, tf.IndexedSlices):
        if op not in (Average, Sum):
            raise InputError(f"hvd.allreduce: sparse tensors can be averaged or summed, got op={op}")
        if (prescale_factor, postscale_factor) != (1, 1):
            raise InputError("hvd.allreduce: prescale_factor and postscale_factor do not scale sparse tensors")
        return sparse_allreduce(tensor, op, name)
    return grouped_allreduce([tensor], None, "", "", compression, op, prescale_factor, postscale_factor, name)[0]


@as_written
def grouped_allreduce(
    tensors: Sequence,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = None,
    ignore_name_scope: bool = False,
) -> list:
    """As `allreduce` of each tensor, in one call."""
    op = chosen(op, average)
    refuse_process_set(process_set)
    session = current()
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    pairs = [compression.compress(value) for value in values]

    def kind_of(*sent: tf.Tensor) -> tuple:
        return op, prescale_factor, postscale_factor, *map(_kind, sent)

    @tf.custom_gradient
    def reduced(*sent):
        function = reducer(session, op, prescale_factor, postscale_factor)
        results, name_of_gradient = on_host("hvd.allreduce", name, kind_of, function, sent, _specs(sent))

        def gradient(*upstream):
            if op not in (Average, Sum):
                raise InputError(f"hvd.allreduce: there is no gradient of op={op}")
            return grouped_allreduce(
                upstream,
                op=op,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                name=name_of_gradient,
            )

        return results, gradient

    results = reduced(*(sent for sent, _ in pairs))
    return [compression.decompress(result, context) for result, (_, context) in zip(results, pairs, strict=True)]


def reducer(session: Session, op: str, prescale: float, postscale: float) -> Callable[..., list[tf.Tensor]]:
    """What a rank does with its tensors: float32 and float64 are summed by the backend, others by MPI."""

    def reduce(*values: tf.Tensor) -> list[tf.Tensor]:
        return [_reduced(session, value, op, prescale, postscale) for value in values]

    return reduce


def _reduced(session: Session, value: tf.Tensor, op: str, prescale: float, postscale: float) -> tf.Tensor:
    kind = value.dtype
    wide = tf.cast(value, tf.float32) if kind in HALVES else tf.cast(value, tf.int32) if kind.is_bool else value
    wide = _scaled(wide, prescale)
    if session.world.size == 1:
        total = tf.identity(wide)
    elif op in (Average, Sum) and wide.dtype.is_floating:
        # The backend's result is valid until its next call.
        total = session.collectives.all_reduce_sum([wide])[0] + 0
    else:
        total = tf.constant(arrays.reduced(session.world.comm, wide.numpy(), MPI_NAMES[op]))
    total = _scaled(total, postscale)
    if op == Average:
        divide = tf.divide if total.dtype.is_floating else tf.truncatediv
        total = divide(total, session.num_active)
    return tf.cast(total, kind)


def _scaled(value: tf.Tensor, factor: float) -> tf.Tensor:
    """`value` times `factor`; integers are multiplied in float64 and lose their fraction, as in Horovod."""
    if factor == 1:
        return value
    wide = tf.cast(value, tf.float64) if value.dtype.is_integer else value
    return tf.cast(wide * tf.cast(factor, wide.dtype), value.dtype)


def sparse_allreduce(tensor: tf.IndexedSlices, op: str, name: str | None = None) -> tf.IndexedSlices:
    """The slices of all ranks, divided by the number of ranks for `Average`."""
    values = allgather(tensor.values, f"values of {name or 'slices'}")
    indices = allgather(tensor.indices, f"indices of {name or 'slices'}")
    return tf.IndexedSlices(values / size_of(values) if op == Average else values, indices, tensor.dense_shape)


def size_of(like: tf.Tensor) -> tf.Tensor:
    return tf.cast(current().world.size, like.dtype)


@as_written
def allgather(tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None):
    """The tensors of all ranks one after the other; their first dimensions may differ.

    In the backward pass the ranks' gradients are averaged, as in Horovod: a loss that all ranks compute from the
    same tensors is one loss.
    """
    refuse_process_set(process_set)
    session = current()
    value = tf.convert_to_tensor(tensor)
    if value.shape.rank == 0:
        raise InputError("hvd.allgather: a tensor with at least one dimension is needed, got a scalar")

    def kind_of(own: tf.Tensor) -> tuple:
        return own.dtype.name, tuple(own.shape[1:])

    outputs = [tf.TensorSpec([None, *value.shape[1:]], value.dtype), tf.TensorSpec([session.world.size], tf.int64)]

    @tf.custom_gradient
    def gathered(own):
        (result, rows), name_of_gradient = on_host(
            "hvd.allgather", name, kind_of, gatherer(session), [own], outputs
        )

        def gradient(upstream):
            total = allreduce(upstream, op=Average, name=name_of_gradient)
            start = tf.reduce_sum(rows[: session.world.rank])
            return total[start : start + rows[session.world.rank]]

        return result, gradient

    return gathered(value)


def gatherer(session: Session) -> Callable[[tf.Tensor], list[tf.Tensor]]:
    def gather(value: tf.Tensor) -> list[tf.Tensor]:
        if session.world.size == 1:
            return [tf.identity(value), tf.shape(value, tf.int64)[:1]]
        whole, rows = arrays.gathered(session.world.comm, value.numpy())
        return [tf.constant(whole, value.dtype), tf.constant(rows, tf.int64)]

    return gather


@as_written
def broadcast(
    tensor: Any,
    root_rank: int = 0,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = None,
):
    """The tensor of rank `root_rank` on every rank. Its gradient is the mean of the ranks' gradients."""
    refuse_process_set(process_set)
    return grouped_broadcast([tensor], root_rank, name)[0]


@as_written
def grouped_broadcast(tensors: Sequence, root_rank: int, name: str | None = None) -> list[tf.Tensor]:
    """As `broadcast` of each tensor, in one call."""
    session = current()
    check_rank(session, root_rank)
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]

    def kind_of(*own: tf.Tensor) -> tuple:
        return f"from rank {root_rank}", *map(_kind, own)

    @tf.custom_gradient
    def sent(*own):
        function = broadcaster(session, root_rank)
        results, name_of_gradient = on_host("hvd.broadcast", name, kind_of, function, own, _specs(own))

        def gradient(*upstream):
            means = grouped_allreduce(upstream, op=Average, name=name_of_gradient)
            return means if session.world.rank == root_rank else [tf.zeros_like(mean) for mean in means]

        return results, gradient

    return list(sent(*values))


def broadcaster(session: Session, root_rank: int) -> Callable[..., list[tf.Tensor]]:
    def send(*values: tf.Tensor) -> list[tf.Tensor]:
        if session.world.size == 1:
            return [tf.identity(value) for value in values]
        comm = session.world.comm
        return [tf.constant(arrays.broadcast(comm, value.numpy(), root_rank), value.dtype) for value in values]

    return send


def grouped_allgather(tensors: Sequence, name: str | None = None, **options: Any) -> list:
    """As `allgather` of each tensor."""
    return [allgather(tensor, f"{name or 'hvd.allgather'} {n}", **options) for n, tensor in enumerate(tensors)]


@as_written
def barrier(process_set: Any = None) -> None:
    """Waits for all ranks."""
    refuse_process_set(process_set)
    session = current()
    session.meet(Call("hvd.barrier"), session.world.barrier)


@as_written
def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:
    """The object of rank `root_rank` on every rank (pickled)."""
    refuse_process_set(process_set)
    session = current()
    check_rank(session, root_rank)
    call = Call("hvd.broadcast_object", name or "", (f"from rank {root_rank}",))
    return session.meet(call, lambda: session.world.all_gather(obj if rank_is(root_rank) else None)[root_rank])


def rank_is(number: int) -> bool:
    return current().world.rank == number


@as_written
def allgather_object(obj: Any, name: str | None = None, process_set: Any = None) -> list:
    """The objects of all ranks (pickled), in order of rank."""
    refuse_process_set(process_set)
    session = current()
    return session.meet(Call("hvd.allgather_object", name or ""), lambda: session.world.all_gather(obj))


def chosen(op: str | None, average: bool | None) -> str:
    """The operation, from `op` or from Horovod's older `average`."""
    if op is None:
        return Sum if average is False else Average
    if average is not None:
        raise InputError("give op or average, not both: op=hvd.Average, hvd.Sum …")
    if op not in MPI_NAMES:
        raise InputError(f"op must be hvd.Average, Sum, Min, Max or Product, got {op}")
    return op


def check_rank(session: Session, root_rank: int) -> None:
    if not 0 <= root_rank < session.world.size:
        raise InputError(f"root_rank must be from 0 to {session.world.size - 1}, got {root_rank}")


def refuse_process_set(process_set: Any) -> None:
    if process_set is not None:
        raise InputError("process_set is not supported: all ranks always work together")


def _kind(value: tf.Tensor) -> tuple[str, tuple]:
    return value.dtype.name, tuple(value.shape)


def _specs(values: Sequence[tf.Tensor]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(value.shape, value.dtype) for value in values]
