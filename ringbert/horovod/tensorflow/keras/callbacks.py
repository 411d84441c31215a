"""The callbacks of `ringbert.horovod.callbacks`, under the name of Horovod's module."""

from ringbert.horovod.callbacks import *  # noqa: F403
from ringbert.horovod.callbacks import __all__ as __all__
