"""bert-doctor: whether RingBERT works on this machine or cluster. One page, green or red, with what to do.

    bert-doctor
    bert-launch -np 8 -H host1:4,host2:4 -- bert-doctor
    srun --mpi=pmix --ntasks-per-node=4 bert-doctor --json

Run it as you would run a training: on the same hosts, with the same number of ranks. It looks at the software, the
hosts, the GPUs, the disks and the network, and computes with small models whose results are known. The exit status
is 0 if nothing failed, else 1.
"""

import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import ringbase
from ringbase.errors import InputError, one_line
from tasks import flags
from tasks.doctor.page import Page, verdict
from tasks.doctor.settings import Config
from tasks.environment import import_tensorflow, set_environment

if TYPE_CHECKING:
    from distributed.doctor.examination import Examination
    from distributed.world import World

JOIN_S = 90.0  # ranks that cannot reach each other wait for ever
SECONDS_FOR_FIRST = 5.0  # a launcher ends all processes as soon as one fails, so the first must print before
SOFTWARE = "software"
DESCRIPTION = """Check whether RingBERT works on this machine or cluster, and print one page with what to do.
Run it as you would run a training: under the same launcher, on the same hosts, with the same number of ranks. The
exit status is 0 if no check failed, else 1."""


def main(argv: Sequence[str] | None = None) -> None:
    config = flags.parse(Config, argv, prog="bert-doctor", description=DESCRIPTION)
    start_s = time.perf_counter()
    set_environment()
    problem = tensorflow_problem()
    page = Page(config.json)
    joined = watched(page, start_s)
    from distributed.environment import check_launcher, launched_rank
    from distributed.joining import communicator
    from distributed.world import World

    comm, why_alone = communicator()
    try:
        check_launcher(1 if comm is None else comm.size, why_alone)
    except InputError:  # each process is alone, and one page is enough
        joined.set()
        if launched_rank() != "0":
            time.sleep(SECONDS_FOR_FIRST)
            raise SystemExit(1) from None
        diagnose(config, World(program="bert-doctor"), page, why_alone, problem).end(1)
    with World.join(None, "bert-doctor", stalls=None) as world:
        world.barrier()
        joined.set()
        exam = diagnose(config, world, page, why_alone, problem)
    exam.end(int(verdict(exam.results) == "red"))


def tensorflow_problem() -> str:
    """Imports TensorFlow. Returns the reason if that fails."""
    try:
        import_tensorflow()
        import tensorflow  # noqa: F401
    except ImportError as error:
        return one_line(error)
    return ""


def watched(page: Page, start_s: float) -> threading.Event:
    """Ends this process with a red page unless the event is set in time, as when ranks cannot reach each other."""
    joined = threading.Event()

    def watch() -> None:
        if joined.wait(JOIN_S):
            return
        from distributed.doctor.examination import Result
        from distributed.environment import launched_rank

        text = f"the ranks have not reached each other within {JOIN_S:.0f} s"
        advice = (
            "open all TCP ports between the hosts, or name the network for MPI, with Open MPI "
            "--mca btl_tcp_if_include 10.0.0.0/24 --mca oob_tcp_if_include 10.0.0.0/24"
        )
        result = Result(SOFTWARE, "MPI", "failed", text, (advice,), JOIN_S, {})
        if launched_rank() == "0":
            page.begin(f"bert-doctor on {socket.gethostname()}")
            page.show(result)
            page.end([result], {"seconds": time.perf_counter() - start_s})
        else:
            time.sleep(SECONDS_FOR_FIRST)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return joined


def diagnose(config: Config, world: "World", page: Page, why_alone: str, problem: str) -> "Examination":
    """Runs all checks and prints the page on rank 0."""
    from distributed.doctor import software
    from distributed.doctor.examination import Check, Examination, Finding, failed, not_tested

    start_s = time.perf_counter()
    exam = Examination(world, page.show)
    ranks = f"{world.size} rank{'s' * (world.size > 1)} on {world.num_nodes} host{'s' * (world.num_nodes > 1)}"
    page.begin(f"RingBERT {ringbase.__version__}: {ranks}, {time.strftime('%Y-%m-%d %H:%M')}")

    def tensorflow(world: "World") -> Finding:
        return failed(problem, software.INSTALL) if problem else software.check_tensorflow(world)

    exam.run(Check(SOFTWARE, "versions", software.check_versions))
    exam.run(Check(SOFTWARE, "MPI", lambda world: software.check_mpi(world, why_alone)))
    exam.run(Check(SOFTWARE, "TensorFlow", tensorflow))
    blocking = next((name for name in ("MPI", "TensorFlow") if exam.status(name) == "failed"), None)
    if blocking:
        exam.run(Check("all other checks", "", lambda world: not_tested(f"{blocking} failed")))
    else:
        from tasks.doctor import checks

        checks.check_hosts(config, exam)
        checks.check_devices(config, exam)
        collectives = checks.check_sums(config, exam)
        checks.check_training(config, exam, collectives)
    if world.rank == 0:
        facts = {
            "ringbert": ringbase.__version__,
            "ranks": world.size,
            "hosts": world.num_nodes,
            "seconds": round(time.perf_counter() - start_s, 1),
        }
        page.end(exam.results, facts)
    return exam


if __name__ == "__main__":
    main()
