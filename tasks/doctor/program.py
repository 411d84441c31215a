"""bert-doctor: one page, green or red, with what to do. docs/machines.md shows how to start it, and
a page.

It starts as a training does, so what keeps trainings from starting ends it in the same way, with
one line. Then it looks at the software, the hosts, the disks and the GPUs, opens the backend, and
trains small models. A check that needs one that failed is left out.
"""

import contextlib
import hashlib
import io
import json
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from distributed.collectives import Collectives, open_collectives
from distributed.collectives.tensorflow import host_address
from distributed.found import CHECKPOINTS, newest_intact
from distributed.joining import started, what_is_missing
from distributed.mpirun import OPEN_MPI, find_mpi
from distributed.run import Run
from distributed.versions import versions
from distributed.world import World
from ringbase.errors import InputError, shortened
from ringbase.files import cache_folder, check_renames
from ringbase.settings import flat, made
from tasks.bench.settings import LoadSettings
from tasks.bench.step import model_config, random_training, step_figures
from tasks.doctor.__main__ import DoctorConfig
from tasks.doctor.page import Finding, Page
from tasks.runs.execute.job import Job, set_precision
from tasks.runs.history import History
from tasks.runs.resolve.spec import RunSpec, Start
from tasks.runs.settings import MachineSettings

WRITTEN_BYTES = 1 << 26
MPI_BYTES = 1 << 24  # without which Open MPI 5 does not start several ranks
# A checkpoint holds weights and two moments in float32: 4 GB for BERT-large. A run keeps five.
FEW_BYTES, SLOW_BYTES_PER_S = 25e9, 30e6
SIZE = 300_001  # numbers in a sum: odd, and more than one piece of every backend
STEPS, LENGTH = 4, 64  # of a training; tokens of its rows
# How far losses and gradient norms may be apart, as a share: sums in another order; other number
# formats.
ROUNDING, OTHER_FORMAT = 1e-3, 3e-2
WRONG = (
    "training cannot be right here: update the driver and TensorFlow with its CUDA libraries, try"
    " another GPU, --device cpu, --backend mpi or another --precision, and report it with this page"
)


def run(config: DoctorConfig) -> None:
    machine = config.machine
    folder = nearest_folder(Path(config.output_dir).expanduser())
    with World.join(machine.device, "bert-doctor", stalls=machine.stalls) as world:
        world.agree({"Python": platform.python_version(), "the versions of packages": versions()})
        page = Page(world, config.json)
        page.check("versions", check_versions)
        disk_of_each = partial(world.on_each_machine, check_disk)
        temporary = Path(os.environ.get("TMPDIR") or "/tmp")
        page.check("TMPDIR", disk_of_each, temporary, "set TMPDIR to another folder", MPI_BYTES)
        other = "docker run --shm-size 4g; in Kubernetes an emptyDir in memory"
        page.check("/dev/shm", disk_of_each, Path("/dev/shm"), other, MPI_BYTES)
        page.check("MPI", check_mpi, world)
        page.check("hosts", check_hosts, world)
        page.check("devices", check_devices, world)
        other = "give another folder as --output_dir, or free some space"
        can_write = page.check("output folder", world.on_first, check_disk, folder, other)
        other = "set RINGBERT_CACHE to a folder on another disk, or free some space"
        page.check("cache folder", disk_of_each, cache_folder(), other)
        opened = []

        def open_backend():
            opened.append(open_collectives(world, machine.collectives.backend))
            return Finding(opened[0].name)

        can_sum = page.check("backend", open_backend)
        if can_sum and world.size > 1:
            can_sum = page.check("sums", check_sums, world, *opened)
        if can_sum and not config.quick:
            if can_write:
                check_trainings(world, opened[0], folder, page)
            page.check("BERT-base", check_speed, world, opened[0], machine)
        status = page.end()
    if status:
        sys.exit(status)


# -- the machine -----------------------------------------------------------------------------------


def check_versions() -> Finding:
    """The packages that a result depends on."""
    installed = versions()
    build = tf.sysconfig.get_build_info()
    if {"tensorflow", "tensorflow-cpu"} <= installed.keys():
        text = (
            "tensorflow and tensorflow-cpu are both installed and overwrite each other's files;"
            " make a new environment with one of ringbert's extras, cpu or gpu"
        )
        return Finding(text, "failed")
    kind = f"CUDA {build['cuda_version']}" if build["is_cuda_build"] else "CPUs"
    shown = ", ".join(f"{name} {version}" for name, version in installed.items())
    python = f"Python {platform.python_version()}"
    return Finding(f"{python}, {shown}; TensorFlow is built for {kind}")


