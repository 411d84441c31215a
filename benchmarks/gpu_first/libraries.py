"""A folder of CUDA's libraries under the names of CUDA 12, which TensorFlow 2.21's GPU wheel looks for.

    python -m benchmarks.gpu_first libraries folder
    source folder/environment.sh    # sets LD_LIBRARY_PATH

For a machine that has another CUDA, without root and without a network. A library of the right name is linked. For
cuBLAS another version will do, because the functions that TensorFlow calls are the same. TensorFlow also wants to
open three libraries that BERT never calls: for those that are not there, empty ones are made. CUDA's runtime must
be that of CUDA 12; its wheel, nvidia-cuda-runtime-cu12, is small.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ringbase.errors import InputError

EXACT = ("libcudart.so.12", "libcudnn.so.9", "libnccl.so.2")
ANY_VERSION = ("libcublas.so.12", "libcublasLt.so.12")
NEVER_CALLED = ("libcufft.so.11", "libcusolver.so.11", "libcusparse.so.12")
ENVIRONMENT = "environment.sh"
SYSTEM_FOLDERS = ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")


def make_folder(folder: Path, searched: Sequence[Path] = ()) -> dict[str, str]:
    """Fills the folder. Returns what each name stands for: a path, or "empty".

    Args:
      searched: folders with libraries; by default those of the installed packages, LD_LIBRARY_PATH and the system.

    Raises InputError: a library is missing.
    """
    searched = searched or default_folders()
    chosen = {name: find(name, searched) for name in (*EXACT, *ANY_VERSION, *NEVER_CALLED)}
    for name in ANY_VERSION:
        chosen[name] = chosen[name] or find_version(name.split(".so.")[0], searched)
    missing = [name for name in (*EXACT, *ANY_VERSION) if chosen[name] is None]
    if missing:
        raise InputError(f"not found in {', '.join(map(str, searched))}: {', '.join(missing)}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in chosen.items():
        link = folder / name
        link.unlink(missing_ok=True)
        if path is None:
            make_empty(link)
        else:
            link.symlink_to(path)
    # A linked library looks beside the link for those that it needs itself, so their folders must be known too.
    folders = [folder.absolute(), *dict.fromkeys(path.parent for path in chosen.values() if path)]
    line = f"export LD_LIBRARY_PATH={':'.join(map(str, folders))}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n"
    (folder / ENVIRONMENT).write_text(line)
    return {name: str(path or "empty") for name, path in chosen.items()}


def default_folders() -> list[Path]:
    packages = [folder for path in sys.path for folder in sorted(Path(path).glob("nvidia/*/lib"))]
    from_environment = [Path(part) for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    return [*packages, *from_environment, *(Path(folder) for folder in SYSTEM_FOLDERS)]


def find(name: str, folders: Sequence[Path]) -> Path | None:
    return next((folder.resolve() / name for folder in folders if (folder / name).exists()), None)


def find_version(stem: str, folders: Sequence[Path]) -> Path | None:
    """The newest version of a library in the first folder that has one."""
    for folder in folders:
        numbers = [path.name.removeprefix(f"{stem}.so.") for path in folder.glob(f"{stem}.so.*")]
        if versions := [int(number) for number in numbers if number.isdecimal()]:
            return folder.resolve() / f"{stem}.so.{max(versions)}"
    return None


def make_empty(path: Path, *needed: str) -> None:
    """A shared library without functions, which needs others. Raises InputError: there is no C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.c"
        source.write_text("static int nothing __attribute__((unused));\n")
        command = [
            "cc",
            "-shared",
            "-fPIC",
            "-Wl,--no-as-needed",
            f"-Wl,-soname,{path.name}",
            "-o",
            str(path),
            str(source),
            *needed,
        ]
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            raise InputError(f"{path.name} is not here, and there is no C compiler (cc) to make it") from None
