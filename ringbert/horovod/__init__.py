"""Horovod's names for Keras 3 and TensorFlow: a script needs one changed line.

    import ringbert.horovod as hvd        # was: import horovod.tensorflow.keras as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size()))
    model.compile(optimizer, loss)
    model.fit(dataset.shard(hvd.size(), hvd.rank()), callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Start it with `bert-launch -np 4 -- python script.py`. The same names stand in `ringbert.horovod.tensorflow`,
`ringbert.horovod.keras` and `ringbert.horovod.tensorflow.keras`. What has no counterpart says so in one line.
Importing this package loads TensorFlow and Keras.
"""

import importlib
import os
from types import ModuleType

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from ringbert.horovod import callbacks, elastic, keras_hooks, keras_names
from ringbert.horovod.absent import refuse
from ringbert.horovod.batch_norm import SyncBatchNormalization
from ringbert.horovod.builds import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    sycl_built,
)
from ringbert.horovod.compression import Compression
from ringbert.horovod.gradients import examples
from ringbert.horovod.joining import join
from ringbert.horovod.operations import (
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_object,
    allreduce,
    barrier,
    broadcast,
    broadcast_object,
    grouped_allgather,
    grouped_allreduce,
)
from ringbert.horovod.optimizer import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
    broadcast_model,
    broadcast_variables,
    load_model,
)
from ringbert.horovod.parts import alltoall, grouped_reducescatter, reducescatter
from ringbert.horovod.session import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    rank,
    rank_op,
    shutdown,
    size,
    size_op,
)
from ringbert.horovod.tape import DistributedGradientTape, PartialDistributedGradientTape

keras_hooks.install()
keras_names.install()

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_model",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "examples",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rank_op",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "sycl_built",
]


def __getattr__(name: str) -> ModuleType:
    if name in ("keras", "tensorflow"):
        return importlib.import_module(f"{__name__}.{name}")
    return refuse(__name__, name)