def check_mpi(world: World) -> Finding:
    """The MPI library of mpi4py, and on one rank whether bert-launch would find its mpirun."""
    try:
        ours, version = started().get_vendor()
    except (ImportError, RuntimeError) as error:
        reason, advice = what_is_missing(error)
        with contextlib.suppress(InputError):  # no mpirun, so nobody meant to start several
            mpi = find_mpi()
            advice = advice or "load the MPI module that it was built for"
            return Finding(f"bert-launch finds {mpi}, but {reason}: {advice}", "failed")
        text = (
            f"one rank only: {reason}; for several ranks pip install '.[mpi]' in ringbert's"
            " checkout, or load the cluster's MPI module"
        )
        return Finding(text, "warning")
    text = f"mpi4py uses {ours} {'.'.join(map(str, version))}"
    if world.size > 1:
        return Finding(text)
    try:
        mpi = find_mpi()
    except InputError as error:
        text += f", but {error}; only one rank can be started until there is an mpirun"
        return Finding(text, "warning")
    text = f"{text}, and bert-launch {mpi}"
    if mpi.implementation != ours or (ours == OPEN_MPI and mpi.version != version[:2]):
        text += (
            ": each rank would be alone; load the MPI module that mpi4py was built with, or pip"
            " install '.[mpi]' into this environment"
        )
        return Finding(text, "failed")
    if shutil.which("bert-squad") is None:
        text += (
            ", but PATH has no bert-squad to start; activate the environment, on each host: source"
            " .venv/bin/activate"
        )
        return Finding(text, "warning")
    return Finding(text)


def check_hosts(world: World) -> Finding:
    """The name, the address and the ranks of each host, and how many threads each rank computes
    with."""
    host = f"{socket.gethostname()} ({host_address(world)})"
    ranks_of = Counter(world.all_gather(host))
    text = shortened(f"{host}, ranks: {count}" for host, count in ranks_of.items())
    if len(set(ranks_of.values())) > 1:
        text += ": different numbers of ranks; start equally many on each host"
        return Finding(text, "warning")
    if world.device.notes and "bound" in world.device.notes[0]:
        return Finding(world.device.notes[0], "warning")
    text += f"; threads per rank: {world.device.threads}, cores: {os.cpu_count()}"
    return Finding(text)


def check_devices(world: World) -> Finding:
    """Which GPUs the ranks have: all of one kind. Ranks that share one must have asked for it."""
    if not world.device.is_gpu:
        return Finding("the ranks compute on CPUs")
    kinds = Counter(world.all_gather(world.device.name))
    text = ", ".join(f"{number} x {name}" for name, number in kinds.items())
    if world.device.may_be_shared:
        text += ", which ranks may share; start one rank per GPU to train"
        return Finding(text, "warning")
    if len(kinds) > 1:
        text += "; use GPUs of one kind: a step waits for the slowest"
        return Finding(text, "warning")
    return Finding(text)


def check_disk(folder: Path, advice: str, num_bytes: int = WRITTEN_BYTES) -> Finding:
    """Writes a file to the folder. One of `WRITTEN_BYTES` must be fast and have room for
    checkpoints."""
    folder = nearest_folder(folder)
    place = f"{folder} on {socket.gethostname()}"
    data = os.urandom(num_bytes)  # not zeros, which may be free
    start_s = time.perf_counter()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding(f"{place}: {error.strerror}; {advice}", "failed")
    speed = num_bytes / (time.perf_counter() - start_s)
    try:
        check_renames(folder)
    except InputError as error:
        return Finding(f"{error} ({socket.gethostname()})", "failed")
    free_bytes = shutil.disk_usage(folder).free
    text = f"{place}: {free_bytes / 1e9:.3g} GB free, {speed / 1e6:.0f} MB/s written"
    is_little = free_bytes < FEW_BYTES or speed < SLOW_BYTES_PER_S
    if is_little and num_bytes == WRITTEN_BYTES:
        text += f": little for BERT-large, whose checkpoints have 4 GB; {advice}"
        return Finding(text, "warning")
    return Finding(text)


