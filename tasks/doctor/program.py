"""bert-doctor: whether RingBERT works on this machine or cluster. One page, green or red, with what to do.

    bert-doctor
    bert-launch -np 8 -H host1:4,host2:4 -- bert-doctor
    srun --mpi=pmix --ntasks-per-node=4 bert-doctor --json

It starts as a training does, so what keeps trainings from starting ends it in the same way, with one line. Then it
looks at the software, the hosts, the disks and the GPUs, opens the backend, and trains small models.
"""

import sys
import time
from functools import partial
from pathlib import Path

import tensorflow as tf

import ringbase
from distributed.collectives import Collectives, open_collectives
from distributed.world import World
from tasks.doctor import machines, training
from tasks.doctor.page import Finding, Page, not_tested
from tasks.doctor.settings import DoctorConfig
from tasks.environment import cache_folder


def run(config: DoctorConfig) -> None:
    with World.join(config.machine.device, "bert-doctor", stalls=config.machine.stalls) as world:
        ranks = f"{world.size} rank{'s' * (world.size > 1)} on {world.num_nodes} host{'s' * (world.num_nodes > 1)}"
        heading = f"RingBERT {ringbase.__version__}: {ranks}, {time.strftime('%Y-%m-%d %H:%M')}"
        page = Page(world, heading, config.json)
        check_machines(config, world, page)
        check_training(config, world, page)
        status = page.end({"ringbert": ringbase.__version__, "ranks": world.size, "hosts": world.num_nodes})
    if status:
        sys.exit(status)


def check_machines(config: DoctorConfig, world: World, page: Page) -> None:
    """Software, hosts, disks and GPUs: nothing of this uses the backend."""
    folder = Path(config.output_dir).expanduser()
    page.check("software", "versions", partial(machines.check_versions, world))
    page.check("software", "MPI", partial(machines.check_mpi, world))
    page.check("hosts", "hosts", partial(machines.check_hosts, world))
    other = "give another folder as --output_dir, or free some space"
    page.check("hosts", "output folder", partial(machines.check_disk, world.rank == 0, folder, other))
    other = "set RINGBERT_CACHE to a folder on another disk, or free some space"
    page.check("hosts", "cache folder", partial(machines.check_disk, world.local_rank == 0, cache_folder(), other))
    page.check("hosts", "GPUs", partial(machines.check_gpus, world))


def check_training(config: DoctorConfig, world: World, page: Page) -> None:
    """The backend and what it sums; trainings, and their speed."""
    opened: list[Collectives] = []

    def open_backend() -> Finding:
        opened.append(open_collectives(world, config.machine.backend.backend))
        return Finding("ok", opened[0].name)

    page.check("training", "backend", open_backend)
    page.check("training", "sums", lambda: training.check_sums(world, opened[0]), ("backend",))
    if config.quick:
        page.check("training", "small models", lambda: not_tested("--quick"))
        return
    needs = ("backend", "sums", "output folder", "cache folder")
    if not set(needs) & set(page.failed):
        tf.get_logger().setLevel("ERROR")  # each model is traced once, which looks like retracing
        with training.trials(world, opened[0], Path(config.output_dir).expanduser()) as trials:
            page.check("training", "ranks against one", trials.check_ranks)
            page.check("training", "save and resume", trials.check_resume, ("ranks against one",))
            formats = (("fp32", "on"), ("bf16", "off"), ("bf16", "on"), ("fp16", "on"))
            for precision, xla in formats if world.device.is_gpu else formats[:3]:
                check = partial(trials.check_precision, precision, xla)
                page.check("training", f"{precision} --xla {xla}", check, ("ranks against one",))
    speed = lambda: training.check_speed(world, opened[0], config.machine)  # noqa: E731
    page.check("speed", "BERT-base", speed, needs)
