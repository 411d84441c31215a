"""Tests on several ranks: one mpirun for many, whose ranks run pytest, and this process reads their
reports.

pytest's own process (the parent) never joins MPI. It starts `mpirun -n 3 python -m pytest @file`
with the names of the tests, and waits for the reports that each rank writes to a file. A test that
fails, or takes too long, ends the ranks, and the next test starts new ones. In a test of fewer
ranks the others wait without using a core.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from harness.mpi import ENVIRONMENT, ROOT

from distributed.collectives import open_collectives
from distributed.devices import DeviceSettings
from distributed.launch import parse_args
from distributed.mpirun import build_command, find_mpi
from distributed.world import World

HERE = Path(__file__).parent
NUM_RANKS = 3
FOLDER = "RINGBERT_SPMD"  # set in the ranks: where they write what came out
# For mpirun, imports and the collection of the tests; for one test. None takes 30 s on a quiet
# machine.
START_S, TEST_S = 600, 300
OTHERS_S = 8  # for the other ranks to fail too


@pytest.hookimpl(tryfirst=True)  # so that the parent and the ranks give tests the same names
def pytest_generate_tests(metafunc):
    """`@pytest.mark.ranks(1, 2, 3)` runs a test with each of these numbers of ranks; without the
    mark it is 2."""
    if "num_ranks" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("ranks")
        metafunc.parametrize(
            "num_ranks", mark.args if mark else (2,), ids=lambda number: f"{number} ranks"
        )


class Reports:
    """What a rank has written about its tests. Each line of its file is read once."""

    def __init__(self, path):
        self.path, self.read_bytes, self.reports = path, 0, []

    def of(self, name):
        """The reports of a test, as far as there are some by now."""
        self.read_on()
        return [report for report in self.reports if report["nodeid"] == name]

    def read_on(self):
        if not self.path.exists() or self.path.stat().st_size == self.read_bytes:
            return
        with self.path.open("rb") as file:
            file.seek(self.read_bytes)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]  # a line may be half-written
        self.read_bytes += len(whole)
        self.reports += map(json.loads, whole.splitlines())


class Ranks:
    """The running ranks, as their parent sees them."""

    def __init__(self, names):
        self.folder, self.remaining = Path(tempfile.mkdtemp(prefix="ringbert-spmd-")), names
        self.reports = [Reports(self.folder / f"rank-{rank}") for rank in range(NUM_RANKS)]
        (self.folder / "tests").write_text("\n".join(names))
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "", "-o", "timeout=0"]
        options += ["-o", f"faulthandler_timeout={TEST_S - 20}"]
        program = [sys.executable, "-m", "pytest", *options, f"@{self.folder / 'tests'}"]
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
        }
        variables |= ENVIRONMENT | {FOLDER: str(self.folder), "RINGBERT_NETWORK": "127.0.0.0/8"}
        command = build_command(
            find_mpi(), parse_args([f"-np={NUM_RANKS}", "--", *program]), variables
        )
        with (self.folder / "output").open("w") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            self.process = subprocess.Popen(command, env=variables, cwd=ROOT, **streams)
        self.end_s = time.monotonic() + START_S

    def run(self):
        """Rank 0's reports of the next test. Raises AssertionError, with what the ranks say, if one
        fails."""
        name, *self.remaining = self.remaining
        self.end_s = max(self.end_s, time.monotonic()) + TEST_S
        while True:
            is_late = self.process.poll() is not None or time.monotonic() > self.end_s
            reports = [own.of(name) for own in self.reports]
            failed = [
                report["longrepr"]
                for own in reports
                for report in own
                if report["outcome"] == "failed"
            ]
            missing = [
                rank for rank, own in enumerate(reports) if not own or own[-1]["when"] != "teardown"
            ]
            if not missing and not failed:
                self.end_s = 0
                return reports[0]
            if is_late:
                self.stop()
                output = (self.folder / "output").read_text()[-12000:]
                raise AssertionError(
                    "\n".join([*failed, f"no end on ranks {missing}; the output:\n{output}"])
                )
            time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        self.process.wait()


if FOLDER not in os.environ:
    ranks = None

    def pytest_runtest_protocol(item, nextitem):
        global ranks
        if HERE not in item.path.parents:  # pytest-xdist asks the hooks of all folders
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if (
            ranks is None
            or ranks.process.poll() is not None
            or ranks.remaining[:1] != [item.nodeid]
        ):
            pytest_sessionfinish()
            names = [other.nodeid for other in item.session.items if HERE in other.path.parents]
            ranks = Ranks(names[names.index(item.nodeid) :])
        try:
            hook, written = item.config.hook, ranks.run()
            reports = [
                hook.pytest_report_from_serializable(config=item.config, data=data)
                for data in written
            ]
        except AssertionError as error:
            reports = [
                pytest.TestReport(item.nodeid, item.location, {}, "failed", str(error), "call")
            ]
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish():
        if ranks is not None:
            ranks.stop()

else:

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(item):
        """Writes the report for the parent, and ends the ranks if the test has failed."""
        outcome = yield
        report, world = outcome.get_result(), whole_world()[0]
        if report.failed:
            report.longrepr = f"--- rank {world.rank}\n{report.longreprtext}"
        data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        with (Path(os.environ[FOLDER]) / f"rank-{world.rank}").open("a") as file:
            file.write(json.dumps(data) + "\n")
        if report.failed:
            time.sleep(OTHERS_S)
            world.comm.Abort()

    def pytest_sessionstart():
        whole_world()


@functools.cache
def whole_world():
    """The world of all ranks of the session, joined once; its backend is open before TensorFlow
    computes."""
    world = World.join(DeviceSettings(device="cpu"), stalls=None, is_script=True)
    return world, open_collectives(world, "ring")


@pytest.fixture
def comm(num_ranks):
    """The communicator of a test's ranks, the first ones. All ranks meet before each test; the
    others skip it."""
    from mpi4py import MPI

    world, _ = whole_world()
    world.barrier()
    is_absent = world.rank >= num_ranks
    comm = world.comm.Split(MPI.UNDEFINED if is_absent else 0)
    if is_absent:
        pytest.skip("absent")
    yield comm
    comm.Free()


@pytest.fixture
def world(comm):
    """This process among the ranks of a test."""
    return World.join(None, "spmd", stalls=None, comm=comm)


@pytest.fixture
def collectives(world):
    """What `--backend auto` opens for these ranks."""
    return open_collectives(world)


@pytest.fixture
def ring(num_ranks):
    """TensorFlow's ring, which the session opened for all its ranks."""
    if num_ranks != NUM_RANKS:
        pytest.fail(f"the ring needs @pytest.mark.ranks({NUM_RANKS})")
    return whole_world()[1]


@pytest.fixture(scope="session")
def session_folder():
    """This rank's folder until the end of the session: one rank may end a test while another still
    reads."""
    with tempfile.TemporaryDirectory(prefix="ringbert-ranks-") as name:
        yield Path(name)


@pytest.fixture
def folder(world, session_folder):
    """One empty folder for all ranks."""
    return world.broadcast(Path(tempfile.mkdtemp(dir=session_folder)))


@pytest.fixture
def hvd(comm):
    """`ringbert.horovod` among the ranks of a test."""
    import ringbert.horovod as hvd
    from ringbert.horovod.session import current

    hvd.init(comm=comm)
    world = current().world
    yield hvd
    hvd.shutdown()
    world.leave()  # stops its watchdog


@pytest.fixture
def float64():
    """Keras computes in float64, so that orders of a sum differ in the last digits only."""
    import keras  # only the ranks need it

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
