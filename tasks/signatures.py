"""Functions of the Python interface whose wrong arguments raise InputError, as everywhere, and not TypeError."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ringbase.errors import InputError
from tasks.flags import nearest

P = ParamSpec("P")
R = TypeVar("R")


def with_checked_names(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a call with an unknown name, too many or too few arguments raise InputError, one line."""
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__")
    known = [parameter for parameter in signature.parameters if parameter != "self"]

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            signature.bind(*arguments, **named)
        except TypeError as error:
            for other in named:
                if other not in known:
                    near = nearest(other, known)
                    hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
                    raise InputError(f"{name} has no argument {other}; {hint}") from None
            raise InputError(f"{name}: {error}; its arguments are {', '.join(known)}") from None
        return function(*arguments, **named)

    return call
