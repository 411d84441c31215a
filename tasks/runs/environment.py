"""From the flags of a command to its program, and where programs leave files.

TensorFlow is imported only when a program starts: `--help` answers at once.
"""

import contextlib
import errno
import gc
import importlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bert import set_xla_flags, tensorflow_version
from distributed import launcher
from distributed.devices import imported_tensorflow
from distributed.launcher import launched_size
from ringbase.errors import InputError, one_line
from ringbase.files import cache_folder, digest
from tasks.runs import flags
from tasks.runs.commands import Command

# Keras imports these where they are installed, for features that no program uses. They take as long
# as TensorFlow.
OPTIONAL_IN_KERAS = ("matplotlib", "pandas", "sklearn")
FULL = (errno.ENOSPC, errno.EDQUOT)
# what NVIDIA's driver says of its cards and of itself
CARDS, DRIVER = Path("/proc/driver/nvidia/gpus"), Path("/proc/driver/nvidia/version")


def run_command(command: Command, argv: Sequence[str] | None = None) -> None:
    """The `main` of a command: the `run` of its module `program` with the configuration of the
    flags."""
    config: Any = flags.parse(command.config, argv, prog=command.name)
    if getattr(config, "plan", False):
        print_plan(command.name, command.program, config)
    start(command.name, f"{command.package}.program", config)


def print_plan(prog: str, program: Any, config: Any) -> NoReturn:
    """Prints what the runs of a command would do, once over all ranks, and exits."""
    # the launcher's variables: no rank joins
    _, num_ranks = launched_size()
    with flags.reporting(prog):
        module = importlib.import_module("tasks.runs.resolve.plan")
        runs = module.planned(program, config, num_ranks, flags.print_on_first)
    flags.stop(json.dumps(runs, indent=2, ensure_ascii=False), 0)


def start(prog: str, module: str, config: Any) -> None:
    """Imports a program on all ranks at once, not while they wait for each other, and calls its
    `run`."""
    # The collector would look again and again at what an import makes and keeps (a fifth of a
    # start's CPU time), and Keras would import packages that no program needs (another quarter):
    # docs/log/2026-11.md, "Time to the first step".
    gc.disable()
    set_environment()
    with flags.reporting(prog):
        import_tensorflow_alone()
    program = importlib.import_module(module)
    gc.freeze()
    gc.enable()
    program.run(config)


def import_tensorflow_alone() -> None:
    """TensorFlow with Keras, which does not find here what it imports only if it is installed."""
    hidden = [name for name in OPTIONAL_IN_KERAS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: not found
    imported_tensorflow()
    for name in hidden:
        del sys.modules[name]


def set_environment() -> None:
    """Sets the variables that TensorFlow, Keras and transformers read on import, and XLA when it
    compiles."""
    if any(CARDS.glob("*/information")):
        set_xla_flags(launcher.share_of_cores(), tuning_folder())
    else:
        set_xla_flags()
    os.environ["KERAS_BACKEND"] = "tensorflow"
    default = os.environ.setdefault
    # else only on CPUs with VNNI; with AVX2 its products are faster too
    if platform.machine() == "x86_64":
        default("TF_ENABLE_ONEDNN_OPTS", "1")
    default("TRANSFORMERS_VERBOSITY", "error")
    default("TOKENIZERS_PARALLELISM", "true")


def tuning_folder() -> Path | None:
    """Where XLA keeps the kernels that it has found by trying, for these cards, driver and
    TensorFlow; None if it cannot be this user's alone: whoever writes there decides what runs."""
    cards = sorted(path.read_text() for path in CARDS.glob("*/information"))
    models = [line for card in cards for line in card.splitlines() if line.startswith("Model")]
    driver = DRIVER.read_text() if DRIVER.is_file() else ""
    key = digest(tensorflow_version(), os.environ.get("XLA_FLAGS", ""), models, driver)
    folder = cache_folder() / "xla" / key
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    is_private = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if is_private else None


def result_file(trains: bool) -> str:
    """Where a command writes its scores. One that does not train leaves alone what a training
    wrote."""
    return "result.json" if trains else "predict_result.json"


@contextlib.contextmanager
def writing_cache() -> Iterator[None]:
    """A `with` block that writes to the cache. Raises InputError if it cannot."""
    try:
        yield
    except OSError as error:
        cache = cache_folder().absolute()
        file = Path(str(error.filename)).absolute()
        is_of_cache = cache in (file, *file.parents) or file in cache.parents
        if not is_of_cache and error.errno not in FULL:  # of which some libraries tell no file
            raise
        raise InputError(
            f"{one_line(error)}: set RINGBERT_CACHE to a folder that can be written and has room"
            f" (now {cache})"
        ) from error
