"""Checks of the installed software: versions, the MPI library and its launcher, TensorFlow's build."""

import os
import platform
from collections.abc import Mapping

from distributed.doctor.examination import Finding, failed, ok, warning
from distributed.environment import check_launcher
from distributed.joining import library
from distributed.mpirun import OPEN_MPI, LaunchError, find_mpi
from distributed.versions import versions
from distributed.world import World
from ringbase.errors import InputError

TENSORFLOW = "2.21"
SAME_EVERYWHERE = "install the same environment on every host, at the same path"
INSTALL = "in ringbert's checkout pip install '.[cpu]', or '.[gpu]' for NVIDIA GPUs"
SHOWN = ("ringbert", "tensorflow", "tensorflow-cpu", "keras", "transformers", "numpy", "mpi4py")


def check_versions(world: World) -> Finding:
    """The packages that a result depends on: the same on every rank, and those that RingBERT is made for."""
    installed = versions()
    shown = ", ".join(f"{name} {installed[name]}" for name in SHOWN if name in installed)
    text = f"Python {platform.python_version()}, {shown}"
    try:
        world.agree({"Python": platform.python_version(), **installed})
    except InputError as error:
        return failed(str(error), SAME_EVERYWHERE)
    tensorflow = [name for name in ("tensorflow", "tensorflow-cpu") if name in installed]
    if not tensorflow:
        return failed("TensorFlow is not installed", INSTALL)
    if len(tensorflow) > 1:
        return failed(
            "tensorflow and tensorflow-cpu are both installed and overwrite each other's files",
            "make a new environment with one of ringbert's extras, cpu or gpu",
        )
    version = installed[tensorflow[0]]
    if not version.startswith(f"{TENSORFLOW}."):
        return warning(
            f"TensorFlow {version}; RingBERT is tested with {TENSORFLOW} only",
            f"pip install '{tensorflow[0]}=={TENSORFLOW}.*'",
            **installed,
        )
    return ok(text, python=platform.python_version(), **installed)


def check_mpi(world: World, why_alone: str, environment: Mapping[str, str] = os.environ) -> Finding:
    """Whether the launcher and mpi4py use one MPI library.

    Args:
      why_alone: the reason why MPI sees one process, if it does.
    """
    found = library()
    try:
        check_launcher(world.size, why_alone, environment)
    except InputError as error:
        text, _, advice = str(error).partition("; ")
        return failed(f"{text} (mpi4py uses {found})" if found else text, advice)
    if found is None:
        return warning(
            f"one rank only: {why_alone}",
            "for several ranks pip install '.[mpi]' in ringbert's checkout, or load the cluster's MPI module",
        )
    if not found.is_threaded:
        return warning(
            f"{found} does not let several threads send messages, so a check that hangs cannot be stopped",
            "use an MPI library that was built with MPI_THREAD_MULTIPLE",
        )
    if world.size > 1:
        return _launched(found.name, found.version, world.size, environment)
    return _alone(found.name, found.version)


def _launched(name: str, version: str, size: int, environment: Mapping[str, str]) -> Finding:
    launcher = environment.get("OMPI_VERSION", "")
    if name == OPEN_MPI and launcher and launcher != version:
        return warning(
            f"mpirun of Open MPI {launcher} has started processes that use Open MPI {version}",
            "start with bert-launch, which finds the mpirun of mpi4py's library",
        )
    return ok(f"{name} {version}, the launcher's and mpi4py's; {size} ranks", library=name, version=version)


def _alone(name: str, version: str) -> Finding:
    """Without a launcher: whether bert-launch would find an mpirun of mpi4py's library."""
    try:
        mpi = find_mpi()
    except LaunchError as error:
        return warning(
            f"mpi4py uses {name} {version}, but {error}", "only one rank can be started until there is an mpirun"
        )
    found = f"{mpi.implementation} {mpi.version[0]}.{mpi.version[1]}"
    if mpi.implementation != name or (name == OPEN_MPI and not version.startswith(found.split()[-1])):
        return failed(
            f"mpi4py uses {name} {version}, but {mpi.mpirun} belongs to {found}: each rank would be alone",
            "load the MPI module that mpi4py was built with, or pip install '.[mpi]' into this environment",
        )
    return ok(f"{name} {version}, mpi4py's and that of {mpi.mpirun}; one rank", library=name, version=version)


def check_tensorflow(world: World) -> Finding:
    """How TensorFlow was built."""
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    details = {"version": tf.__version__, **{name: str(value) for name, value in build.items()}}
    if not build["is_cuda_build"]:
        return ok(f"TensorFlow {tf.__version__}, CPU build", **details)
    return ok(
        f"TensorFlow {tf.__version__}, built for CUDA {build['cuda_version']} and cuDNN {build['cudnn_version']}",
        **details,
    )
