"""Horovod's names for Keras 3 and TensorFlow: a script needs one changed line, and none under
`bert-launch --horovod`.

    import ringbert.horovod as hvd        # was: import horovod.tensorflow.keras as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size()))
    model.compile(optimizer, loss)
    model.fit(dataset.shard(hvd.size(), hvd.rank()),
      callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Start it with `bert-launch -np 4 -- python script.py`. The same names stand in
`ringbert.horovod.tensorflow`, `ringbert.horovod.keras` and `ringbert.horovod.tensorflow.keras`.
What has no counterpart says so in one line, where it is used.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from tensorflow import constant
from tensorflow.test import is_built_with_cuda as cuda_built

from distributed.joining import communicator, started
from ringbert.horovod import callbacks, common, elastic, names, process_sets
import ringbert.horovod.common.exceptions
from ringbert.horovod.operations import (
    Adasum,
    Average,
    Compression,
    Compressor,
    FP16Compressor,
    Max,
    Min,
    NoneCompressor,
    Product,
    Sum,
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from ringbert.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    process_set_included_op,
    remove_process_set,
    size_op,
)
from ringbert.horovod.session import current, is_initialized, shutdown
from ringbert.horovod.starting import init
from ringbert.horovod.training import (
    DistributedGradientTape,
    DistributedOptimizer,
    SyncBatchNormalization,
    load_model,
)

PartialDistributedGradientTape = DistributedGradientTape  # with `local_layers`
PartialDistributedOptimizer = DistributedOptimizer
__version__ = names.VERSION
keras = tensorflow = sys.modules[__name__]
globals().update(names.absent())
names.add_modules(__name__)


def _number(attribute: str, what: str) -> tuple[Callable[[], int], Callable[..., Any]]:
    """A function that returns this number of `Ranks`, and one that returns it as a tensor."""

    def number():
        return getattr(current().world.ranks, attribute)

    number.__doc__ = what
    return number, lambda *process_set_and_name, **options: constant(number())


rank, rank_op = _number("rank", "The number of this rank, from 0.")
size, _ = _number("size", "How many ranks there are.")
local_rank, local_rank_op = _number(
    "local_rank", "The number of this rank among those of its machine."
)
local_size, local_size_op = _number("local_size", "How many ranks this machine has.")
cross_rank, _ = _number("node", "The number of this machine.")
cross_size, _ = _number("num_nodes", "How many machines there are.")


def is_homogeneous() -> bool:
    """Whether all machines have equally many ranks."""
    return len(set(current().world.all_gather(local_size()))) == 1


def mpi_threads_supported() -> bool:
    """Whether the MPI library lets several threads send at the same time."""
    return communicator()[0] is not None and started().Query_thread() == started().THREAD_MULTIPLE


mpi_built = mpi_enabled = lambda: True
gloo_built = gloo_enabled = ddl_built = ccl_built = rocm_built = sycl_built = lambda: False
nccl_built = cuda_built  # TensorFlow for GPUs has NCCL
