"""Runs scripts written for Horovod one after another in this process, with another package in their import line.

    mpirun -np 2 python run_scripts.py PACKAGE SCRIPT.py …

PACKAGE replaces `horovod` in the one line of each script that imports Horovod. Rank 0 prints the numbers of all
scripts as one line of JSON, the last one.
"""

import json
import re
import sys
from pathlib import Path

import keras

FOLDER = Path(__file__).resolve().parent
IMPORT = re.compile(r"^import horovod(\.[\w.]+)? as hvd$", re.MULTILINE)


def run(package, script):
    """Runs a script with `package` in the place of `horovod`, in exactly one line; returns its names."""
    source, number = IMPORT.subn(rf"import {package}\1 as hvd", (FOLDER / script).read_text())
    assert number == 1, f"{script} has {number} lines that import Horovod"
    assert source.count("horovod") == source.count(f"{package}.") * package.count("horovod"), script
    names = {"__name__": "__main__"}
    exec(compile(source, str(FOLDER / script), "exec"), names)
    keras.backend.clear_session()
    return names


if __name__ == "__main__":
    package, *scripts = sys.argv[1:]
    for script in scripts:
        names = run(package, script)
    from synthetic import REPORTS

    if names["hvd"].rank() == 0:
        print(json.dumps(REPORTS), flush=True)
