"""The programs from Python and from notebooks: `launch(Squad(…), ranks=2)`."""

from tasks.launching.jobs import Classification, Pretraining, Squad
from tasks.launching.start import Result, launch

__all__ = ["Classification", "Pretraining", "Result", "Squad", "launch"]
