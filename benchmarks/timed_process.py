"""A program in a process of its own, on one core, timed without its start-up. For corpus_google.py.

    python timed_process.py REPORT.json bert-corpus FLAGS…
    python timed_process.py REPORT.json google FOLDER FLAGS…

Each program is first prepared, which imports what it needs, and then does the work that is timed. For Google's
nothing of RingBERT is imported.
"""

import importlib
import json
import os
import resource
import runpy
import sys
import time
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

# Modules that a build imports while it works. Google's script imports everything at the start.
IMPORTED_LATER = ("bert.corpus.build", "bert.weights", "distributed.world", "numpy.random", "pyarrow.compute")


def bert_corpus(arguments: Sequence[str]) -> Callable[[], object]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    for name in (*IMPORTED_LATER, "transformers"):
        importlib.import_module(name)
    return partial(importlib.import_module("tasks.corpus.__main__").main, arguments)


def google(arguments: Sequence[str]) -> Callable[[], object]:
    """`create_pretraining_data.py`, unmodified. It gets today's `tensorflow.compat.v1` as `tensorflow`, and
    its own folder as `bert`."""
    folder, *flags = arguments
    import tensorflow.compat.v1

    sys.modules["tensorflow"] = tensorflow.compat.v1
    package = types.ModuleType("bert")  # Google's package says `from bert import tokenization`, its repository
    package.__path__ = [folder]  # `import tokenization`
    sys.modules["bert"] = package
    sys.path.insert(0, folder)
    script = str(Path(folder, "create_pretraining_data.py"))
    sys.argv = [script, *flags]

    def work() -> None:
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as stop:  # from tf.app.run
            if stop.code:
                raise

    return work


def main() -> None:
    report, program, *arguments = sys.argv[1:]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    work = {"bert-corpus": bert_corpus, "google": google}[program](arguments)
    start_s = time.perf_counter()
    work()
    seconds = time.perf_counter() - start_s
    usages = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    Path(report).write_text(json.dumps((seconds, max(usage.ru_maxrss for usage in usages) * 1024)))


if __name__ == "__main__":
    main()
