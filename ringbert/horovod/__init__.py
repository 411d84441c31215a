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

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

# fmt: off
from ringbert.horovod import callbacks, elastic
from ringbert.horovod.absent import (
    ccl_built, cuda_built, ddl_built, gloo_built, gloo_enabled, mpi_built, mpi_enabled, mpi_threads_supported,
    nccl_built, refuse as __getattr__, rocm_built, sycl_built,
)
from ringbert.horovod.gradients import DistributedGradientTape, PartialDistributedGradientTape
from ringbert.horovod.host import Average, Compression, Max, Min, Product, Sum
from ringbert.horovod.operations import (
    allgather, allgather_object, allreduce, alltoall, barrier, broadcast, broadcast_, broadcast_model,
    broadcast_object, broadcast_variables, grouped_allgather, grouped_allreduce, grouped_reducescatter, join, reducescatter,
)
from ringbert.horovod.optimizer import (
    DistributedOptimizer, PartialDistributedOptimizer, SyncBatchNormalization, load_model,
)
from ringbert.horovod.session import (
    cross_rank, cross_size, init, is_homogeneous, is_initialized, local_rank, local_rank_op, local_size,
    local_size_op, rank, rank_op, shutdown, size, size_op,
)
# fmt: on

keras = tensorflow = sys.modules[__name__]
for _name in ("tensorflow", "keras", "tensorflow.keras"):  # Horovod's names for the same
    sys.modules[f"{__name__}.{_name}"] = keras
    sys.modules |= {f"{__name__}.{_name}.{module}": getattr(keras, module) for module in ("callbacks", "elastic")}
