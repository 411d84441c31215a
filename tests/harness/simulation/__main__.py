"""One simulation again, in view: `python -m harness.simulation SEED`, or with what a Fault printed,
`python -m harness.simulation "Options(seed=7, …)"`; PYTHONPATH has the checkout and its tests."""

import sys
import tempfile
from pathlib import Path

from harness.simulation.jobs import Options, simulate
from harness.simulation.training import Shape

given = sys.argv[1]
options = Options.drawn(int(given)) if given.isdigit() else eval(given, {**vars(), "Shape": Shape})
with tempfile.TemporaryDirectory() as folder:
    for status, happened in simulate(options, Path(folder, "run")):
        print(f"status {status} after {dict(happened)}")
