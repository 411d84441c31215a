"""The page of runs from Python: what `bert-report` draws."""

import os
from collections.abc import Iterable
from pathlib import Path

from ringbase.errors import InputError, as_arguments
from ringbert.launching import Result
from tasks.runs.report.page import write_page

Place = str | os.PathLike[str] | Result


def report(
    runs: Place | Iterable[Place], output_file: str | os.PathLike[str] | None = None
) -> Path:
    """Draws the page of a run, or of several side by side, the best first, and returns its path.

    `runs`: output folders, results of `launch`, folders of runs, and after these JSON files
    {"scores": {"f1": 88.5}} of other programs. An evaluation alone is a run too, such as a
    baseline. Without `output_file` the page of one place is report.html in it, and that of several
    comparison.html in the working directory.

    Raises InputError: a file is missing or damaged.

    >>> report(["baseline", "trained"])
    Traceback (most recent call last):
        ...
    ringbase.errors.InputError: baseline: no such folder of a run
    """
    given = [runs] if isinstance(runs, str | os.PathLike | Result) else [*runs]
    if not given:
        raise InputError("runs must name one or more folders")
    places = [each.output_dir if isinstance(each, Result) else Path(each) for each in given]
    file = None if output_file is None else Path(output_file).expanduser()
    try:
        return write_page([place.expanduser() for place in places], file)
    except InputError as error:
        raise InputError(as_arguments(str(error))) from None
