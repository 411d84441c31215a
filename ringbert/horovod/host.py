"""Calls that run in Python on the host, now or as an operation of a graph."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util  # there is no public name for what it tells

from ringbase.errors import InputError
from ringbert.horovod.session import Call, Facts, current

_made: weakref.WeakKeyDictionary[tf.Graph, list[str]] = weakref.WeakKeyDictionary()  # the operations of each graph


def collective(
    call: Call,
    function: Callable[..., Sequence],
    gradient: Callable[..., Any],
    tensors: Sequence[tf.Tensor],
    resizes: bool = False,
    facts: Callable[..., Facts] = lambda *values: (),
) -> list[tf.Tensor]:
    """The results of `function(*tensors)` on all ranks, cast to the tensors' dtypes.

    One rank alone keeps its tensors. The ranks meet for `call` first: its kind are the options, to which dtype
    and shape of the tensors are added. `gradient(name, results, *upstream)` are the gradients of the tensors;
    `name` is for its own calls. With `resizes` the first dimensions may differ among the ranks, and those of
    results from the tensors'. `facts(*tensors)` are the call's facts.
    """
    session, is_eager = current(), tf.executing_eagerly()

    def meet(*values: tf.Tensor) -> list[tf.Tensor]:
        kinds = ((value.dtype.name, tuple(value.shape[int(resizes) :])) for value in values)
        try:
            complete = Call(call.what, call.name, (*call.kind, *kinds))
            results = session.meet(complete, lambda _: function(*values), facts(*values))
            return [tf.cast(own, value.dtype) for own, value in zip(results, values, strict=True)]
        except InputError as error:
            if not is_eager:  # TensorFlow would wrap it into its own error of many lines
                session.world.fail(error)
            raise

    @tf.custom_gradient
    def run(*own):
        number = 0
        if session.world.size == 1:
            results = [tf.identity(value) for value in own]
        elif is_eager:
            results, number = meet(*own), session.num_calls
        else:
            results, number = _in_graph(meet, own, call.what)
            for result, value in zip(results, own, strict=True):
                result.set_shape([None, *value.shape[1:]] if resizes else value.shape)

        def backward(*upstream, variables=None):
            # In another order the ranks' names differ.
            name = f"gradient of {call.name or call.what}, call {number}"
            own_gradients = gradient(name, results, *upstream)
            return own_gradients if variables is None else (own_gradients, [None] * len(variables))  # of `facts`

        return results, backward

    return list(run(*tensors)) if tensors else []


def _in_graph(function: Callable, tensors: Sequence[tf.Tensor], what: str) -> tuple[list[tf.Tensor], int]:
    """The results of `function(*tensors)`, as one operation of a graph on the CPU, and its number in the graph.

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
    made = _made.setdefault(graph, [])
    latest = [graph.get_operation_by_name(name) for name in made[-1:]]
    with tf.device("/CPU:0"), tf.control_dependencies(latest):
        results = tf.py_function(function, tensors, [value.dtype for value in tensors])
    made.append(results[0].op.name)
    if isinstance(graph, tf.__internal__.FuncGraph) and graph.experimental_acd_manager is None:
        graph.control_outputs.append(results[0].op)
    return results, len(made)
