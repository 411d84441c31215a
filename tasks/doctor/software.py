"""Checks of the installed software: versions, our own files, the MPI library and its launcher."""

import base64
import hashlib
import importlib.metadata
import os
import platform
from pathlib import Path

import tensorflow as tf

from distributed.joining import library
from distributed.mpirun import OPEN_MPI, find_mpi
from distributed.versions import versions
from distributed.world import World
from ringbase.errors import InputError
from tasks import PACKAGES, SITE
from tasks.doctor.page import Finding, failed, ok, warning

TENSORFLOW = "2.21"
SHOWN = ("ringbert", "tensorflow", "tensorflow-cpu", "keras", "transformers", "numpy", "mpi4py")


def check_versions(world: World) -> Finding:
    """The packages that a result depends on: the same on every rank, and those that RingBERT is made for."""
    installed = versions()
    shown = ", ".join(f"{name} {installed[name]}" for name in SHOWN if name in installed)
    try:
        world.agree({"Python": platform.python_version(), **installed})
    except InputError as error:
        return failed(str(error), "install the same environment on every host, at the same path")
    if {"tensorflow", "tensorflow-cpu"} <= installed.keys():
        return failed(
            "tensorflow and tensorflow-cpu are both installed and overwrite each other's files",
            "make a new environment with one of ringbert's extras, cpu or gpu",
        )
    build = tf.sysconfig.get_build_info()
    kind = f"CUDA {build['cuda_version']}" if build["is_cuda_build"] else "CPUs"
    text = f"Python {platform.python_version()}, {shown}; TensorFlow is built for {kind}"
    if not tf.__version__.startswith(f"{TENSORFLOW}."):
        advice = f"pip install 'tensorflow=={TENSORFLOW}.*' (or tensorflow-cpu)"
        return warning(f"{text}; RingBERT is tested with TensorFlow {TENSORFLOW} only", advice, **installed)
    return ok(text, python=platform.python_version(), **installed)


def check_files() -> Finding:
    """Whether our installed modules are as pip's list of them says. A checkout has no such list."""
    changed = [file for file in _listed_files() if file.hash and _sha256(SITE / file) != file.hash.value]
    if changed:
        names = f"{SITE / changed[0]}" + f" and {len(changed) - 1} more" * (len(changed) > 1)
        return warning(
            f"not as ringbert's package has them: {names}",
            "unless you have edited them, another package has overwritten them: install ringbert anew, in an "
            "environment of its own",
        )
    return ok(f"{SITE}: as installed")


def _listed_files() -> list[importlib.metadata.PackagePath]:
    try:
        distribution = importlib.metadata.distribution("ringbert")
    except importlib.metadata.PackageNotFoundError:
        return []
    if Path(str(distribution.locate_file(""))).resolve() != SITE:
        return []
    return [file for file in distribution.files or () if file.parts[0] in PACKAGES and file.suffix == ".py"]


def _sha256(path: Path) -> str:
    """The digest of a file in the form of the list of installed files (PEP 376); empty if it is missing."""
    raw = path.read_bytes() if path.is_file() else b""
    return base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()


def check_mpi(world: World) -> Finding:
    """Whether the launcher and mpi4py use one MPI library, and whether bert-launch would find its mpirun."""
    ours = library()
    if ours is None:
        return warning(
            "one rank only: there is no mpi4py or no MPI library",
            "for several ranks pip install '.[mpi]' in ringbert's checkout, or load the cluster's MPI module",
        )
    launcher = os.environ.get("OMPI_VERSION", ours.version)
    if world.size > 1 and ours.name == OPEN_MPI and launcher != ours.version:
        return warning(
            f"mpirun of Open MPI {launcher} has started processes that use {ours}",
            "start with bert-launch, which finds the mpirun of mpi4py's library",
        )
    if world.size > 1:
        return ok(f"{ours}, the launcher's and mpi4py's; {world.size} ranks")
    try:
        mpi = find_mpi()
    except InputError as error:
        return warning(f"mpi4py uses {ours}, but {error}", "only one rank can be started until there is an mpirun")
    version = ".".join(map(str, mpi.version[:2]))
    if mpi.implementation != ours.name or (ours.name == OPEN_MPI and not ours.version.startswith(version)):
        return failed(
            f"mpi4py uses {ours}, but {mpi.mpirun} belongs to {mpi.implementation} {version}: "
            "each rank would be alone",
            "load the MPI module that mpi4py was built with, or pip install '.[mpi]' into this environment",
        )
    return ok(f"{ours}, mpi4py's and that of {mpi.mpirun}; one rank")
