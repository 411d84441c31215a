"""Join MPI, choose this rank's device and cores, and fail together.

Two things stay on MPI whatever moves the gradients: control messages (objects, barriers, agreement, the weights
of a step) and the end of the job. `World` is made once, at the start of a program, and passed down.
"""

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from distributed.devices import DeviceSettings, choose_gpu, share_cores, start_tensorflow, usable_gpus, use_gpu
from distributed.launch import launched_rank
from ringbert.errors import InputError, Preempted, one_line

T = TypeVar("T")
# Variables that launchers set in the processes that they start, and nowhere else.
LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
POLL_S = (0.0005, 0.02)  # shortest and longest sleep of a rank that waits for another


class FirstRankError(Exception):
    """`on_first` failed on rank 0; that rank reports it and ends the job."""


@dataclass(frozen=True)
class World:
    """This process among the ranks of a job.

    Attributes:
      rank, size: number of this rank, and of ranks.
      local_rank, local_size: the same among the ranks that share this machine's memory.
      node, num_nodes: number of this machine, and of machines.
      device: "gpu" or "cpu".
      threads: cores for this rank's computations.
      machine_cores: the cores of all ranks of this machine together.
      stop_wanted: set once SIGUSR1 came; the next training step saves and stops on all ranks.
      notes: one line for each decision worth telling, the same on every rank of a node.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int = 0
    num_nodes: int = 1
    device: str = "cpu"
    threads: int = 1
    machine_cores: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    comm: Any = field(default=None, repr=False)
    program: str = "python"
    user_errors: tuple[type[BaseException], ...] = field(default=(InputError, OSError), repr=False)
    stop_wanted: threading.Event = field(default_factory=threading.Event, repr=False)

    def __str__(self) -> str:
        machines = f" on {self.num_nodes} machine{'s' * (self.num_nodes > 1)}"
        return f"{self.size} rank{'s' * (self.size > 1)}{machines}, {self.device}, {self.threads} threads per rank"

    @classmethod
    def join(
        cls,
        device: DeviceSettings | None = DeviceSettings(),  # noqa: B008 — it is frozen
        program: str | None = None,
        user_errors: tuple[type[BaseException], ...] = (),
    ) -> "World":
        """Joins MPI, gives each local rank its GPU and cores; call it before the first TensorFlow operation.

        Use it as a context manager: an exception or a `sys.exit` with an error that leaves the block on any rank
        ends all ranks. InputError, OSError and `user_errors` are shown as one line, other errors with a traceback.
        `device` None is for programs that compute nothing: TensorFlow is not imported.

        Raises InputError if a launcher started several processes that MPI sees as one each, or if no GPU fits.
        """
        program = program or Path(sys.argv[0]).name
        comm, why_alone = _communicator()
        world = cls(comm=comm, program=program, user_errors=(InputError, OSError, *user_errors))
        if comm is not None:
            world = _place(world, comm)
        with world:
            _check_launcher(world.size, why_alone, os.environ)
            faulthandler.register(signal.SIGTERM, chain=True)  # a rank stuck in MPI shows where
            signal.signal(signal.SIGUSR1, lambda *_: world.stop_wanted.set())
            threading.excepthook = lambda failed: world._thread_failed(failed.exc_value)
            world = _with_cores(world)
            return world if device is None else _with_device(world, device)

    # -- messages between ranks -------------------------------------------------------------------------------

    def barrier(self) -> None:
        """Waits for all ranks without spinning on a core."""
        if self.comm is None:
            return
        request, pause = self.comm.Ibarrier(), POLL_S[0]
        while not request.Test():
            time.sleep(pause)
            pause = min(2 * pause, POLL_S[1])

    def broadcast(self, value: T) -> T:
        """Rank 0's value on every rank (pickled)."""
        if self.comm is None:
            return value
        self.barrier()
        return self.comm.bcast(value, root=0)

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value on rank 0, in order of rank; None elsewhere (pickled)."""
        if self.comm is None:
            return [value]
        self.barrier()
        return self.comm.gather(value, root=0)

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value on every rank, in order of rank (pickled)."""
        if self.comm is None:
            return [value]
        self.barrier()
        return self.comm.allgather(value)

    def all_reduce_sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over ranks of a small float64 array."""
        values = np.ascontiguousarray(values, np.float64)
        if self.comm is None:
            return values
        total = np.empty_like(values)
        self.comm.Allreduce(values, total)
        return total

    def on_first(self, function: Callable[..., T], *args) -> T:
        """Calls `function(*args)` on rank 0 alone; its result, or its exception, reaches every rank."""
        if self.size == 1:
            return function(*args)
        outcome: tuple[str, Any] = ("", None)
        error: BaseException | None = None
        if self.rank == 0:
            try:
                outcome = ("value", function(*args))
                pickle.dumps(outcome[1])
            except BaseException as caught:
                error, outcome = caught, ("error", f"{type(caught).__name__}: {caught}")
        kind, content = self.broadcast(outcome)
        if error is not None:
            raise error
        if kind == "error":
            raise FirstRankError(content)
        return outcome[1] if self.rank == 0 else content

    def on_each_machine(self, function: Callable[..., T], *args) -> T:
        """Calls `function` on rank 0, then on the first rank of every other machine, while all others wait.

        For what is kept in files: on a shared file system the others find it done. Meanwhile that rank may use the
        cores of its machine's other ranks, too: threads that it starts, as tokenizers does, run on all of them, to
        their end.
        Returns the result of this machine's first rank.
        """
        result = self.on_first(self._on_all_cores, function, *args)
        if self.local_rank == 0 and self.rank > 0:
            result = self._on_all_cores(function, *args)
        return _on_node(self, result)[0]

    def _on_all_cores(self, function: Callable[..., T], *args) -> T:
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.machine_cores or mine)
        try:
            return function(*args)
        finally:
            os.sched_setaffinity(0, mine)

    def agree(self, facts: Mapping[str, object]) -> None:
        """Stops every rank unless all hold the same facts (name -> anything with a stable `str`).

        Raises InputError that names each fact that differs and its value on each rank.
        """
        mine = {name: str(value) for name, value in facts.items()}
        everyone = self.all_gather(mine)
        for name in dict.fromkeys(name for facts_of_rank in everyone for name in facts_of_rank):
            values = [facts_of_rank.get(name, "nothing") for facts_of_rank in everyone]
            if len(set(values)) > 1:
                told = "; ".join(
                    f"rank{'s' if values.count(value) > 1 else ''} "
                    f"{','.join(str(rank) for rank, v in enumerate(values) if v == value)}: {value}"
                    for value in dict.fromkeys(values)
                )
                raise InputError(f"the ranks disagree about {name}: {told}")

    def say(self, text: str) -> None:
        """Prints a line to standard error, once for the whole job."""
        if self.rank == 0:
            print(text, file=sys.stderr, flush=True)

    # -- the end ----------------------------------------------------------------------------------------------

    def __enter__(self) -> "World":
        return self

    def __exit__(self, kind, error, trace) -> Literal[False]:
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            return False
        if isinstance(error, Preempted):
            self.barrier()  # every rank leaves in the same way
            return False
        if self.size == 1 and isinstance(error, self.user_errors):
            # Under a launcher of another MPI each process is alone and fails alike: one of them tells.
            if launched_rank() == "0":
                print(f"{self.program}: error: {one_line(error)}", file=sys.stderr, flush=True)
            else:
                time.sleep(1)
            raise SystemExit(1) from None
        if self.size > 1:
            self._end_all(error)
        return False

    def _thread_failed(self, error: BaseException | None) -> None:
        """Ends the job for an exception that nothing in its thread caught: a prefetcher's, a writer's."""
        if error is None or isinstance(error, SystemExit):
            return
        if self.size > 1:
            self._end_all(error)
        if isinstance(error, self.user_errors):
            print(f"{self.program}: error: {one_line(error)}", file=sys.stderr, flush=True)
        else:
            traceback.print_exception(error)
        sys.stdout.flush()
        os._exit(1)

    def _end_all(self, error: BaseException) -> None:
        """Reports the error once and ends all ranks; does not return."""
        faulthandler.unregister(signal.SIGTERM)  # this rank knows why it ends
        status = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        if isinstance(error, FirstRankError):
            time.sleep(8)  # rank 0 tells the reason, and its abort ends this process meanwhile
        elif self.rank > 0:
            # Where several ranks fail alike the lowest tells, and its abort ends the others as they wait.
            time.sleep(min(0.5 + 0.5 * self.rank, 7))
        if isinstance(error, self.user_errors):
            text = f"{self.program}: error: {one_line(error)}"
        elif isinstance(error, SystemExit):
            text = f"{self.program}: rank {self.rank} of {self.size} exits: {error.code}"
        else:
            trace = "".join(traceback.format_exception(error))
            text = f"{self.program}: failed on rank {self.rank} of {self.size}\n{trace}"
        print(text, file=sys.stderr, flush=True)
        sys.stdout.flush()
        time.sleep(0.2)  # ranks that fail with this one get so far, too, and show no stack when they are ended
        self.comm.Abort(status)


def _communicator() -> tuple[Any, str]:
    """MPI's world communicator, or None and the reason why there is none."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        return None, f"mpi4py is not installed ({error})"
    except RuntimeError as error:
        return None, f"no MPI library was found ({str(error).splitlines()[0]})"
    return (MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None), "MPI sees one process"


