"""Sets the environment before anything imports TensorFlow or transformers; fixtures of several test
files."""

import os

# Some containers forbid Python to keep compiled modules. Each program that a test starts would then
# compile TensorFlow's anew: 6 of its 10 seconds. This process is told below.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["KERAS_BACKEND"] = "tensorflow"
# tolerances are those of the CPU; tests of GPUs set it
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import gc
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from bert import set_xla_flags

set_xla_flags()
sys.dont_write_bytecode = False

# A shell's background job ignores Ctrl-C, and so would all processes that tests start in it and
# interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).resolve().parent
SPMD = HERE / "spmd"
# Files of long tests that share nothing. The workers of pytest-xdist divide these tests among them.
SPREAD = ("tests/referee/test_model.py", "tests/simulation/test_simulation.py")


def pytest_addoption(parser):
    parser.addoption(
        "--seconds", type=float, help="start no test later, and list those that did not run"
    )


def pytest_configure(config):
    if config.option.seconds is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(NotRun(), "not run")


class NotRun:
    """Lists the tests that pytest has not come to, by file, the nearest first."""

    def __init__(self):
        self.names = {}  # a set that keeps the order

    def pytest_collection_finish(self, session):
        self.names |= dict.fromkeys(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        self.names |= dict.fromkeys(ids)

    def pytest_runtest_logreport(self, report):
        self.names.pop(report.nodeid, None)

    def pytest_terminal_summary(self, terminalreporter):
        for file, number in Counter(name.split("::")[0] for name in self.names).items():
            terminalreporter.write_line(f"not run: {number} of {file}")


BEGAN_S = time.monotonic()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    yield
    seconds = item.config.option.seconds
    if seconds is not None and time.monotonic() - BEGAN_S > seconds:
        item.session.shouldstop = f"--seconds {seconds:g} are over"


def pytest_ignore_collect(collection_path, config):
    """tests/soak runs only when it is named: scripts/soak.sh does."""
    is_named = any("soak" in str(argument) for argument in config.args)
    return True if collection_path == HERE / "soak" and not is_named else None


def pytest_itemcollected(item):
    if SPMD in item.path.parents:
        item.add_marker("slow")
        item.add_marker(pytest.mark.timeout(0))  # tests/spmd/conftest.py has limits of its own


def part_of(nodeid):
    """What one worker of pytest-xdist gets whole: a file, whose tests share fixtures, all of
    tests/spmd for one session of ranks, or a single test of SPREAD."""
    file = nodeid.split("::")[0]
    if file.startswith("tests/spmd/"):
        return "tests/spmd"
    return nodeid if file in SPREAD else file


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported here stays, so that the search for garbage need not look at it, neither now,
    which takes a fifth of the time, nor while tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """The parts with most slow tests come first, so that at the end, when workers run out of parts,
    the others have short ones. Not with --seconds, where the order is a choice."""
    if config.option.seconds is not None or not hasattr(config, "workerinput"):
        return
    size = Counter()
    for item in items:
        size[part_of(item.nodeid)] += 100 if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: -size[part_of(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Parts(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return part_of(nodeid)

    config.option.loadscopereorder = False  # the workers have sorted them
    return Parts(config, log)


@pytest.fixture
def goldens():
    """The folder that scripts/make_goldens.py writes."""
    return HERE / "goldens"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of an empty cache of our own."""
    monkeypatch.setenv("RINGBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def run(tmp_path):
    """A run folder that is written to."""
    from distributed.run import Run
    from distributed.world import World

    return Run(tmp_path / "run", World())
