"""What TensorFlow would do with a graph on a GPU: which operations have no kernel there, and what is copied
between the GPU's memory and the host's.

Kernels and the memory of their arguments come from TensorFlow's registry. It knows those of GPUs where
TensorFlow's GPU wheel is installed; no GPU is needed.
"""

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

import tensorflow as tf
from tensorflow.python.framework import kernels
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

HOST, GPU = "host", "GPU"
CALLS = ("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "While", "StatelessWhile", "Case")
ARGUMENTS, XLA = ("Placeholder", "_Arg"), "XLA_GPU_JIT"
ON_HOST = (tf.int32, tf.resource)  # how arguments and results of functions are passed on GPUs


@dataclass
class Findings:
    """Counts of what was found in graphs; everything in the body of a loop counts once.

    Attributes:
      no_kernel: (operation, dtypes, "GPU" or "XLA") without a kernel.
      host: (operation, dtypes) of the operations that compute int32 on the host.
      down: (operation, dtype, reader) whose result the host waits for: copied from the GPU.
      up: (operation, dtype, reader): copied to the GPU.
    """

    no_kernel: Counter = field(default_factory=Counter)
    host: Counter = field(default_factory=Counter)
    down: Counter = field(default_factory=Counter)
    up: Counter = field(default_factory=Counter)
    num_operations: int = 0

    @classmethod
    def of(cls, function) -> "Findings":
        """The findings in a concrete function."""
        findings = cls()
        findings.add(function.graph, "_XlaMustCompile" in function.function_def.attr)
        return findings

    def __str__(self) -> str:
        return (
            f"{self.num_operations} operations, {self.no_kernel.total()} without a kernel, {self.host.total()} on "
            f"the host; copies: {self.down.total()} from the GPU, {self.up.total()} to it"
        )

    def add(self, graph: tf.Graph, in_xla: bool = False) -> None:
        """Looks at a graph, and at the functions that it calls."""
        places: dict[str, list[str]] = {}  # operation -> the memory of each output
        for operation in graph.get_operations():
            self.num_operations += 1
            if operation.type in CALLS:
                is_compiled = self._add_called(operation, in_xla)
                if in_xla:
                    continue
                inputs = [GPU if is_compiled else of_argument(x.dtype) for x in operation.inputs]
                outputs = [GPU if is_compiled else of_argument(x.dtype) for x in operation.outputs]
            elif in_xla:
                if operation.type not in (*ARGUMENTS, "NoOp") and kernel_of(operation, (XLA,)) is None:
                    self.no_kernel[operation.type, dtypes(operation), "XLA"] += 1
                continue
            else:
                inputs, outputs = self._memory(operation)
            places[operation.name] = outputs
            self._add_copies(operation, inputs, places)
        if in_xla:
            return
        for result in getattr(graph, "outputs", []):
            if of_argument(result.dtype) == HOST and places[result.op.name][result.value_index] == GPU:
                self.down[result.op.type, result.dtype.name, "result"] += 1

    def _add_called(self, operation: tf.Operation, in_xla: bool) -> bool:
        """Looks at the functions that an operation calls; whether XLA compiles them."""
        compiles = False
        for name in functions_of(operation):
            called = operation.graph._get_function(name)
            compiles = in_xla or "_XlaMustCompile" in called.definition.attr
            graph = called.graph or function_def_to_graph(called.definition)
            self.add(graph, compiles)
        return compiles

    def _memory(self, operation: tf.Operation) -> tuple[list[str], list[str]]:
        """The memory of an operation's inputs and outputs."""
        num_in, num_out = len(operation.inputs), len(operation.outputs)
        if operation.type in ARGUMENTS:
            return [], [of_argument(x.dtype) for x in operation.outputs]
        if operation.type == "NoOp":
            return [], []
        if "CPU" in operation.device:
            self.host[operation.type, dtypes(operation)] += 1
            return [HOST] * num_in, [HOST] * num_out
        kernel = kernel_of(operation, ("GPU", "DEFAULT"))
        if kernel is None:
            self.no_kernel[operation.type, dtypes(operation), "GPU"] += 1
            return [HOST] * num_in, [HOST] * num_out
        names = set(kernel.host_memory_arg)
        inputs = memory_of(operation, operation.op_def.input_arg, names)
        outputs = memory_of(operation, operation.op_def.output_arg, names)
        if outputs and HOST in outputs and operation.type != "Const":
            self.host[operation.type, dtypes(operation)] += 1
        return inputs, outputs

    def _add_copies(self, operation: tf.Operation, inputs: list[str], places: dict[str, list[str]]) -> None:
        for tensor, here in zip(operation.inputs, inputs, strict=True):
            there = places[tensor.op.name][tensor.value_index]
            if here != there and tensor.dtype != tf.resource:
                copies = self.down if here == HOST else self.up
                copies[tensor.op.type, tensor.dtype.name, operation.type] += 1


def of_argument(dtype: tf.DType) -> str:
    return HOST if dtype.base_dtype in ON_HOST else GPU


def memory_of(operation: tf.Operation, arguments, on_host: set[str]) -> list[str]:
    """The memory of each tensor: an argument of the definition may be a list of tensors."""
    places: list[str] = []
    for argument in arguments:
        count = 1
        if argument.number_attr:
            count = operation.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            count = len(operation.get_attr(argument.type_list_attr))
        places += [HOST if argument.name in on_host else GPU] * count
    return places


def functions_of(operation: tf.Operation) -> Iterator[str]:
    """The names of the functions that an operation calls."""
    for value in operation.node_def.attr.values():
        if value.func.name:
            yield value.func.name
        yield from (function.name for function in value.list.func)


def dtypes(operation: tf.Operation) -> str:
    """The dtypes of an operation's inputs and outputs, in short."""
    kinds = [attr.type for attr in operation.node_def.attr.values() if attr.type]
    kinds += itertools.chain(*(attr.list.type for attr in operation.node_def.attr.values()))
    return ", ".join(sorted({tf.as_dtype(kind).name for kind in kinds}))


@functools.cache
def registered(name: str) -> list:
    with tf.init_scope():
        _register_xla()
    return list(kernels.get_registered_kernels_for_op(name).kernel)


@functools.cache
def _register_xla() -> None:
    """XLA registers its kernels, for all devices, when it compiles for the first time."""
    tf.function(lambda x: x + 1, jit_compile=True, autograph=False)(1.0)


def kernel_of(operation: tf.Operation, devices: tuple[str, ...]):
    """The operation's kernel for its dtypes on the first device that has one; None if none has."""
    attrs = operation.node_def.attr
    for device in devices:
        for kernel in registered(operation.type):
            fits = all(
                not attrs[each.name].type or attrs[each.name].type in each.allowed_values.list.type
                for each in kernel.constraint
            )
            if kernel.device_type == device and fits:
                return kernel
    return None


@contextlib.contextmanager
def traced_only() -> Iterator[list]:
    """Collects the outermost tf.functions that are called, as concrete functions, once each.

    Functions whose results have known shapes are not executed: they return ones. So no gradient is computed, and
    XLA compiles nothing.
    """
    kind, concrete_functions = type(tf.function(lambda: 0)), []
    call = kind.__call__

    def trace(function, *args, **kwargs):
        if tf.inside_function():
            return call(function, *args, **kwargs)
        concrete = function.get_concrete_function(*args, **kwargs)
        if not any(concrete is other for other in concrete_functions):
            concrete_functions.append(concrete)
        results = tf.nest.flatten(concrete.structured_outputs)
        if any(not result.shape.is_fully_defined() for result in results):
            return call(function, *args, **kwargs)
        ones = [tf.ones(result.shape, result.dtype) for result in results]
        return tf.nest.pack_sequence_as(concrete.structured_outputs, ones)

    with mock.patch.object(kind, "__call__", trace):
        yield concrete_functions
