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

import os
import sys
from typing import NoReturn

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

# fmt: off
from tensorflow.test import is_built_with_cuda as cuda_built

from distributed.joining import communicator, started
from ringbert.horovod import callbacks, elastic
from ringbert.horovod.gradients import DistributedGradientTape, PartialDistributedGradientTape
from ringbert.horovod.operations import (
    Average, Compression, Max, Min, Product, Sum, allgather, allreduce, alltoall, broadcast, broadcast_,
    grouped_allgather, grouped_allreduce, grouped_reducescatter, join, reducescatter,
)
from ringbert.horovod.optimizer import (
    DistributedOptimizer, PartialDistributedOptimizer, SyncBatchNormalization, load_model,
)
from ringbert.horovod.session import (
    Unsupported, allgather_object, barrier, broadcast_object, cross_rank, cross_size, init, is_homogeneous,
    is_initialized, local_rank, local_rank_op, local_size, local_size_op, rank, rank_op, shutdown, size, size_op,
)
# fmt: on

broadcast_variables = broadcast_
keras = tensorflow = sys.modules[__name__]
for _name in ("tensorflow", "keras", "tensorflow.keras"):  # Horovod's names for the same
    sys.modules[f"{__name__}.{_name}"] = keras
    sys.modules |= {f"{__name__}.{_name}.{module}": getattr(keras, module) for module in ("callbacks", "elastic")}


def mpi_built() -> bool:
    return True


def gloo_built() -> bool:
    return False


def mpi_threads_supported() -> bool:
    """Whether the MPI library lets several threads send at the same time."""
    return communicator()[0] is not None and started().Query_thread() == started().THREAD_MULTIPLE


mpi_enabled = mpi_built
gloo_enabled = ddl_built = ccl_built = rocm_built = sycl_built = gloo_built
nccl_built = cuda_built  # TensorFlow for GPUs has NCCL

# What Horovod has and RingBERT has not, and what to do instead.
ABSENT = {
    "ProcessSet add_process_set remove_process_set global_process_set process_set_included_op": (
        "all ranks always work together: leave out process_set"
    ),
    "BroadcastGlobalVariablesHook broadcast_global_variables broadcast_object_fn": (
        "TensorFlow 1's sessions, hooks and Estimators do not exist with Keras 3: use "
        "hvd.broadcast_variables(model.variables, root_rank=0), or hvd.broadcast_object"
    ),
    "Adasum": "only op=hvd.Average, Sum, Min, Max and Product",
    "run runner spark ray": "start the script with bert-launch or mpirun",
    "data": "use tf.data.experimental.service itself, or give each rank its shard of the data",
    "common": "errors of use are ValueErrors, and a rank that dies ends the job: there is no HorovodInternalError",
    "torch mxnet": "it is for Keras and TensorFlow; PyTorch has torch.distributed",
    "start_timeline stop_timeline": "use TensorFlow's profiler, or keras.callbacks.TensorBoard",
    "examples": "all ranks count the same: give them equal batches, or weigh these by sample_weight",
}


def __getattr__(name: str) -> NoReturn:
    for names, reason in ABSENT.items():
        if name in names.split():
            raise Unsupported(f"hvd.{name} has no counterpart in RingBERT: {reason}")
    raise AttributeError(f"module 'ringbert.horovod' has no attribute {name!r}")
