"""NVIDIA's driver and TensorFlow's list of devices as on a machine with GPUs; nothing can compute on them."""

import contextlib
import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

import tensorflow as tf


@dataclass
class Machine:
    """What was done to it is noted in `seen`: "visible" and "grows", lists of GPUs, and "deterministic"."""

    gpus: list[str]  # such as "a/0000:01:00.0/9.0": UUID, PCI bus id, compute capability
    error: tuple[str, int] | None = None  # a function of the driver that fails, and its status
    seen_by_tensorflow: list[str] | None = None  # by default the same
    seen: dict = field(default_factory=dict)


class Driver:
    """The functions of libcuda.so.1, called by ctypes."""

    def __init__(self, machine: Machine):
        self._machine = machine

    def __getattr__(self, function: str):
        def call(*arguments):
            failing, status = self._machine.error or ("", 0)
            if function == failing:
                return status
            gpus = [gpu.split("/") for gpu in self._machine.gpus]
            match function, *arguments:
                case "cuInit", _:
                    return 0 if gpus else 100  # CUDA_ERROR_NO_DEVICE
                case "cuDeviceGetCount", count:
                    count._obj.value = len(gpus)
                case "cuDeviceGet", device, index:
                    device._obj.value = index
                case "cuDeviceGetUuid_v2", uuid, device:
                    uuid[:] = gpus[device.value][0].encode().ljust(16, b"\0")
                case "cuDeviceGetPCIBusId", text, _, device:
                    text.value = gpus[device.value][1].encode()
                case "cuDeviceGetName", text, *_:
                    text.value = b"Fake"
                case "cuDeviceGetAttribute", number, attribute, device:
                    major_and_minor = gpus[device.value][2].split(".")
                    number._obj.value = int(major_and_minor[attribute - 75])
                case "cuGetErrorName", *_:
                    return 1
                case _:
                    raise AttributeError(function)
            return 0

        if not re.fullmatch("cu[A-Z]\\w+", function):
            raise AttributeError(function)
        return call


@contextlib.contextmanager
def installed(machine: Machine) -> Iterator[Machine]:
    """The process runs on this machine."""
    library, seen = ctypes.CDLL, machine.seen
    listed = machine.gpus if machine.seen_by_tensorflow is None else machine.seen_by_tensorflow
    build = {"cuda_compute_capabilities": ["sm_80", "sm_90"], "cuda_version": "12.5.1"}
    of_tensorflow = {
        "config.list_physical_devices": lambda kind=None: listed if kind == "GPU" else [],
        "config.set_visible_devices": lambda gpus, kind: seen.update(visible=gpus),
        "config.experimental.set_memory_growth": lambda gpu, grows: seen.update(grows=[gpu]),
        "config.experimental.enable_op_determinism": lambda: seen.update(deterministic=True),
        "config.threading.set_intra_op_parallelism_threads": lambda threads: None,
        "config.threading.set_inter_op_parallelism_threads": lambda threads: None,
        "sysconfig.get_build_info": lambda: build,
    }

    def load(name, *args, **options):
        return Driver(machine) if name == "libcuda.so.1" else library(name, *args, **options)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(ctypes, "CDLL", load))
        for path, fake in of_tensorflow.items():
            *modules, name = path.split(".")
            owner = tf
            for module in modules:
                owner = getattr(owner, module)
            stack.enter_context(mock.patch.object(owner, name, fake))
        yield machine
