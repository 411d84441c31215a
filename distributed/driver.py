"""Asks NVIDIA's driver about the GPUs that this process may use, before TensorFlow touches them."""

import ctypes
from dataclasses import dataclass

from ringbase.errors import InputError

LIBRARY = "libcuda.so.1"
# The driver's answers on a machine without a GPU, and of the library that CUDA installs for linking only.
NO_GPU = (100, 34)
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…


@dataclass(frozen=True)
class Gpu:
    """A GPU, or the part of one (a MIG instance) that this process may use.

    Attributes:
      uuid: 32 hexadecimal digits; those of the instance if it is one.
      bus_id: where the whole card is; all instances of a card share it, and NCCL refuses two ranks with the same.
      capability: the compute capability, such as (9, 0).
    """

    uuid: str
    bus_id: str = ""
    name: str = "GPU"
    capability: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return f"{self.name}, compute capability {self.capability[0]}.{self.capability[1]}"


def gpus() -> list[Gpu]:
    """The GPUs in CUDA's order, which TensorFlow's is too; an empty list without a driver or without a GPU.

    Raises InputError if the driver fails.
    """
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        return []
    status = driver.cuInit(0)
    if status in NO_GPU:
        return []
    _check(driver, "cuInit", status)
    count = ctypes.c_int()
    _check(driver, "cuDeviceGetCount", driver.cuDeviceGetCount(ctypes.byref(count)))
    return [_gpu(driver, index) for index in range(count.value)]


def _gpu(driver: ctypes.CDLL, index: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    uuid, name, bus_id = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(32)

    def call(function: str, *arguments) -> None:
        _check(driver, function, getattr(driver, function)(*arguments))

    call("cuDeviceGet", ctypes.byref(device), index)
    # Only _v2, which drivers have since CUDA 11.4, tells the instances of one card apart.
    call("cuDeviceGetUuid_v2" if hasattr(driver, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid", uuid, device)
    call("cuDeviceGetPCIBusId", bus_id, len(bus_id), device)
    call("cuDeviceGetName", name, len(name), device)
    call("cuDeviceGetAttribute", ctypes.byref(major), MAJOR, device)
    call("cuDeviceGetAttribute", ctypes.byref(minor), MINOR, device)
    capability = major.value, minor.value
    return Gpu(bytes(uuid).hex(), bus_id.value.decode(), name.value.decode(errors="replace"), capability)


def _check(driver: ctypes.CDLL, function: str, status: int) -> None:
    if status:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(status, ctypes.byref(name))
        reason = (name.value or b"unknown error").decode()
        raise InputError(
            f"the NVIDIA driver of this machine fails ({function}: {reason}, {status}): "
            "nvidia-smi may show why; give --device cpu to compute without GPUs"
        )
