"""Every collective operation by hand, eager and inside tf.function; the moments of
SyncBatchNormalization."""

import numpy as np
import tensorflow as tf
from synthetic import digits, report

import horovod.tensorflow as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
assert hvd.is_initialized() and size == 2 and hvd.local_size() == 2 and hvd.cross_size() == 1
assert rank == hvd.local_rank() and hvd.cross_rank() == 0 and hvd.is_homogeneous()
own = tf.constant([[1.0, 2.0], [3.0, 4.0]]) * (rank + 1)


def sums(own):
    return {
        "average": hvd.allreduce(own),
        "sum": hvd.allreduce(own, op=hvd.Sum),
        "old_sum": hvd.allreduce(own, average=False),
        "min": hvd.allreduce(own, op=hvd.Min),
        "max": hvd.allreduce(own, op=hvd.Max),
        "product": hvd.allreduce(own, op=hvd.Product),
        "scaled": hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        "fp16": hvd.allreduce(own, compression=hvd.Compression.fp16),
        "scalar": hvd.allreduce(tf.constant(rank + 1.0)),
        "grouped_0": hvd.grouped_allreduce([own, own[0] * 2], op=hvd.Sum, name="a_name")[0],
        "gathered": hvd.allgather(own[: rank + 1]),
        "broadcast": hvd.broadcast(own, root_rank=1),
        "scattered": hvd.reducescatter(tf.range(6.0) * (rank + 1), op=hvd.Sum),
        "scattered_mean": hvd.reducescatter(tf.range(5.0) * (rank + 1)),
        "grouped_scattered": hvd.grouped_reducescatter([tf.range(4.0) + rank, own], op=hvd.Sum)[1],
        "grouped_gathered": hvd.grouped_allgather([own, own[:1]])[1],
        "exchanged": hvd.alltoall(tf.range(4.0) + 10.0 * rank),
        "uneven": hvd.alltoall(tf.range(4.0) + 10.0 * rank, splits=[3, 1])[0],
        "uneven_splits": hvd.alltoall(tf.range(4.0) + 10.0 * rank, splits=[3, 1])[1],
    }


eager = {name: value.numpy().tolist() for name, value in sums(own).items()}
compiled = {name: value.numpy().tolist() for name, value in tf.function(sums)(own).items()}
assert compiled == eager, (compiled, eager)

types = {}
for dtype in (tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64):
    total = hvd.allreduce(tf.cast([1, 2, 3], dtype), op=hvd.Sum)
    assert total.dtype == dtype
    types[dtype.name] = total.numpy().tolist()
    assert hvd.broadcast(tf.cast([rank], dtype), 1).numpy() == 1
    assert hvd.allgather(tf.cast([rank], dtype)).numpy().tolist() == [0, 1]
assert hvd.broadcast(tf.constant([rank == 0]), 0).numpy().all()
sliced = hvd.allreduce(
    tf.IndexedSlices(own, tf.constant([rank, 2], tf.int64), tf.constant([4, 2], tf.int64))
)
dense = tf.convert_to_tensor(sliced).numpy().tolist()

variable = tf.Variable([1.0 * rank])
hvd.broadcast_variables([variable], root_rank=1)
assert variable.numpy() == [1.0]
assert (
    hvd.broadcast_object({"epoch": 3 + rank, "name": "from %d" % rank}, root_rank=1)["name"]
    == "from 1"
)
numbers = tf.function(
    lambda: (hvd.size_op(), hvd.rank_op(), hvd.local_rank_op(), hvd.local_size_op())
)()
assert [int(number) for number in numbers] == [size, rank, rank, size]
assert hvd.mpi_enabled() and hvd.mpi_built() and hvd.mpi_threads_supported() in (True, False)
for built in (
    hvd.nccl_built,
    hvd.ddl_built,
    hvd.ccl_built,
    hvd.cuda_built,
    hvd.rocm_built,
    hvd.gloo_enabled,
):
    assert not built(), built

whole = digits(32)[0] * np.float32(3) + np.float32(1)
layer = hvd.SyncBatchNormalization(momentum=0.5, axis=-1)
normal = tf.function(lambda: layer(tf.constant(whole[rank::size]), training=True))()
expected = (whole[rank::size] - whole.mean()) / np.sqrt(whole.var() + 1e-3)
np.testing.assert_allclose(normal, expected, rtol=1e-3, atol=1e-4)
numbers = {"types": types, "dense": dense, "moving_mean": layer.moving_mean.numpy().tolist()}
report(rank, "by_hand", eager=eager, others=hvd.allgather_object(eager), **numbers)
