"""TensorFlow's list of devices as on a machine with GPUs; nothing can compute on them."""

import contextlib
from types import SimpleNamespace
from unittest import mock

import tensorflow as tf
from tensorflow.python.client import device_lib


@contextlib.contextmanager
def machine(gpus):
    """The process runs on a machine with GPUs of these PCI bus ids. What is done to it is noted in
    the dictionary: "visible" and "grows", lists of GPUs, and "deterministic"."""
    seen: dict = {}

    def described(config):
        texts = [
            f"device: 0, name: Fake, pci bus id: {gpu}, compute capability: 9.0"
            for gpu in seen["visible"]
        ]
        return [SimpleNamespace(physical_device_desc=text) for text in ["", *texts]]

    experimental = tf.config.experimental
    with contextlib.ExitStack() as stack:
        for owner, name, fake in [
            (tf.config, "list_physical_devices", lambda kind=None: gpus if kind == "GPU" else []),
            (tf.config, "set_visible_devices", lambda gpus, kind: seen.update(visible=gpus)),
            (experimental, "set_memory_growth", lambda gpu, grows: seen.update(grows=[gpu])),
            (experimental, "enable_op_determinism", lambda: seen.update(deterministic=True)),
            (tf.config.threading, "set_intra_op_parallelism_threads", lambda threads: None),
            (tf.config.threading, "set_inter_op_parallelism_threads", lambda threads: None),
            (device_lib, "list_local_devices", described),
        ]:
            stack.enter_context(mock.patch.object(owner, name, fake))
        yield seen
