"""PyTorch for CPUs, in a folder of its own: our environment has none."""

import pytest
from harness.jobs import install

TORCH = ("torch==2.13.0+cpu", "sympy", "mpmath", "networkx", "jinja2", "markupsafe")


@pytest.fixture(scope="session")
def torch(tmp_path_factory):
    """The folder, for PYTHONPATH, also with sentence-transformers."""
    folder = tmp_path_factory.mktemp("torch")
    install("--no-deps", "--no-cache-dir", *TORCH, "sentence-transformers==6.2.0", into=folder)
    return folder
