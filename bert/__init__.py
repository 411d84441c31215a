"""BERT as one process sees it, of ringbert: tokenizer, model, weights, optimizer. Knows nothing of
ranks."""

import importlib.metadata
import os
from collections.abc import Mapping
from pathlib import Path

ONE_LOOP = "xla_cpu_use_multi_output_fusion"
# Of each version of TensorFlow the flags that XLA knows: an unknown one would end the process.
COMPILES_IN_PARALLEL = {
    "2.21": (
        "--xla_gpu_force_compilation_parallelism={num_threads}",
        "--xla_gpu_enable_llvm_module_compilation_parallelism=true",
    ),
}
KEEPS_TUNING = {"2.21": ("--xla_gpu_per_fusion_autotune_cache_dir={folder}",)}
PACKAGES = "tensorflow", "tensorflow-cpu"


def set_xla_flags(num_threads: int | None = None, tuning: Path | None = None) -> None:
    """Adds the flags for `bert`'s compiled code to XLA_FLAGS. Our programs call it when they start;
    call it too if you use the model or the optimizer alone, before XLA compiles for the first time
    in the process. What XLA_FLAGS already says stays.

    On CPUs XLA computes several results in one loop only with this flag. It then computes nothing
    twice: whatever two results share gets a loop of its own. Without the flag everything works, but
    more slowly.

    For GPUs: `num_threads` compile, instead of one; the fastest kernels that XLA finds by trying
    are kept in the folder `tuning`, which must be of this TensorFlow and this card alone.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    # XLA_FLAGS names a file that holds the flags
    is_file_name = flags and not flags.startswith("-")
    if is_file_name:
        return
    wanted = [f"--xla_backend_extra_options={ONE_LOOP}=true"]
    if num_threads:
        wanted += _of_version(COMPILES_IN_PARALLEL, num_threads=num_threads)
    if tuning:
        wanted += _of_version(KEEPS_TUNING, folder=tuning)
    for flag in wanted:
        name = ONE_LOOP if ONE_LOOP in flag else flag.partition("=")[0]
        if name not in flags:
            flags = f"{flags} {flag}"
    os.environ["XLA_FLAGS"] = flags.strip()


def tensorflow_version() -> str:
    """The installed one, "" without one. TensorFlow is not imported."""
    for package in PACKAGES:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _of_version(table: Mapping[str, tuple[str, ...]], **values: object) -> list[str]:
    """The flags of the installed version; none of one that nobody has tried."""
    minor = ".".join(tensorflow_version().split(".")[:2])
    return [flag.format(**values) for flag in table.get(minor, ())]