def nearest_folder(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


# -- what training does ----------------------------------------------------------------------------


def check_sums(world: World, collectives: Collectives) -> Finding:
    """The backend's sum of float32 against NumPy's, and the same bits on every rank."""
    parts = []
    for seed in range(world.size):
        numbers = np.random.default_rng(seed).standard_normal(SIZE)
        parts.append(numbers.astype(np.float32))
    mine, _ = world.share
    with world.operation("a sum on trial"):
        (sums,) = collectives.all_reduce_sum([tf.constant(parts[mine])])
        total = np.array(sums)
    exact = np.sum(parts, 0, np.float64)
    magnitude = np.sum(np.abs(parts), 0, np.float64)
    bound = world.size * np.finfo(np.float32).eps * magnitude
    error = np.max(np.abs(total - exact) / bound)
    world.agree({"the bits of a sum over ranks": hashlib.sha256(total.tobytes()).hexdigest()})
    if not error <= 1:
        text = f"the error is {error:.3g} times what rounding allows; {WRONG}"
        return Finding(text, "failed")
    return Finding("NumPy's to rounding, with the same bits on every rank")


def check_trainings(world: World, collectives: Collectives, output_dir: Path, page: Page) -> None:
    """The losses and gradient norms of a training, and of others that must have the same to
    rounding: of a small model without dropout on random tokens."""
    tf.get_logger().setLevel("ERROR")  # each model is traced once, which looks like retracing
    folder = Path(world.on_first(tempfile.mkdtemp, None, ".bert-doctor.", output_dir))
    num_rows = max(8, 2 * world.size)
    train = partial(train_on_trial, folder, num_rows, world, collectives)
    trained = []  # the losses and norms of each training
    check, is_gpu = page.check, world.device.is_gpu

    def compared(training, tolerance, *options):
        trained.append(training(*options))
        if len(trained) == 1:
            return Finding(f"a small model trains, {STEPS} steps")
        ratios = trained[0] / trained[-1]
        difference = np.max(np.abs(ratios - 1))
        text = f"losses and gradients differ by {difference:.1e}" if difference else "the same bits"
        if not difference <= tolerance:
            return Finding(f"{text}, must be at most {tolerance:g}; {WRONG}", "failed")
        return Finding(text)

    def resume():
        """Goes on from the checkpoint before the last."""
        pattern = f"{world.size}-fp32-off/checkpoints/rows-*"
        world.on_first(lambda: shutil.rmtree(max(folder.glob(pattern))))
        return train()

    try:
        if not check("a training", compared, train, 0.0):
            return
        if world.size > 1:
            one = World(device=world.device)
            alone = partial(train_on_trial, folder, num_rows, one, open_collectives(one))
            check("ranks against one", compared, partial(world.on_first, alone), ROUNDING)
        check("save and resume", compared, resume, ROUNDING if is_gpu else 0.0)
        if is_gpu:  # there XLA compiles the gradient, unless --xla off says otherwise
            check("fp32 --xla on", compared, train, ROUNDING, "fp32", "on")
            check("fp16 --xla on", compared, train, OTHER_FORMAT, "fp16", "on")
        xla = "on" if is_gpu else "off"
        check(f"bf16 --xla {xla}", compared, train, OTHER_FORMAT, "bf16", xla)
    finally:
        # All ranks have left the last check, and only rank 0 has written here.
        shutil.rmtree(folder, ignore_errors=True)


def train_on_trial(
    folder: Path,
    num_rows: int,
    world: World,
    collectives: Collectives,
    precision: str = "fp32",
    xla: str = "off",
) -> np.ndarray:
    """Trains, or goes on from the last checkpoint. Returns every step's loss and gradient norm."""
    values = {
        "global_batch_size": num_rows,
        "num_train_steps": STEPS,
        "num_warmup_steps": 0,
        "log_steps": 1,
        "save_checkpoints_steps": STEPS // 2,
        "xla": xla,
    }
    config = model_config("tiny", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    set_precision(precision)
    output_dir = folder / f"{world.size}-{precision}-{xla}"
    hidden = contextlib.redirect_stderr(io.StringIO())
    with hidden, contextlib.closing(Run(output_dir, world)) as run:
        job = Job(world, collectives, run)
        found = world.on_first(newest_intact, output_dir / CHECKPOINTS, run.say)
        path, state = found or (None, None)
        start = Start(config, weights=path, checkpoint=path, state=state)
        spec = RunSpec("bert-doctor", 0, output_dir, ("train",), {}, start)
        training = random_training(config, LENGTH, values, job)
        training.run(spec, job, History(run, world))
    text = world.on_first((output_dir / "metrics.jsonl").read_text)
    steps = [json.loads(line) for line in text.splitlines()]
    return np.array([[step["loss"], step["gradient_norm"]] for step in steps])


def check_speed(world: World, collectives: Collectives, machine: MachineSettings) -> Finding:
    """A few steps of BERT-base on random tokens: 32 x 384 on a GPU, 1 x 128 on a CPU."""
    values = flat(machine) | {"model_size": "base"}
    if world.device.is_gpu:
        values |= {"batch_size": 32, "seq_length": 384, "xla": "on"}
    else:
        values |= {"batch_size": 1, "seq_length": 128, "num_warmup": 1, "num_steps": 2}
    load = made(LoadSettings, values)
    figures = step_figures(load, world, collectives)
    speed = f"{figures['examples_per_s']:.3g} examples/s"
    text = f"{load}: {speed}"
    if world.size > 1:
        text += f"; {scaling(figures, world.size)}"
    return Finding(f"{text}; bert-bench step tells more")


def scaling(figures: Mapping[str, float], num_ranks: int) -> str:
    """How fast the ranks sum, and what share of their speed the sums leave: docs/scaling.md."""
    num_bytes = 4 * figures["parameters"]
    own_s = figures["compute_s"] + figures["apply_s"]
    sum_s = figures["reduce_s"]
    # of a ring: what each rank sends
    rate = 2 * (num_ranks - 1) / num_ranks * num_bytes / sum_s
    shares = [share_of_speed(own_s, sum_s, passes) for passes in (1, 8)]
    return (
        f"a sum of {num_bytes / 1e6:.0f} MB takes {sum_s * 1e3:.3g} ms ({rate / 1e9:.2g} GB/s),"
        f" which leaves {shares[0]:.0%} of {num_ranks} times one rank's speed, and"
        f" {shares[1]:.0%} with --gradient_accumulation_steps 8"
    )


def share_of_speed(own_s: float, sum_s: float, passes: int) -> float:
    """The efficiency of steps with a sum after this number of passes."""
    return passes * own_s / (passes * own_s + sum_s)
