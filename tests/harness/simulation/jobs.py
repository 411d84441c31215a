"""Jobs that start again until a training is complete, while a seed decides what goes wrong."""

import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from harness.simulation.disk import Disk, full
from harness.simulation.mpi import Mpi
from harness.simulation.options import Options
from harness.simulation.scheduler import Fault, Killed, Process, Scheduler, guarded
from harness.simulation.threads import patch_threads
from harness.simulation.training import program
from harness.simulation.watch import Watch

from distributed import elastic, launcher
from distributed.found import complete_checkpoints
from distributed.ranks import Ranks
from distributed.watchdog import Watchdog
from distributed.world import World

# Operations in which faults are more frequent than elsewhere, because little time is spent there.
RARE = ("Shrink", "Split", "Revoke", "rename", "sync", "replace", "rmtree", "mkdir")
RARE_FACTOR = 20


@dataclass
class Job:
    """One start of the program on some ranks."""

    options: Options
    watch: Watch
    disk: Disk
    folder: Path
    scheduler: Scheduler
    mpi: Mpi
    left: Counter  # faults that are still to come, by kind
    size: int
    happened: Counter = field(default_factory=Counter)
    num_joined: int = 0

    def run(self) -> int:
        """Returns the status of the job."""
        scheduler = self.scheduler
        processes = [
            Process(f"rank {rank}", rank // self.options.per_machine, scheduler)
            for rank in range(self.size)
        ]
        scheduler.processes = processes
        scheduler.before_turn = self.before_turn
        # faults end at some time, and then the job must come to its end
        per_rank = 40 * self.options.num_steps + 200
        self.quiet_from = scheduler.chance.randint(1, per_rank * self.size)
        self.disk.before_call = self.before_file
        self.mpi.before_call = self.before_mpi
        for process, comm in zip(processes, self.mpi.world_of(processes), strict=True):
            main = guarded(scheduler, process, partial(self.main, process, comm))
            process.start(main)
        scheduler.run()
        for process in processes:
            for file in process.locked_files:
                file.close()
        return self.status(processes)

    def main(self, process: Process, comm) -> None:
        """What each rank does, as `tasks.runs.execute.job.run_on_ranks`."""
        world = World(Ranks.of(comm), program="simulated", watchdog=Watchdog(None))
        process.stop_wanted = world.stops.wanted
        work = partial(program, world, self.folder, self.options, self.watch)
        try:
            elastic.enable(world)
            self.num_joined += 1
            elastic.surviving(world, "", work)
        except (Killed, Fault):
            raise
        except BaseException as error:
            world.__exit__(type(error), error, error.__traceback__)
            raise
        world.__exit__(None, None, None)

    def status(self, processes: list[Process]) -> int:
        statuses = {process.status for process in processes if process.status is not None}
        if self.mpi.status is not None:
            return self.mpi.status
        if not self.options.elastic and self.happened["death"]:
            return 137
        if len(statuses & {0, 75}) == 2:
            raise Fault(f"some ranks ended, others were preempted: {statuses}")
        return max(statuses, default=137)

    def check_end(self, status: int) -> None:
        """Raises Fault unless the status follows from what happened."""
        happened, is_complete = self.happened, (self.folder / "result.json").exists()
        if status == 0 and not is_complete:
            raise Fault("the end without result.json")
        if (
            is_complete
            and self.watch.newest() != self.options.num_steps * self.options.global_batch_size
        ):
            raise Fault(f"complete, but the newest checkpoint is {self.watch.newest()}")
        if status == 75 and not happened["stop"]:
            raise Fault("preempted without a request")
        dead = happened["death"]
        may_fail = sum(happened[kind] for kind in ("file", "full", "power", "early", "error"))
        may_fail = may_fail or (dead and (not self.options.elastic or dead >= self.size))
        if status not in (0, 75) and not may_fail:
            raise Fault(f"status {status} after {dict(happened)}")

    # -- what goes wrong ---------------------------------------------------------------------------

    def before_turn(self, process: Process) -> float:
        """Seconds by which the process comes later."""
        scheduler, chance = self.scheduler, self.scheduler.chance
        is_rare = process.operation.partition(" ")[0] in RARE
        is_early = self.num_joined < self.size
        factor = RARE_FACTOR if is_rare and not is_early else 0.1 if is_early else 1
        likely = 3 / (200 * self.size) * factor
        if self.comes("death", likely):
            self.happened["early"] += is_early
            if self.options.elastic:
                scheduler.kill(process)
            else:
                self.kill_all()
        elif self.comes("power", likely / 10):
            self.kill_all()
        elif self.comes("stop", likely):
            for each in scheduler.processes[: chance.choice([1, self.size])]:
                if each.stop_wanted:
                    each.stop_wanted.set()
        elif scheduler.events <= self.quiet_from and chance.random() < self.options.slow:
            return chance.uniform(0, 2)
        return 0.0

    def kill_all(self) -> None:
        for process in self.scheduler.processes:
            self.scheduler.kill(process)

    def is_nth(self, *kinds: str) -> bool:
        """Whether this is the call of which `Options.nth` speaks."""
        kind, number = self.options.nth
        if kind not in kinds:
            return False
        self.left["calls"] += 1
        is_here = self.left["calls"] == number
        self.happened["nth"] += is_here
        self.happened["file"] += is_here and kind == "write"
        self.happened["error"] += is_here and kind == "error"
        return is_here

    def before_mpi(self, process: Process, name: str) -> None:
        if self.options.nth[0] == "start":
            self.before_message_of_start(process)
        elif self.options.nth[0] in ("death", "error") and not self.left["first death"]:
            if max(self.watch.applied.values(), default=0) == 2:  # the others may have taken 1
                self.left["first death"] = self.happened["death"] = 1
                self.scheduler.kill(self.scheduler.processes[1])
        elif self.left["first death"] and self.is_nth("death", "error"):
            if self.options.nth[0] == "error":
                raise self.mpi.Exception("some error")
            self.happened["death"] += 1
            self.scheduler.kill(process)

    def before_message_of_start(self, process: Process) -> None:
        """Ends the first start once something is saved; in the second one rank 0, which has loaded
        that, dies."""
        if not self.left["first start"]:
            if self.watch.saved:
                self.left["first start"] = self.happened["power"] = 1
                self.kill_all()
        elif process is self.scheduler.processes[0] and self.is_nth("start"):
            self.happened["death"] += 1
            self.happened["early"] += self.num_joined < self.size
            self.scheduler.kill(process)

    def before_file(self, process: Process, name: str, path: Path) -> None:
        if self.is_nth("write"):
            raise full(path)
        if self.is_nth("cut"):
            self.happened["power"] += 1
            self.kill_all()
            self.scheduler.pause(name)
        if self.happened["full"]:
            if name in ("open", "mkdir"):
                raise full(path)
        elif self.comes("full", 0.005) or self.comes("file", 0.02):
            raise full(path)

    def comes(self, kind: str, likely: float) -> bool:
        """Whether a fault of this kind comes now."""
        is_quiet = self.scheduler.events > self.quiet_from
        if is_quiet or not self.left[kind] or self.scheduler.chance.random() >= likely:
            return False
        self.left[kind] -= 1
        self.happened[kind] += 1
        return True


def simulate(options: Options, folder: Path) -> list[tuple[int, Counter]]:
    """Starts jobs until the training is complete. Returns the status of each start, and what went
    wrong in it. Raises Fault, with the options."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            return _simulate(options, folder, patch)
        except Fault as fault:
            raise Fault(f"{fault}\n    {options}") from fault


def _simulate(options: Options, folder: Path, patch) -> list[tuple[int, Counter]]:
    chance = random.Random(options.seed)
    watch = Watch(options.global_batch_size, folder)
    disk = Disk(folder)
    disk.patch(patch)
    patch.setenv(launcher.ELASTIC, str(int(options.elastic)))
    kinds = {
        "death": options.deaths,
        "stop": options.stops,
        "file": options.failing_files,
        "full": int(options.full_disk),
        "power": options.power_cuts,
        "damage": int(options.damages),  # once, as an intact checkpoint must be left
    }
    left, history = Counter(kinds), []
    for _ in range(3 + left.total()):  # each start but the last has met a fault
        size = chance.randint(1, options.ranks) if options.other_ranks else options.ranks
        scheduler = Scheduler(chance.randrange(1 << 32), 20_000 + 3_000 * size)
        disk.scheduler = scheduler
        with pytest.MonkeyPatch.context() as job_patch:
            patch_threads(job_patch, scheduler)
            mpi = Mpi(scheduler, options.garbage)
            job_patch.setitem(sys.modules, "mpi4py.MPI", mpi)
            job = Job(options, watch, disk, folder, scheduler, mpi, left, size)
            status = job.run()
        watch.applied.clear()
        history.append((status, job.happened))
        job.check_end(status)
        if status == 0:
            return history
        if job.happened["power"]:
            disk.cut_power()
        newest = watch.newest()
        if newest < watch.saved:
            raise Fault(f"{watch.saved} was saved, but the newest intact checkpoint is {newest}")
        complete = complete_checkpoints(watch.folder)
        if left["damage"] and len(complete) > 1 and chance.random() < 0.3:
            left["damage"] -= 1
            disk.damage(complete[-1])
            watch.saved = watch.newest()
    raise Fault(f"not complete: {history}")
