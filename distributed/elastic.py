"""Training goes on without ranks that died: `bert-launch --elastic`, with Open MPI's ULFM.

MPI reports a death to some of the survivors, in whichever message they wait. What every survivor then does, in
`recover`: it revokes the communicators, so that those who wait for a living rank hear of it too; it votes that the
work in progress does not count; and it joins the survivors' new communicator.

The vote decides for all. A step ends with `commit`, in which each rank votes that its sum arrived, and the update
follows only if all did. So each rank votes once per communicator and loss: in `commit`, or else in `recover`.

The operations are those of User Level Failure Mitigation (Bland et al. 2013, "Post-failure recovery of MPI
communication capability").
"""

import atexit
import os
import sys

from distributed.joining import place_in
from distributed.world import World
from ringbase.errors import InputError

VARIABLE = "RINGBERT_ELASTIC"  # set by bert-launch --elastic


class RankLost(Exception):
    """A rank died, and the survivors have voted that the work in progress does not count."""


class Elsewhere(Exception):
    """The survivors stand at different places of the program, which they repeat from its beginning."""


def enable(world: World) -> None:
    """Makes a world elastic if bert-launch asks for it. Raises InputError if MPI cannot go on without a rank."""
    if world.comm is None or os.environ.get(VARIABLE, "0") == "0":
        return
    from mpi4py import MPI

    try:
        world.comm.Get_failed().Free()
    except (MPI.Exception, NotImplementedError) as error:
        raise InputError(
            f"--elastic needs an MPI with ULFM, such as Open MPI 5 started with --with-ft ulfm ({error})"
        ) from None
    world.is_elastic = True
    atexit.register(_leave, world)
    world.name = f"rank {world.rank} on {MPI.Get_processor_name()}"
    world.names = world.names_told = tuple(world.all_gather(world.name))


def is_loss(world: World, error: BaseException) -> bool:
    """Whether an error may say that a rank of an elastic world died. `recover` finds out whether one did.

    MPI has codes for it, but Open MPI 5.0 also reports a death in the middle of a barrier as "other error".
    """
    if not world.is_elastic:
        return False
    from mpi4py import MPI

    return isinstance(error, (RankLost, MPI.Exception))


def commit(world: World) -> None:
    """Returns on every rank, or on none, once all ranks have called it. Raises RankLost if one did not live to.

    In a world that is not elastic it does nothing.
    """
    if world.is_elastic:
        with world.operation("the vote on a step"):
            if not _vote(world, True):
                raise RankLost


def recover(world: World, error: BaseException, place: tuple) -> list[tuple]:
    """Joins the survivors after a loss that `error` told. `world` then has its new rank, size and communicator.

    Returns `place`, what it was doing, of each survivor. May raise the next loss, to be handled in the same way,
    or RuntimeError if no rank died.
    """
    with world.watchdog.working():
        for communicator in (*world.derived, world.comm):
            communicator.Revoke()
        if not isinstance(error, RankLost):
            _vote(world, False)
        world.derived.clear()
        world.comm = world.comm.Shrink()
    for field, value in place_in(world.comm).items():
        setattr(world, field, value)
    world.watchdog.restart(world.comm)
    names, places = zip(*world.all_gather((world.name, place)), strict=True)
    before, world.names = world.names, names
    if names == before:
        raise RuntimeError(f"MPI reports an error, but all ranks are alive: {error}") from error
    return list(places)


def message(world: World) -> str:
    """A line for the user about the deaths since the last one."""
    died = [name for name in world.names_told if name not in world.names]
    world.names_told = world.names
    goes_on = "1 rank goes on" if world.size == 1 else f"{world.size} ranks go on"
    return f"{' and '.join(died)} died: {goes_on}"


def _leave(world: World) -> None:
    """Ends a process whose world lost ranks. MPI_Finalize, which Python would call next, can wait for them."""
    if world.size < world.launched_size:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(world.exit_status)


def _vote(world: World, is_done: bool) -> bool:
    """Whether all ranks vote yes. Every survivor gets the same answer."""
    from mpi4py import MPI

    try:
        return bool(world.comm.Agree(int(is_done)))
    except MPI.Exception:  # raised on all of them, if one died before its vote
        return False
