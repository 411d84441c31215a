"""Training goes on without ranks that died: `bert-launch --elastic`, with Open MPI's ULFM.

MPI (User Level Failure Mitigation, Bland et al. 2013) reports a death to some of the survivors, in
whichever message they wait. `surviving` revokes the communicators, so that the others hear of it
too, joins the survivors' new one, and calls the work again. Training then begins by giving all of
them the variables and the state of the rank that is furthest (`TrainingStep.synchronize`).
"""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from distributed import launcher
from distributed.joining import place_in, started
from distributed.watchdog import StallError
from distributed.world import World
from ringbase.errors import InputError

T = TypeVar("T")


class Elsewhere(Exception):
    """Some survivors stand at other places of the program, which all repeat from its beginning."""


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
    world.names = tuple(world.all_gather(f"rank {world.rank} on {started().Get_processor_name()}"))


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
            # MPI has codes for a death, but Open MPI 5.0 also reports one amid a barrier as "other
            # error".
            if not (world.is_elastic and isinstance(error, started().Exception)):
                raise
            if not _regroup(world, place, error) and place:
                raise Elsewhere from error


def _regroup(world: World, place: str, error: BaseException) -> bool:
    """Joins the other survivors: `world` then has its new rank, size and communicator. Returns
    whether all are at this place. Raises RuntimeError if no rank died."""
    before, name, places = world.names, world.names[world.rank], None
    # The watchdog does not watch over ranks that regroup, and MPI may wait without end.
    timeout_s = world.watchdog.settings.stall_timeout if world.watchdog.settings else 0
    text = f"the ranks did not regroup after a death within --stall_timeout {timeout_s:g} s"
    timer = threading.Timer(timeout_s, world.fail, [StallError(text)])
    timer.daemon = True
    if timeout_s:
        timer.start()
    while places is None:
        # another death meanwhile
        with world.watchdog.working(), contextlib.suppress(started().Exception):
            for communicator in (*world.derived, world.comm):
                communicator.Revoke()
            world.derived.clear()
            world.comm = world.comm.Shrink()
            vars(world).update(place_in(world.comm))
            world.watchdog.start(world.comm, world.fail)
            world.names, places = zip(*world.all_gather((name, place)), strict=True)
    timer.cancel()
    if world.names == before:
        raise RuntimeError(f"MPI reports an error, but all ranks are alive: {error}") from error
    died = " and ".join(name for name in before if name not in world.names)
    world.say(f"{died} died: {'1 rank goes' if world.size == 1 else f'{world.size} ranks go'} on")
    return len(set(places)) == 1
