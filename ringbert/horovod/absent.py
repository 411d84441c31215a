"""What Horovod has and RingBERT has not, and Horovod's questions about how it was built."""

from typing import NoReturn

import tensorflow as tf

from distributed.joining import communicator, started
from ringbase.errors import InputError

ALL_TOGETHER = "all ranks always work together: leave out process_set"
SESSIONS = "TensorFlow 1's sessions, hooks and Estimators do not exist with Keras 3"
WORKFLOW = "start the script with bert-launch or mpirun"
PROFILER = "use TensorFlow's profiler (tf.profiler.experimental, or keras.callbacks.TensorBoard)"
PROCESS_SETS = (
    "ProcessSet", "add_process_set", "remove_process_set", "global_process_set", "process_set_included_op"
)  # fmt: skip
REASONS = dict.fromkeys(PROCESS_SETS, ALL_TOGETHER) | {
    "Adasum": "only op=hvd.Average, Sum, Min, Max and Product",
    "run": WORKFLOW,
    "runner": WORKFLOW,
    "spark": WORKFLOW,
    "ray": WORKFLOW,
    "data": "use tf.data.experimental.service itself, or give each rank its shard of the data",
    "common": "errors of use are ValueErrors, and a rank that dies ends the job: there is no HorovodInternalError",
    "torch": "for PyTorch use torch.distributed",
    "mxnet": "there is no MXNet",
    "BroadcastGlobalVariablesHook": SESSIONS,
    "broadcast_global_variables": f"{SESSIONS}: use hvd.broadcast_variables(model.variables, root_rank=0)",
    "broadcast_object_fn": f"{SESSIONS}: use hvd.broadcast_object",
    "start_timeline": PROFILER,
    "stop_timeline": PROFILER,
    "examples": "all ranks count the same: give them equal batches, or weigh these by sample_weight",
}


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


mpi_enabled = mpi_built
gloo_enabled = ddl_built = ccl_built = rocm_built = sycl_built = gloo_built
cuda_built = tf.test.is_built_with_cuda


def mpi_threads_supported() -> bool:
    """Whether the MPI library lets several threads send at the same time."""
    return communicator()[0] is not None and started().Query_thread() == started().THREAD_MULTIPLE


def nccl_built() -> int:
    """Whether TensorFlow has NCCL; Horovod gives its version."""
    return int(cuda_built())
