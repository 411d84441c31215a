"""What a process sets before it imports TensorFlow, and where programs leave files. Imports nothing heavy."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from bert import set_xla_flags

# Keras imports these where they are installed, for features that no program uses. They take as long as TensorFlow.
OPTIONAL_IN_KERAS = ("matplotlib", "pandas", "sklearn")
IMPORT_NOISE = ("oneDNN custom operations are on", "All log messages before absl::InitializeLog()")


def set_environment() -> None:
    """Sets the variables that TensorFlow, Keras and transformers read on import, and XLA when it compiles."""
    set_xla_flags()
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def import_tensorflow(is_for_users: bool = False) -> None:
    """Imports TensorFlow and hides the two lines that its C++ code prints at every log level.

    If it is not installed, `World.join` reports that. Keras finds the packages OPTIONAL_IN_KERAS absent, unless
    `is_for_users`: in a user's process it may be used for anything.
    """
    hidden = [] if is_for_users else [name for name in OPTIONAL_IN_KERAS if name not in sys.modules]
    sys.stderr.flush()
    stderr_copy = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: not found
            with contextlib.suppress(ModuleNotFoundError):
                import tensorflow  # noqa: F401
        finally:
            for name in hidden:
                del sys.modules[name]
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
            captured.seek(0)
            for line in captured.read().decode(errors="replace").splitlines():
                if not any(noise in line for noise in IMPORT_NOISE):
                    print(line, file=sys.stderr)


def result_file(trains: bool) -> str:
    """Where a command writes its scores. One that does not train leaves alone what a training wrote."""
    return "result.json" if trains else "predict_result.json"


def cache_folder() -> Path:
    """Where prepared data is kept: $RINGBERT_CACHE, else ~/.cache/ringbert."""
    return Path(os.environ.get("RINGBERT_CACHE") or Path.home() / ".cache" / "ringbert")
