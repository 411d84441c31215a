"""The programs: each joins the model (`bert`) and the ranks (`distributed`) into one console
command.

Dask installs a `distributed` too, bert-tensorflow a `bert`. So before anything of these is
imported, the packages that Python would import are looked at: they must be ours.
"""

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("ringbase", "ringbert", "bert", "distributed", "tasks")
SITE = Path(__file__).resolve().parent.parent  # the folder that holds the five packages

for name in PACKAGES:
    spec = importlib.util.find_spec(name)
    file = Path(spec.origin) if spec and spec.origin else None
    # it hides ours, or has put files among ours
    if file is None or b"ringbert" not in file.read_bytes():
        raise SystemExit(
            f"{Path(sys.argv[0]).name}: error: `import {name}` finds {file and file.parent} instead"
            " of ringbert's package: install it in an environment of its own, or run from a folder"
            " without a module of this name"
        )

from ringbase.notices import hide_on_import  # noqa: E402

hide_on_import()
