"""Calls that run in Python on the host, now or as an operation of a graph."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import control_flow_util  # there is no public name for what it tells

from ringbase.errors import InputError
from ringbert.horovod.session import Call, Session, current

Function = Callable[..., Sequence[tf.Tensor]]
_latest: weakref.WeakKeyDictionary[tf.Graph, str] = weakref.WeakKeyDictionary()  # each graph's latest operation


class GradientOf(NamedTuple):
    """The name of a call that computes the gradient of the call `name`, which had this `number` when it ran."""

    name: str
    number: Any


def on_host(
    what: str,
    name: str | GradientOf | None,
    kind_of: Callable[..., tuple],
    function: Function,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.TensorSpec],
    before: Callable[[], None] = lambda: None,
) -> tuple[list[tf.Tensor], GradientOf]:
    """The results of `function(*inputs)` on all ranks, and the name for the call that computes their gradient.

    The ranks meet for `Call(what, name, kind_of(*inputs))` first; before that `before` is called, each time.

    In a `tf.function` it becomes one operation on the CPU. Each graph runs all of these in the order in which they
    were traced, so that all ranks do the same: TensorFlow sees to that in the functions that it traces, but not in
    a backward function that it builds for a tape outside.
    """
    session = current()
    label, number = name if isinstance(name, GradientOf) else (name or "", 0)

    def run(number: Any, *values: tf.Tensor) -> list:
        before()
        call = Call(what, f"gradient of {label}, call {int(number)}" if number else label, kind_of(*values))
        return session.meet(call, lambda: [*function(*values), session.num_calls])

    if tf.executing_eagerly() or session.world.size == 1:
        *results, number = run(number, *inputs)
        return results, GradientOf(label or what, number)
    refuse_xla(session, what)

    def run_in_graph(*values: tf.Tensor) -> list:
        try:
            return run(*values)
        except InputError as error:
            session.world.fail(error)  # TensorFlow would wrap it into its own error of many lines
            raise

    graph = tf.compat.v1.get_default_graph()
    latest = [graph.get_operation_by_name(_latest[graph])] if graph in _latest else []
    with tf.device("/CPU:0"), tf.control_dependencies(latest):
        types = [*(spec.dtype for spec in outputs), tf.int64]
        *results, number = tf.py_function(run_in_graph, [tf.cast(number, tf.int64), *inputs], types)
    _latest[graph] = number.op.name
    if isinstance(graph, tf.__internal__.FuncGraph) and graph.experimental_acd_manager is None:
        graph.control_outputs.append(number.op)
    for result, spec in zip(results, outputs, strict=True):
        result.set_shape(spec.shape)
    return results, GradientOf(label or what, number)


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
