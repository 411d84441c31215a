"""Sets the environment before anything imports TensorFlow or transformers; fixtures of several test files."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # tolerances are those of the CPU; tests of GPUs set it
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from pathlib import Path

import pytest

from bert import xla

xla.set_flags()

GOLDENS = Path(__file__).resolve().parent / "goldens"


# Files whose slow tests limit the seconds of what they look at, or look at all ports of the machine. Those of the
# other files can run two at a time.
ALONE = {"doctor_faults", "elastic", "launch_sockets", "socket_filter"}


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.stem.removeprefix("test_") not in ALONE:
        item.add_marker("beside")


@pytest.fixture
def goldens() -> Path:
    """The folder that scripts/make_goldens.py writes."""
    return GOLDENS


@pytest.fixture
def run(tmp_path):
    """A run folder that is written to."""
    from distributed.run import Run

    return Run(tmp_path / "run", is_writer=True)


@pytest.fixture
def mixed_bfloat16():
    """The dtype policy of --precision bf16, for one test."""
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(before)
