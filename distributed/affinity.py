"""The cores that a thread may use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cores_of_machine(cores: frozenset[int]) -> Iterator[None]:
    """This thread, with threads that it starts meanwhile, may use these cores; none for its own."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or mine)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)
