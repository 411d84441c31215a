"""`python -m fuzz [CASES [SEED]] [--first N] [--reader NAME] [--folder DIR]`, in the folder tests.

Prints the table of outcomes and the faults; the files of each are in DIR/faults/CASE, and `1 SEED --first CASE`
(with the same reader) repeats it.
"""

import argparse
import tempfile
from pathlib import Path

from fuzz.run import run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("cases", type=int, nargs="?", default=1000)
parser.add_argument("seed", type=int, nargs="?", default=0)
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--reader", default="")
parser.add_argument("--folder", type=Path, default=None)
options = parser.parse_args()
folder = options.folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
outcomes = run(folder.resolve(), options.cases, options.seed, options.first, options.reader)
for fault in outcomes.faults[:50]:
    print(fault, end="\n\n")
print(outcomes.table())
print(f"{len(outcomes.faults)} faults, {outcomes.seconds:.0f} s; {folder}")
raise SystemExit(bool(outcomes.faults))
