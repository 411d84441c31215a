"""Google's `create_pretraining_data.py`, unmodified, as a program that `run_timed` times. It imports no code of
ours.

When the script imports `tensorflow` it gets today's `tensorflow.compat.v1`, and for `bert` its own folder.
"""

import runpy
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path


def prepare(arguments: Sequence[str]) -> Callable[[], object]:
    """`arguments`: the folder of the script, then its flags."""
    folder, *flags = arguments
    import tensorflow.compat.v1

    sys.modules["tensorflow"] = tensorflow.compat.v1
    package = types.ModuleType("bert")  # Google's package says `from bert import tokenization`, its repository
    package.__path__ = [folder]  # `import tokenization`
    sys.modules["bert"] = package
    sys.path.insert(0, folder)
    script = str(Path(folder, "create_pretraining_data.py"))
    sys.argv = [script, *flags]

    def run() -> None:
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as stop:  # from tf.app.run
            if stop.code:
                raise

    return run
