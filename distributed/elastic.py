"""Training goes on without ranks that died: `bert-launch --elastic`, with Open MPI's ULFM.

MPI (User Level Failure Mitigation, Bland et al. 2013) reports a death to some of the survivors, in
whichever message they wait. `surviving` revokes the communicators, so that the others hear of it
too, joins the survivors' new one, and calls the work again. Training then begins by giving all of
them the variables and the state of the rank that is furthest (`TrainingStep.synchronize`).
"""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from distributed import launcher
from distributed.joining import started
from distributed.ranks import Ranks
from distributed.watchdog import StallError
from distributed.world import World
from ringbase.errors import InputError

T = TypeVar("T")


class Elsewhere(Exception):
    """The survivors cannot go on together where they are: they stand at different places of the
    program, or none has all values of a state. All repeat it from its beginning."""


def enable(world: World) -> None:
    """Makes a world elastic if bert-launch asks for it. Raises InputError if MPI cannot go on
    without a rank."""
    if world.comm is None or os.environ.get(launcher.ELASTIC, "0") == "0":
        return
    try:
        world.comm.Get_failed().Free()
    except (started().Exception, NotImplementedError) as error:
        raise InputError(
            f"--elastic needs ULFM, as in Open MPI 5 under --with-ft ulfm ({error})"
        ) from None
    names = world.all_gather(f"rank {world.rank} on {started().Get_processor_name()}")
    world.ranks = replace(world.ranks, names=tuple(names))


def surviving(world: World, place: str, work: Callable[[], T]) -> T:
    """What `work()` returns. After deaths the survivors call it again, all of them together.
    `place` names the work: survivors that stand at different places leave theirs, up to the one
    named ""."""
    while True:
        try:
            return work()
        except Elsewhere:
            if place:
                raise
        except Exception as error:
            if not _can_be_of_death(world, error):
                raise
            if not regroup(world, place, error) and place:
                raise Elsewhere from error


def _can_be_of_death(world: World, error: Exception) -> bool:
    """Whether an error can follow from a death: MPI's own, whatever its code, because Open MPI 5.0
    also reports a death amid a barrier as "other error"; and any once this rank knows of one,
    because a message that it cut short can be garbage."""
    is_of_mpi = world.ranks.is_elastic and isinstance(error, started().Exception)
    return is_of_mpi or world.ranks.knows_of_death()


def regroup(world: World, place: str, error: BaseException) -> bool:
    """Joins the other survivors, which are then the ranks of the world. Returns whether all are at
    this place. Raises RuntimeError if no rank died."""
    before = world.ranks
    name, places = before.names[before.rank], None
    # The watchdog does not watch over ranks that regroup, and MPI may wait without end.
    timeout_s = world.watchdog.settings.stall_timeout if world.watchdog.settings else 0
    text = f"the ranks did not regroup after a death within --stall_timeout {timeout_s:g} s"
    timer = threading.Timer(timeout_s, world.fail, [StallError(text)])
    timer.daemon = True
    if timeout_s:
        timer.start()
    while places is None:
        try:
            with world.watchdog.working():
                world.revoke()
                # at once: another death while their places are found out is one among these
                world.ranks = replace(world.ranks, comm=world.comm.Shrink())
                world.ranks = Ranks.of(world.comm, before.launched_size, before.names)
                world.watchdog.start(world.comm, world.fail)
                names, places = zip(*world.all_gather((name, place)), strict=True)
                world.ranks = replace(world.ranks, names=names)
        except Exception as again:  # another death meanwhile
            if not _can_be_of_death(world, again):
                raise
    timer.cancel()
    if world.ranks.names == before.names:
        raise RuntimeError(f"MPI reports an error, but all ranks are alive: {error}") from error
    died = " and ".join(name for name in before.names if name not in world.ranks.names)
    world.say(f"{died} died: {'1 rank goes' if world.size == 1 else f'{world.size} ranks go'} on")
    return len(set(places)) == 1
