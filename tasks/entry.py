"""From the flags of a command to its program. TensorFlow is imported only here: `--help` answers at once."""

import importlib
from typing import Any

from distributed import phases
from distributed.devices import imported_tensorflow
from ringbase.errors import InputError
from tasks import flags
from tasks.environment import import_tensorflow, set_environment


def start(prog: str, module: str, config: Any) -> None:
    """Imports a program on all ranks at once, not while they wait for each other, and calls its `run`."""
    phases.ended("launch")
    set_environment()
    import_tensorflow()
    try:
        imported_tensorflow()
    except InputError as error:
        flags.stop(f"{prog}: error: {error}", 1)
    program = importlib.import_module(module)
    phases.ended("imports")
    program.run(config)
