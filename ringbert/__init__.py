"""RingBERT: BERT pretraining and fine-tuning across GPUs and machines, on TensorFlow and Keras 3, over MPI.

Importing it loads neither TensorFlow nor MPI. Its modules are the ground floor that `bert`, `distributed` and
`tasks` stand on: errors, atomic files, ragged arrays, settings, and nothing beyond the standard library and NumPy.
"""

import importlib.metadata

try:
    __version__ = importlib.metadata.version("ringbert")
except importlib.metadata.PackageNotFoundError:
    __version__ = "unknown (not installed)"
