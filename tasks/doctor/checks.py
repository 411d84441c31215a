"""The checks of bert-doctor in their order, after those of the installed software."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import tensorflow as tf

from distributed.collectives import Collectives
from distributed.doctor import gpus, hosts, storage
from distributed.doctor.examination import Check, Examination, not_tested
from distributed.doctor.sums import Sums
from tasks.doctor import speed, truth
from tasks.doctor.settings import Config
from tasks.doctor.trial import Xla
from tasks.environment import cache_folder

HOSTS, DEVICES, DISKS = "hosts and network", "devices", "disks"
SUMS, TRAINING, SPEED = "sums over ranks", "training", "speed"
BACKENDS = ("mpi", "nccl", "ring")
PRECISIONS = ("fp32", "bf16", "fp16")
XLA: dict[str, Xla] = {"": "off", " --xla on": "gradient"}
SAME_BITS = "the same command on one rank, and --backend mpi, show whether the sums or the devices are at fault"


def check_hosts(config: Config, exam: Examination) -> None:
    """Names, cores, clocks, ports and disks of all hosts."""
    folder, is_needed = Path(config.output_dir).expanduser(), config.backend not in ("mpi", "local")
    exam.run(Check(HOSTS, "hosts", hosts.check_hosts))
    exam.run(Check(HOSTS, "cores", hosts.check_cores))
    exam.run(Check(HOSTS, "clocks", hosts.check_clocks))
    exam.run(Check(HOSTS, "ports", partial(hosts.check_ports, is_needed=is_needed), limit_s=300))
    advice = "this disk or its server does not answer in time: use another"
    exam.run(Check(DISKS, "output folder", partial(storage.check_output_folder, folder=folder), advice))
    exam.run(Check(DISKS, "cache folder", partial(storage.check_cache_folder, folder=cache_folder()), advice))


def check_devices(config: Config, exam: Examination) -> None:
    """Drivers and GPUs; from here on the ranks of `exam` have their devices."""
    devices = gpus.Devices()
    exam.run(Check(DEVICES, "GPUs", partial(devices.check, settings=config)))
    exam.run(Check(DEVICES, "GPU health", gpus.check_health))
    if devices.world is not None:
        exam.world = replace(devices.world, comm=exam.world.comm)


def check_sums(config: Config, exam: Examination) -> Collectives | None:
    """The backends. Returns the one that training would use, unless it cannot be opened."""
    sums = Sums()
    uses_ports = config.backend in ("nccl", "ring") or (config.backend == "auto" and exam.world.device.is_gpu)
    needs = ("GPUs", "ports") if uses_ports else ("GPUs",)
    hung = "the sum does not end: give another --backend, or see NCCL_DEBUG=INFO and RINGBERT_NETWORK"
    exam.run(Check(DEVICES, "backend", partial(sums.open, backend=config.backend), hung, needs=needs))
    slow = "the driver compiles TensorFlow's kernels for this GPU: try again, or set CUDA_CACHE_MAXSIZE=4294967296"
    exam.run(Check(DEVICES, "first operation", gpus.check_first_operation, slow, 900, needs=("GPUs",)))
    for name in BACKENDS:
        exam.run(Check(SUMS, f"sums by {name}", partial(sums.check, name=name), hung, needs=("GPUs", "backend")))
    exam.run(Check(SUMS, "bandwidth", sums.speed, hung, needs=("GPUs", "backend")))
    return sums.chosen


def check_training(config: Config, exam: Examination, collectives: Collectives | None) -> None:
    """Gradients, ranks, checkpoints and speed of training."""
    if config.quick:
        exam.run(Check(TRAINING, "small models", lambda world: not_tested("--quick")))
        exam.run(Check(SPEED, "BERT-base", lambda world: not_tested("--quick")))
        return
    tf.get_logger().setLevel("ERROR")  # each model is traced once, which looks like retracing
    computing, advice = truth.Truth(), truth.WRONG
    exam.run(Check(TRAINING, "float32 on the CPU", computing.check_reference, advice, 120, needs=("GPUs",)))
    for precision in PRECISIONS:
        for flag, xla in XLA.items():
            run = partial(computing.check_precision, precision=precision, xla=xla)
            exam.run(Check(TRAINING, precision + flag, run, advice, 180, needs=("GPUs", "float32 on the CPU")))
    if not exam.world.device.is_gpu:
        exam.run(Check(TRAINING, "GPU against CPU", lambda world: not_tested("the ranks compute on CPUs")))
    exam.run(Check(TRAINING, "whole step", truth.check_whole_step, advice, 180, needs=("GPUs",)))

    def with_collectives(function, **arguments):
        return lambda world: function(collectives=collectives, world=world, **arguments)

    folder, needs = Path(config.output_dir).expanduser(), ("GPUs", "backend")
    exam.run(Check(TRAINING, "ranks against one", with_collectives(truth.check_ranks), SAME_BITS, 180, needs))
    resume = with_collectives(truth.check_resume, folder=folder)
    exam.run(Check(TRAINING, "save and resume", resume, SAME_BITS, 180, (*needs, "output folder")))
    # Last, because training uses this only on request.
    exam.run(Check(TRAINING, "sum in the step", with_collectives(truth.check_sum_in_step), SAME_BITS, 180, needs))
    timed = with_collectives(speed.check_speed, config=config)
    exam.run(Check(SPEED, "BERT-base", timed, "see bert-bench step", 240, needs))
