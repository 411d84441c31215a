"""Training goes on without ranks that died: `bert-launch --elastic`, with Open MPI's ULFM.

MPI reports a death to some of the survivors, in whichever message they wait. `surviving` then revokes the
communicators, so that those who wait for a living rank hear of it too, joins the survivors' new communicator, and
calls the work again. Training then begins by giving all of them the variables and the state of the rank that is
furthest (`TrainingStep.synchronize`).

The operations are those of User Level Failure Mitigation (Bland et al. 2013, "Post-failure recovery of MPI
communication capability").
"""

import os
from collections.abc import Callable
from typing import TypeVar

from distributed.joining import place_in
from distributed.world import World
from ringbase.errors import InputError

T = TypeVar("T")
VARIABLE = "RINGBERT_ELASTIC"  # set by bert-launch --elastic


class Elsewhere(Exception):
    """Some survivors stand at other places of the program, which all repeat from its beginning."""


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
    world.names = tuple(world.all_gather(f"rank {world.rank} on {MPI.Get_processor_name()}"))


def surviving(world: World, place: str, work: Callable[[], T]) -> T:
    """What `work()` returns. After deaths the survivors call it again, all of them together.

    `place` names the work. Survivors that stand at different places leave theirs, up to the one named "".
    """
    while True:
        try:
            return work()
        except Elsewhere:
            if place:
                raise
        except Exception as error:
            if not is_loss(world, error):
                raise
            if not _regroup(world, place, error) and place:
                raise Elsewhere from error


def is_loss(world: World, error: BaseException) -> bool:
    """Whether an error may say that a rank of an elastic world died; `surviving` then asks whether one did.

    MPI has codes for it, but Open MPI 5.0 also reports a death in the middle of a barrier as "other error".
    """
    if not world.is_elastic:
        return False
    from mpi4py import MPI

    return isinstance(error, MPI.Exception)


def _regroup(world: World, place: str, error: BaseException) -> bool:
    """Joins the other survivors: `world` then has its new rank, size and communicator. Returns whether all are at
    this place. Raises RuntimeError if no rank died."""
    from mpi4py import MPI

    before, name = world.names, world.names[world.rank]
    while True:
        with world.watchdog.working():
            for communicator in (*world.derived, world.comm):
                communicator.Revoke()
            world.derived.clear()
            try:
                world.comm = world.comm.Shrink()
                for field, value in place_in(world.comm).items():
                    setattr(world, field, value)
                world.watchdog.restart(world.comm)
                names, places = zip(*world.all_gather((name, place)), strict=True)
                break
            except MPI.Exception:  # another death meanwhile
                continue
    world.names = names
    if names == before:
        raise RuntimeError(f"MPI reports an error, but all ranks are alive: {error}") from error
    died = " and ".join(name for name in before if name not in names)
    goes_on = "1 rank goes on" if world.size == 1 else f"{world.size} ranks go on"
    world.say(f"{died} died: {goes_on}")
    return len(set(places)) == 1
