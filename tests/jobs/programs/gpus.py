"""Joins the ranks on the GPUs of the fake driver (tests/fakes/libcuda.c) and prints which GPU each takes.

TensorFlow's CPU build has no GPU to show, so its list of devices is made up from the driver's.
Arguments: the backend to ask for and flags of DeviceSettings, such as share_gpus.
"""

import json
import os
import sys

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from distributed import driver
from distributed.collectives import _fitting, open_collectives
from distributed.devices import DeviceSettings
from distributed.world import World

NCCL_VARIABLES = ("NCCL_HOSTID", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
BUILD = {"cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"], "cuda_version": "12.5.1"}

backend, *flags = sys.argv[1:]
visible: list[str] = []
tf.config.list_physical_devices = lambda kind: [gpu.uuid for gpu in driver.gpus()] if kind == "GPU" else []
tf.config.set_visible_devices = lambda devices, kind: visible.extend(devices)
tf.config.experimental.set_memory_growth = lambda gpu, grows: None
tf.sysconfig.get_build_info = lambda: BUILD

with World.join(DeviceSettings(device="gpu", **dict.fromkeys(flags, True)), program="prog") as world:
    assert world.gpu is not None
    assert visible == [world.gpu.uuid], "the driver's and TensorFlow's GPU differ"
    chosen = bytes.fromhex(world.gpu.uuid).rstrip(b"\0").decode()
    ranks = world.gather((chosen, world.gpu.bus_id))
    auto = _fitting(world)
    if backend != "auto":
        open_collectives(world, backend).close()
    nccl = world.gather([os.environ.get(name) for name in NCCL_VARIABLES])
    if ranks is not None:
        result = {"ranks": ranks, "auto": auto, "nccl": nccl, "notes": world.notes}
        print(json.dumps({**result, "deterministic": is_op_determinism_enabled()}))
