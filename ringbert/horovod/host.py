"""Calls that run in Python on the host, now or as an operation of a graph."""

from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.python.ops import control_flow_util  # there is no public name for what it tells

from ringbert.errors import InputError
from ringbert.horovod.session import Call, Session

Function = Callable[..., Sequence[tf.Tensor]]


def on_host(
    session: Session,
    what: str,
    describe: Callable[..., Call],
    function: Function,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.TensorSpec],
    before: Callable[[], None] = lambda: None,
) -> list[tf.Tensor]:
    """The results of `function(*inputs)` on all ranks, which meet for the call `describe(*inputs)` first.

    `before` is called before that, each time.

    In a `tf.function` it becomes one operation on the CPU. TensorFlow runs these in the order in which they were
    traced, so that all ranks have the same order.
    """
    if tf.executing_eagerly() or session.world.size == 1:
        before()
        return list(session.meet(describe(*inputs), lambda: function(*inputs)))
    refuse_xla(session, what)

    def run(*values: tf.Tensor) -> list[tf.Tensor]:
        try:
            before()
            return list(session.meet(describe(*values), lambda: function(*values)))
        except InputError as error:
            session.world.fail(error)  # TensorFlow would wrap it into its own error of many lines
            raise

    with tf.device("/CPU:0"):
        results = tf.py_function(run, list(inputs), [spec.dtype for spec in outputs])
    for result, spec in zip(results, outputs, strict=True):
        result.set_shape(spec.shape)
    return results


def refuse_xla(session: Session, what: str) -> None:
    """Ends the job with one line where XLA is to compile a call that runs on the host.

    TensorFlow would make many lines of an error that is raised while it builds a graph.
    """
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        error = InputError(
            f"{what}: jit_compile=True needs NCCL, because MPI sums on the host: leave out jit_compile, and "
            "call hvd.DistributedOptimizer before model.compile"
        )
        session.world.fail(error)
