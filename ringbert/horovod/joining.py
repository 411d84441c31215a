"""`join`: a rank whose data have ended waits for the others."""

import tensorflow as tf

from ringbase.errors import InputError
from ringbert.horovod.gradients import COMPARISON, SUM_NAME, add_nothing
from ringbert.horovod.operations import Average, Sum, as_written, gatherer, reducer
from ringbert.horovod.session import Call, Session, current


@as_written
def join() -> int:
    """For a rank whose data have ended: waits until all ranks call it, and returns the rank that did so last.

    Until then this rank takes part in the sums of the others, which are averaged over the ranks that have data.
    Messages other than `allreduce`, `allgather` and the gradients of an optimizer or tape cannot go on without it.
    """
    session = current()
    return session.join(lambda call: take_part(session, call))


def take_part(session: Session, call: Call) -> None:
    """What a rank without data adds to a call of the others: nothing."""
    if call.what == "hvd.allreduce":
        op, prescale, postscale, *kinds = call.kind
        if op not in (Average, Sum):
            raise InputError(f"hvd.join: op={op} cannot go on without a rank")
        reduce = reducer(session, op, prescale, postscale)
        reduce(*(tf.zeros(shape, dtype) for dtype, shape in kinds))
    elif call.what == "hvd.allgather":
        dtype, shape = call.kind
        gatherer(session)(tf.zeros([0, *shape], dtype))
    elif call.what in (SUM_NAME, COMPARISON):
        add_nothing(session, call)
    else:
        raise InputError(f"{call.what} cannot go on without the ranks that have called hvd.join()")
