"""Runs a script for which `horovod` is `ringbert.horovod`.

    python -m ringbert.horovod train.py --epochs 3
    python -m ringbert.horovod -m project.train

Where Horovod is installed too it stops, unless `--always` comes first.
"""

import os
import runpy
import sys

from distributed.horovodrun import ALWAYS, FOLDER, python_path
from ringbase.errors import InputError


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--always"]:
        os.environ[ALWAYS] = "always"
        del arguments[0]
    is_module = arguments[:1] == ["-m"]
    if not arguments[is_module:]:
        raise InputError("needs a script: python -m ringbert.horovod train.py, or -m MODULE")
    name, *others = arguments[is_module:]
    os.environ["PYTHONPATH"] = python_path()  # for processes that the script starts
    sys.argv = [name, *others]
    if is_module:
        sys.path.insert(0, str(FOLDER))
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        # as Python does
        sys.path[0] = os.path.dirname(os.path.abspath(name))
        sys.path.insert(0, str(FOLDER))
        runpy.run_path(name, run_name="__main__")


if __name__ == "__main__":
    main()
