"""TensorFlow's list of devices as on a machine with GPUs; nothing can compute on them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest import mock

import tensorflow as tf
from tensorflow.python.client import device_lib


@dataclass
class Machine:
    """What was done to it is noted in `seen`: "visible" and "grows", lists of GPUs, and "deterministic"."""

    gpus: list[str]  # their PCI bus ids
    seen: dict = field(default_factory=dict)


@contextlib.contextmanager
def installed(machine: Machine) -> Iterator[Machine]:
    """The process runs on this machine."""
    seen = machine.seen

    def described(config) -> list[SimpleNamespace]:
        texts = [f"device: 0, name: Fake, pci bus id: {gpu}, compute capability: 9.0" for gpu in seen["visible"]]
        return [SimpleNamespace(physical_device_desc=text) for text in ["", *texts]]

    replaced = [
        (tf.config, "list_physical_devices", lambda kind=None: machine.gpus if kind == "GPU" else []),
        (tf.config, "set_visible_devices", lambda gpus, kind: seen.update(visible=gpus)),
        (tf.config.experimental, "set_memory_growth", lambda gpu, grows: seen.update(grows=[gpu])),
        (tf.config.experimental, "enable_op_determinism", lambda: seen.update(deterministic=True)),
        (tf.config.threading, "set_intra_op_parallelism_threads", lambda threads: None),
        (tf.config.threading, "set_inter_op_parallelism_threads", lambda threads: None),
        (device_lib, "list_local_devices", described),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, fake in replaced:
            stack.enter_context(mock.patch.object(owner, name, fake))
        yield machine
