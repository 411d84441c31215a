"""RingBERT: BERT pretraining and fine-tuning across GPUs and machines, on TensorFlow and Keras 3, over MPI.

Importing it loads neither TensorFlow nor MPI. `bert`, `distributed` and `tasks` are built on its modules: errors,
atomic files, hashes, ragged arrays and settings. They need only the standard library and NumPy.
"""

import importlib.metadata

try:
    __version__ = importlib.metadata.version("ringbert")
except importlib.metadata.PackageNotFoundError:
    __version__ = "unknown (not installed)"
