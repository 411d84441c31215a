"""What Horovod has and RingBERT has not."""

from typing import NoReturn

from ringbase.errors import InputError

ALL_TOGETHER = "all ranks always work together"
SESSIONS = "TensorFlow 1's sessions, hooks and Estimators do not exist with Keras 3"
WORKFLOW = "start the script with bert-launch or mpirun"

REASONS = {
    "Adasum": "only op=hvd.Average, Sum, Min, Max and Product",
    "ProcessSet": ALL_TOGETHER,
    "add_process_set": ALL_TOGETHER,
    "remove_process_set": ALL_TOGETHER,
    "global_process_set": f"{ALL_TOGETHER}: leave out process_set",
    "process_set_included_op": ALL_TOGETHER,
    "run": WORKFLOW,
    "spark": WORKFLOW,
    "ray": WORKFLOW,
    "torch": "for PyTorch use torch.distributed",
    "mxnet": "there is no MXNet",
    "BroadcastGlobalVariablesHook": SESSIONS,
    "broadcast_global_variables": f"{SESSIONS}: use hvd.broadcast_variables(model.variables, root_rank=0)",
    "broadcast_object_fn": f"{SESSIONS}: use hvd.broadcast_object",
    "start_timeline": "use TensorFlow's profiler (tf.profiler.experimental, or keras.callbacks.TensorBoard)",
    "stop_timeline": "use TensorFlow's profiler (tf.profiler.experimental, or keras.callbacks.TensorBoard)",
}


def refuse(module: str, name: str) -> NoReturn:
    """Raises InputError for a name that has no counterpart, and AttributeError for one that never existed."""
    if name in REASONS:
        raise InputError(f"hvd.{name} has no counterpart in RingBERT: {REASONS[name]}")
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
