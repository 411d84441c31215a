"""Horovod's names of modules, and what it has and RingBERT has not: that may be named, and says so
in one line where it is used or imported."""

import os
import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn

from distributed.horovodrun import ALWAYS
from ringbase.errors import InputError
from ringbert.horovod.session import PAGE, Unsupported

PACKAGE = "ringbert.horovod"
VERSION = "0.28.1"  # of Horovod, whose names these are
NO_DATA_SERVICE = "use tf.data.experimental.service itself, or give each rank its shard of the data"
START = "start the script with bert-launch or mpirun"
INSIDE = "it is a part of Horovod's inside"
# What Horovod has and RingBERT has not, and what to do instead.
ABSENT = {
    "BroadcastGlobalVariablesHook broadcast_global_variables": (
        "TensorFlow 1's sessions are gone: hvd.broadcast_variables(model.variables, 0)"
    ),
    "start_timeline stop_timeline": "use TensorFlow's profiler, or keras.callbacks.TensorBoard",
}
ABSENT_MODULES = {
    "run runner spark ray": START,
    "data tensorflow.data": NO_DATA_SERVICE,
    "torch mxnet": "it is for Keras and TensorFlow; PyTorch has torch.distributed",
    "common.util common.basics common.elastic tensorflow.gradient_aggregation _keras": INSIDE,
    "tensorflow.gradient_aggregation_eager": INSIDE,
}
# Horovod's modules whose names stand in the package itself.
OF_PACKAGE = ["mpi_ops", "functions", "compression", "util", "sync_batch_norm"]


class AbsentModule(ModuleNotFoundError, InputError):
    """A module of Horovod's that has no counterpart."""


class Absent:
    """What has no counterpart. It may be named, as in a branch that is not taken, of which
    AutoGraph looks up all names."""

    def __init__(self, name: str, reason: str):
        self._reason = f"hvd.{name} has no counterpart in RingBERT: {reason} ({PAGE})"

    def _refuse(self, *args, **options) -> NoReturn:
        raise Unsupported(self._reason)

    __call__ = __mro_entries__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # by which libraries look at any object
            raise AttributeError(name)
        self._refuse()


class Finder(MetaPathFinder):
    """Says of modules that have no counterpart what to do instead."""

    def find_spec(self, fullname, path, target=None):
        package = sys.modules.get(PACKAGE)
        for root in (PACKAGE, "horovod"):  # which may also be Horovod itself
            if fullname.startswith(f"{root}.") and sys.modules.get(root) is package:
                name = fullname.removeprefix(f"{root}.")
                if reason := reason_of(name) or reason_of(name.removeprefix("tensorflow.")):
                    text = f"{fullname} has no counterpart in RingBERT: {reason} ({PAGE})"
                    raise AbsentModule(text, name=fullname)
        return


def reason_of(module: str) -> str | None:
    """Why there is no such module."""
    for names, reason in ABSENT_MODULES.items():
        if any(f"{module}.".startswith(f"{name}.") for name in names.split()):
            return reason
    return None


def absent() -> dict[str, Absent]:
    """The attributes of the package that have no counterpart."""
    all_names: Mapping[str, str] = ABSENT | ABSENT_MODULES
    return {
        name: Absent(name, reason)
        for names, reason in all_names.items()
        for name in names.split()
        if "." not in name and not name.startswith("_")
    }


def add_modules(root: str) -> None:
    """Lets Horovod's modules be found below `root`, by whatever name scripts import them."""
    package = sys.modules[PACKAGE]
    places = [root, *(f"{root}.{name}" for name in ("tensorflow", "keras", "tensorflow.keras"))]
    for place in places:
        modules = {"callbacks": package.callbacks, "elastic": package.elastic}
        modules |= dict.fromkeys(OF_PACKAGE, package)
        sys.modules |= {place: package}
        sys.modules |= {f"{place}.{name}": module for name, module in modules.items()}
    common = package.common
    sys.modules |= {f"{root}.common": common, f"{root}.common.exceptions": common.exceptions}
    sys.modules[f"{root}.common.process_sets"] = package.process_sets


def take_horovods(shim: str) -> None:
    """Makes this package `horovod` too. Raises InputError if Horovod is installed, unless told to
    come before it."""
    folder = Path(shim).resolve().parents[1]
    others = [path for path in sys.path if Path(path or ".").resolve() != folder]
    spec = PathFinder.find_spec("horovod", others)
    if spec and spec.origin and os.environ.get(ALWAYS) != "always":
        raise InputError(
            f"Horovod is installed ({Path(spec.origin).parent}): leave out --horovod to use it, or"
            " take ringbert.horovod in its place by bert-launch --horovod=always, or python -m"
            " ringbert.horovod --always"
        )
    add_modules("horovod")


sys.meta_path.append(Finder())