def _check_launcher(size: int, why_alone: str, environ: Mapping[str, str]) -> None:
    for name in LAUNCHER_SIZES:
        started = environ.get(name, "")
        if started.isdigit() and int(started) > 1 and size == 1:
            raise InputError(
                f"{name}={started}: the launcher started {started} processes, but each is alone: {why_alone}; "
                "use the mpirun that belongs to mpi4py's MPI library (bert-launch finds it), or srun --mpi=pmix"
            )


def _place(world: World, comm) -> World:
    from mpi4py import MPI

    local = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    leaders = comm.allgather(comm.rank if local.rank == 0 else -1)
    leader = local.bcast(comm.rank, root=0)
    nodes = [rank for rank in leaders if rank >= 0]
    return replace(
        world,
        rank=comm.rank,
        size=comm.size,
        local_rank=local.rank,
        local_size=local.size,
        node=nodes.index(leader),
        num_nodes=len(nodes),
    )


def _on_node(world: World, value: T) -> list[T]:
    """The values of this machine's ranks, in order of local rank."""
    everyone = world.all_gather((world.node, value))
    return [other for node, other in everyone if node == world.node]


def _with_cores(world: World) -> World:
    masks = _on_node(world, frozenset(os.sched_getaffinity(0)))
    threads, remark = share_cores(masks, world.local_rank, os.cpu_count() or 1)
    together = frozenset().union(*masks)
    return replace(world, threads=threads, machine_cores=together, notes=(remark,) if remark else ())


def _with_device(world: World, settings: DeviceSettings) -> World:
    start_tensorflow(world.threads)
    gpus = usable_gpus(settings.device)
    has_gpus = world.all_gather(bool(gpus))
    if any(has_gpus) and not all(has_gpus):
        without = ",".join(str(rank) for rank, has_gpu in enumerate(has_gpus) if not has_gpu)
        raise InputError(f"ranks {without} see no GPU, but the others do: give each rank one, or --device cpu")
    if not gpus:
        use_gpu(None)
        return world
    index = choose_gpu(_on_node(world, gpus), world.local_rank, settings.share_gpus)
    use_gpu(index)
    return replace(world, device="gpu", notes=(*world.notes, f"GPU {gpus[index][:8]} of {len(gpus)}"))
