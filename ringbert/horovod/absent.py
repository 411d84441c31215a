"""What Horovod has and RingBERT has not, and Horovod's questions about how it was built."""

from typing import NoReturn

import tensorflow as tf

from distributed.joining import library
from ringbase.errors import InputError

ALL_TOGETHER = "all ranks always work together: leave out process_set"
SESSIONS = (
    "TensorFlow 1's sessions, hooks and Estimators do not exist with Keras 3: use "
    "hvd.broadcast_variables(model.variables, root_rank=0), or hvd.broadcast_object"
)
PROCESS_SETS = "ProcessSet add_process_set remove_process_set global_process_set process_set_included_op"
NAMES = {
    ALL_TOGETHER: PROCESS_SETS,
    SESSIONS: "BroadcastGlobalVariablesHook broadcast_global_variables broadcast_object_fn",
    "only op=hvd.Average, Sum, Min, Max and Product": "Adasum",
    "start the script with bert-launch or mpirun": "run runner spark ray",
    "use tf.data.experimental.service itself, or give each rank its shard of the data": "data",
    "errors of use are ValueErrors, and a rank that dies ends the job: there is no HorovodInternalError": "common",
    "it is for Keras and TensorFlow; PyTorch has torch.distributed": "torch mxnet",
    "use TensorFlow's profiler (tf.profiler.experimental, or keras.callbacks.TensorBoard)": (
        "start_timeline stop_timeline"
    ),
    "all ranks count the same: give them equal batches, or weigh these by sample_weight": "examples",
}
REASONS = {name: reason for reason, names in NAMES.items() for name in names.split()}


class Unsupported(InputError, NotImplementedError):
    """A use that has no counterpart. Horovod raises NotImplementedError, which is a RuntimeError."""


def refuse(name: str) -> NoReturn:
    """Raises Unsupported for a name that has no counterpart, and AttributeError for one that never existed."""
    if name in REASONS:
        raise Unsupported(f"hvd.{name} has no counterpart in RingBERT: {REASONS[name]}")
    raise AttributeError(f"module 'ringbert.horovod' has no attribute {name!r}")


def refuse_process_set(process_set: object) -> None:
    if process_set is not None:
        raise Unsupported(f"process_set is not supported: {ALL_TOGETHER}")


def mpi_built() -> bool:
    return True


def gloo_built() -> bool:
    return False


def mpi_threads_supported() -> bool:
    """Whether the MPI library lets several threads send at the same time."""
    return getattr(library(), "is_threaded", False)


mpi_enabled = mpi_built
gloo_enabled = ddl_built = ccl_built = rocm_built = sycl_built = gloo_built
cuda_built = nccl_built = tf.test.is_built_with_cuda  # TensorFlow for GPUs has NCCL
