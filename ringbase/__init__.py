"""The ground floor: errors, settings, atomic files, digests and ragged arrays. Standard library and
NumPy only."""

import importlib.metadata

try:
    __version__ = importlib.metadata.version("ringbert")
except importlib.metadata.PackageNotFoundError:
    __version__ = "unknown (not installed)"
