"""Calls that run in Python on the host, now or as an operation of a graph."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import control_flow_util  # there is no public name for what it tells

from ringbase.errors import InputError
from ringbert.horovod.session import Call, current

_latest: weakref.WeakKeyDictionary[tf.Graph, str] = weakref.WeakKeyDictionary()  # each graph's latest operation


class GradientOf(NamedTuple):
    """The name of a call that computes the gradient of the call `name`, which had this `number` when it ran."""

    name: str
    number: Any


def collective(
    call: Call,
    function: Callable[..., Sequence[tf.Tensor]],
    gradient: Callable[..., Any],
    tensors: Sequence[tf.Tensor],
    outputs: Sequence[tf.TensorSpec] = (),
    facts: Callable[..., Any] | None = None,
) -> list[tf.Tensor]:
    """The results of `function(*tensors)` on all ranks, which meet for `call` first.

    Args:
      call: its kind are the options; dtype and shape of the tensors are added. Where `outputs` have other shapes
        than the tensors, the ranks' first dimensions may differ.
      gradient: `gradient(name, results, *upstream)` are the gradients of the tensors; `name` is for its own calls.
      facts: `facts(*tensors)` are the call's facts.
    """
    session, is_eager = current(), tf.executing_eagerly()
    of, of_number = call.name if isinstance(call.name, GradientOf) else (call.name, 0)

    def meet(of_number: Any, *values: tf.Tensor) -> list:
        """The results, and the number of the meeting."""
        if session.world.size == 1:
            return [*function(*values), 0]
        name = f"gradient of {of}, call {int(of_number)}" if of_number else of
        kinds = ((value.dtype.name, tuple(value.shape[len(outputs) > 0 :])) for value in values)
        try:
            own = Call(call.what, name, (*call.kind, *kinds), facts(*values) if facts else ())
            return session.meet(own, lambda: [*function(*values), session.num_calls])
        except InputError as error:
            if not is_eager:  # TensorFlow would wrap it into its own error of many lines
                session.world.fail(error)
            raise

    @tf.custom_gradient
    def run(*own):
        if is_eager or session.world.size == 1:
            *results, number = meet(of_number, *own)
        else:
            specs = outputs or [tf.TensorSpec(value.shape, value.dtype) for value in own]
            *results, number = _in_graph(meet, [tf.cast(of_number, tf.int64), *own], specs, call.what)

        def backward(*upstream, variables=None):
            own_gradients = gradient(GradientOf(of or call.what, number), results, *upstream)
            return own_gradients if variables is None else (own_gradients, [None] * len(variables))  # of `facts`

        return results, backward

    return list(run(*tensors))


def _in_graph(function: Callable[..., list], inputs: Sequence, outputs: Sequence, what: str) -> list[tf.Tensor]:
    """The results of `function(*inputs)`, `outputs` and a number, as one operation of a graph on the CPU.

    Each graph runs all of these in the order in which they were traced, so that all ranks do the same: TensorFlow
    sees to that in the functions that it traces, but not in a backward function that it builds for a tape outside.
    """
    graph = tf.compat.v1.get_default_graph()
    if control_flow_util.GraphOrParentsInXlaContext(graph):  # of an exception TensorFlow would make many lines
        reason = (
            f"{what}: jit_compile=True needs NCCL, because MPI sums on the host: leave out jit_compile, and call "
            "hvd.DistributedOptimizer before model.compile"
        )
        current().world.fail(InputError(reason))
    latest = [graph.get_operation_by_name(_latest[graph])] if graph in _latest else []
    with tf.device("/CPU:0"), tf.control_dependencies(latest):
        *results, number = tf.py_function(function, inputs, [*(spec.dtype for spec in outputs), tf.int64])
    _latest[graph] = number.op.name
    if isinstance(graph, tf.__internal__.FuncGraph) and graph.experimental_acd_manager is None:
        graph.control_outputs.append(number.op)
    for result, spec in zip(results, outputs, strict=True):
        result.set_shape(spec.shape)
    return [*results, number]
