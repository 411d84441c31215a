"""Runs the scripts of tests/horovod that are named, in one job, and prints what they report."""

import json
import runpy
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "horovod"
sys.path.insert(0, str(SCRIPTS))
for name in sys.argv[1:]:
    space = runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
if space["hvd"].rank() == 0:
    print(json.dumps(sys.modules["synthetic"].REPORTS))
