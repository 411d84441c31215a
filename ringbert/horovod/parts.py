"""Tensors of which each rank gets a part, as in Horovod: `reducescatter` and `alltoall`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from distributed import arrays
from ringbase.errors import InputError
from ringbert.horovod.compression import Compression
from ringbert.horovod.host import on_host
from ringbert.horovod.operations import Average, Sum, allreduce, as_written, refuse_process_set
from ringbert.horovod.session import current


@as_written
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: str = Average,
    name: str | None = None,
    process_set: Any = None,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
):
    """This rank's part of the average (or `Sum`) over ranks, cut along the first dimension.

    The first ranks get one row more if the rows do not divide evenly. The gradient of a `Sum` is multiplied by the
    number of ranks, as in Horovod.
    """
    if op not in (Average, Sum):
        raise InputError(f"hvd.reducescatter: op must be hvd.Average or hvd.Sum, got {op}")
    value = tf.convert_to_tensor(tensor)
    if value.shape.rank == 0:
        raise InputError("hvd.reducescatter: a tensor with at least one dimension is needed, got a scalar")
    total = allreduce(
        _with_gradient_times(value, current().world.size),
        compression=compression,
        op=op,
        name=name or "hvd.reducescatter",
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    )
    world = current().world
    rows = tf.shape(total)[0]
    share, more = rows // world.size, rows % world.size
    start = world.rank * share + tf.minimum(world.rank, more)
    return total[start : start + share + tf.cast(world.rank < more, rows.dtype)]


def grouped_reducescatter(tensors: Sequence, **options: Any) -> list:
    """As `reducescatter` of each tensor."""
    return [reducescatter(tensor, **options) for tensor in tensors]


@as_written
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = None,
):
    """Sends `splits[r]` rows to each rank r, and returns those that this rank receives, in order of rank.

    Without `splits` every rank gets equally many, and only the rows are returned; else also how many rows each
    rank sent.
    """
    refuse_process_set(process_set)
    session = current()
    value, num_ranks = tf.convert_to_tensor(tensor), session.world.size
    if splits is None:
        rows = tf.shape(value)[0]
        tf.debugging.assert_equal(rows % num_ranks, 0, "hvd.alltoall: the rows do not divide evenly: give splits")
        given = tf.fill([num_ranks], rows // num_ranks)
    else:
        given = tf.convert_to_tensor(splits, tf.int32)

    def kind_of(value: tf.Tensor, rows_to: tf.Tensor) -> tuple:
        return value.dtype.name, tuple(value.shape[1:])

    def exchange(value: tf.Tensor, rows_to: tf.Tensor) -> list[tf.Tensor]:
        if num_ranks == 1:
            return [tf.identity(value), tf.identity(rows_to)]
        rows, rows_from = arrays.exchanged(session.world.comm, value.numpy(), rows_to.numpy().tolist())
        return [tf.constant(rows, value.dtype), tf.constant(rows_from, tf.int32)]

    outputs = [tf.TensorSpec([None, *value.shape[1:]], value.dtype), tf.TensorSpec([num_ranks], tf.int32)]

    @tf.custom_gradient
    def exchanged(own):
        (received, rows_from), name_of_gradient = on_host(
            "hvd.alltoall", name, kind_of, exchange, [own, given], outputs
        )

        def gradient(upstream, _):
            return alltoall(upstream, rows_from, name_of_gradient)[0]

        return (received, rows_from), gradient

    received, rows_from = exchanged(value)
    return received if splits is None else (received, rows_from)


def _with_gradient_times(value: tf.Tensor, factor: float) -> tf.Tensor:
    """The same tensor, whose gradient is multiplied."""

    @tf.custom_gradient
    def unchanged(value):
        return tf.identity(value), lambda upstream: upstream * tf.cast(factor, upstream.dtype)

    return unchanged(value)
