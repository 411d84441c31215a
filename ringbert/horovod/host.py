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


def collective(
    call: Call,
    function: Function,
    gradient: Callable[..., Any],
    tensors: Sequence[tf.Tensor],
    outputs: Sequence[tf.TensorSpec] = (),
    before: Callable[..., None] = lambda *_: None,
) -> list[tf.Tensor]:
    """The results of `function(*tensors)` on all ranks, which meet for `call` first.

    Args:
      call: its kind are the options; dtype and shape of the tensors are added. Where `outputs` have other shapes
        than the tensors, the ranks' first dimensions may differ.
      gradient: `gradient(name, results, *upstream)` are the gradients of the tensors; `name` is for its own calls.
      before: is called with the tensors before each meeting.
    """

    @tf.custom_gradient
    def run(*own):
        specs = outputs or [tf.TensorSpec(value.shape, value.dtype) for value in own]
        results, name = _on_host(call, 1 if outputs else 0, function, own, specs, before)
        return results, lambda *upstream: gradient(name, results, *upstream)

    if tf.executing_eagerly() and current().world.size > 1:
        before(*tensors)  # not in `run`, whose gradient would need the variables that it reads
    return list(run(*tensors))


def _on_host(
    call: Call, first_dimension: int, function: Function, inputs: Sequence, outputs: Sequence, before: Callable
) -> tuple[list[tf.Tensor], GradientOf]:
    """In a `tf.function` it becomes one operation on the CPU.

    Each graph runs all of these in the order in which they were traced, so that all ranks do the same: TensorFlow
    sees to that in the functions that it traces, but not in a backward function that it builds for a tape outside.
    """
    session = current()
    name, number = call.name if isinstance(call.name, GradientOf) else (call.name, 0)
    own_name = name or call.what
    if session.world.size == 1:
        return list(function(*inputs)), GradientOf(own_name, 0)

    def run(number: Any, *values: tf.Tensor) -> list:
        label = f"gradient of {name}, call {int(number)}" if number else name
        kinds = ((value.dtype.name, tuple(value.shape[first_dimension:])) for value in values)
        own_call = Call(call.what, label, (*call.kind, *kinds))
        return session.meet(own_call, lambda: [*function(*values), session.num_calls])

    if tf.executing_eagerly():
        *results, number = run(number, *inputs)
        return results, GradientOf(own_name, number)
    _refuse_xla(session, call.what)

    def run_in_graph(number: Any, *values: tf.Tensor) -> list:
        try:
            before(*values)
            return run(number, *values)
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
    return results, GradientOf(own_name, number)


def _refuse_xla(session: Session, what: str) -> None:
    """Ends the job with one line where XLA is to compile a call that runs on the host.

    TensorFlow would make many lines of an error that is raised while it builds a graph.
    """
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        error = InputError(
            f"{what}: jit_compile=True needs NCCL, because MPI sums on the host: leave out jit_compile, and "
            "call hvd.DistributedOptimizer before model.compile"
        )
        session.world.fail(error)
