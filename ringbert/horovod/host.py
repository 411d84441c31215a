"""Calls that run in Python on the host, now or as an operation of a graph, and the sums that they compute."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util  # there is no public name for what it tells

from distributed import arrays
from ringbase.errors import InputError
from ringbert.horovod.session import Call, Facts, Session, current

Average, Sum, Min, Max, Product = "average", "sum", "min", "max", "product"
MPI_NAMES = {Average: "SUM", Sum: "SUM", Min: "MIN", Max: "MAX", Product: "PROD"}
WIDE = {tf.float16: tf.float32, tf.bfloat16: tf.float32, tf.bool: tf.int32}  # MPI knows none of these

_made: weakref.WeakKeyDictionary[tf.Graph, list[str]] = weakref.WeakKeyDictionary()  # the operations of each graph


def collective(
    call: Call,
    function: Callable[..., Sequence],
    gradient: Callable[..., Any],
    tensors: Sequence[tf.Tensor],
    resizes: bool = False,
    facts: Callable[..., Facts] = lambda *values: (),
) -> list[tf.Tensor]:
    """The results of `function(*tensors)` on all ranks, of the tensors' dtypes; the ranks meet for `call` first.

    One rank alone keeps its tensors.

    Args:
      call: its kind are the options; dtype and shape of the tensors are added.
      gradient: `gradient(name, results, *upstream)` are the gradients of the tensors; `name` is for its own calls.
      resizes: the first dimensions may differ among the ranks, and those of results from the tensors'.
      facts: `facts(*tensors)` are the call's facts.
    """
    session, is_eager = current(), tf.executing_eagerly()

    def meet(*values: tf.Tensor) -> list[tf.Tensor]:
        kinds = ((value.dtype.name, tuple(value.shape[int(resizes) :])) for value in values)
        try:
            complete = Call(call.what, call.name, (*call.kind, *kinds))
            results = session.meet(complete, lambda _: function(*values), facts(*values))
            return [tf.convert_to_tensor(own, value.dtype) for own, value in zip(results, values, strict=True)]
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


@dataclass(frozen=True)
class Compressor:
    """Makes tensors of numbers smaller. Others with these methods may be given too."""

    half: tf.DType | None = None

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The tensor to send, and what `decompress` needs."""
        is_smaller = self.half is not None and tensor.dtype.is_floating
        return (tf.cast(tensor, self.half), tensor.dtype) if is_smaller else (tensor, None)

    def decompress(self, tensor: tf.Tensor, context: Any) -> tf.Tensor:
        return tensor if context is None else tf.cast(tensor, context)


class Compression:
    """Compressors for the argument `compression`.

    `fp16` and `bf16` both send float32 values as bfloat16 between machines, which has the range of float32, and
    add in float32. Within a machine nothing is sent, and so nothing is rounded.
    """

    none, fp16, bf16 = Compressor(), Compressor(tf.float16), Compressor(tf.bfloat16)


def reduced(op: str, is_half: bool, *tensors: tf.Tensor) -> list[tf.Tensor]:
    """Each tensor, of a dtype that MPI knows, reduced over ranks; float ones in one sum.

    Averages are over the ranks that have not joined, those of integers without their fraction. With `is_half`,
    float32 values may be sent in 16 bits between machines.
    """
    session, results = current(), list(tensors)
    divisor = session.num_active if op == Average else 1
    for kind in {value.dtype: None for value in tensors}:
        places = [place for place, value in enumerate(tensors) if value.dtype == kind]
        own = [tensors[place] for place in places]
        if kind.is_floating and op in (Average, Sum):
            totals = session.host.all_reduce_sum(own, is_half and kind == tf.float32)
        else:
            comm, name = session.world.comm, MPI_NAMES[op]
            totals = [tf.constant(arrays.reduced(comm, value.numpy(), name)) for value in own]
        divide = tf.truediv if kind.is_floating else tf.truncatediv  # into memory of their own
        for place, total in zip(places, totals, strict=True):
            results[place] = divide(total, tf.cast(divisor, kind))
    return results


def means_in_graph(session: Session, own: Sequence[tf.Tensor], op: str) -> list[tf.Tensor] | None:
    """The average or sum of float tensors over ranks as operations of a graph; None where the host sums."""
    if session.collectives is session.host or tf.executing_eagerly():
        return None
    wide = tf.float64 if any(value.dtype == tf.float64 for value in own) else tf.float32
    totals = session.collectives.all_reduce_sum([tf.cast(value, wide) for value in own])
    divisor = session.world.size if op == Average else 1
    return [tf.cast(total / divisor, value.dtype) for total, value in zip(totals, own, strict=True)]
