"""Horovod's `horovod.keras` (`ringbert.horovod`)."""

from typing import NoReturn

from ringbert.horovod import *  # noqa: F403
from ringbert.horovod import __all__ as __all__
from ringbert.horovod.absent import refuse


def __getattr__(name: str) -> NoReturn:
    refuse(__name__, name)
