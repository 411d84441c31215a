"""Checks of GPUs: TensorFlow's build and the driver, each rank's GPU, and its health."""

import csv
import shutil
import socket
import subprocess
import time
from collections import Counter
from dataclasses import replace

import tensorflow as tf

from distributed.devices import DeviceSettings, use_device, visible_gpus
from distributed.doctor.examination import Finding, failed, not_tested, ok, warning
from distributed.world import World
from ringbase.errors import InputError

NO_GPU = "there is no NVIDIA GPU here"
QUERY = ("uuid", "name", "memory.used", "memory.total", "ecc.errors.uncorrected.volatile.total")
SIZE = 256  # of the first product
MUCH_USED = 0.05  # of a GPU's memory; a rank takes its share of it only later


class Devices:
    """The world with the devices that the ranks compute on, after `check`."""

    def __init__(self) -> None:
        self.world: World | None = None

    def check(self, world: World, settings: DeviceSettings) -> Finding:
        """Gives each rank its device, as training does."""
        try:
            num_gpus, error = len(visible_gpus(settings.device)), None
        except InputError as caught:
            num_gpus, error = 0, caught
        everyone = world.all_gather((num_gpus, error is not None))
        if error is not None:
            raise error
        if any(is_wrong for _, is_wrong in everyone):
            return not_tested("another rank cannot use its GPU")
        self.world = replace(world, device=use_device(world, settings))
        if not self.world.device.is_gpu:
            reason = "--device cpu" if settings.device == "cpu" else NO_GPU
            return not_tested(f"{reason}; the ranks compute on CPUs")
        gpu = self.world.device
        ranks = world.all_gather((gpu.name, gpu.bus_id, socket.gethostname()))
        kinds = Counter(name for name, _, _ in ranks)
        text = "; ".join(f"{number} x {name}" for name, number in kinds.items())
        if len(kinds) > 1:
            return warning(text, "use GPUs of one kind: a step waits for the slowest", ranks=ranks)
        if len({uuid for _, uuid, _ in ranks}) < world.size:
            return warning(f"{text}, shared by ranks", "start one rank per GPU to train", ranks=ranks)
        return ok(text, ranks=ranks)


def check_first_operation(world: World) -> Finding:
    """A product whose result is known. On a GPU newer than TensorFlow's kernels it may take minutes, once."""
    start_s = time.perf_counter()
    product = tf.matmul(tf.ones([SIZE, SIZE]), tf.ones([SIZE, SIZE]))
    is_right, seconds = bool(tf.reduce_all(product == float(SIZE)).numpy()), time.perf_counter() - start_s
    if not is_right:
        return failed(
            f"a product of ones on {product.device} is wrong", "this device cannot be trusted: use another"
        )
    return ok(f"a product on the {world.device.kind.upper()}, {seconds:.1f} s")


def check_health(world: World) -> Finding:
    """Memory that other processes use and memory errors, as nvidia-smi reports them for this host's GPUs."""
    if world.local_rank > 0:
        return not_tested("the first rank of a host asks")
    if shutil.which("nvidia-smi") is None:
        return not_tested("there is no nvidia-smi here")
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    if done.returncode:
        return failed(
            f"nvidia-smi: {(done.stdout + done.stderr).strip().splitlines()[0]}",
            "reload the NVIDIA driver or restart the host",
        )
    rows = [[cell.strip() for cell in row] for row in csv.reader(done.stdout.splitlines())]
    for uuid, name, used, total, errors in rows:
        if errors.isdigit() and int(errors) > 0:
            return failed(
                f"{name} {uuid}: {errors} memory errors that could not be corrected",
                "reset or replace this GPU: its results cannot be trusted",
            )
        if used.isdigit() and total.isdigit() and int(used) > MUCH_USED * int(total):
            return warning(
                f"{name} {uuid}: {used} of {total} MiB are in use",
                "end the other processes on this GPU (nvidia-smi lists them), or set CUDA_VISIBLE_DEVICES",
            )
    return ok(f"{len(rows)} GPUs without memory errors, not used by others", gpus=rows)
