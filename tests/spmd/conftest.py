"""Fixtures of tests that run on several ranks, and the hooks that hand them to the ranks (harness/spmd.py)."""

import json
import os
import tempfile
import time
from pathlib import Path

import pytest
from harness import spmd

HERE = Path(__file__).parent
ranks = spmd.Ranks()


@pytest.hookimpl(tryfirst=True)  # so that the parent and the ranks give tests the same names
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`@pytest.mark.ranks(1, 2, 3)` runs a test with each of these numbers of ranks; without the mark it is 2."""
    mark = metafunc.definition.get_closest_marker("ranks")
    if "num_ranks" in metafunc.fixturenames:
        metafunc.parametrize(
            "num_ranks", mark.args if mark else (2,), indirect=True, ids=lambda number: f"{number} ranks"
        )


if not spmd.is_rank():

    def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if HERE not in item.path.parents:  # pytest-xdist asks the hooks of all folders
            return None
        items = [other for other in item.session.items if HERE in other.path.parents]
        names = [other.nodeid for other in items[items.index(item) :]]
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        outcome, text, seconds = ranks.run(names)
        for when, result in (("setup", "passed"), ("call", outcome), ("teardown", "passed")):
            report = spmd.report_of(item, when, result, text, seconds if when == "call" else 0.0)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.fixture(scope="session", autouse=True)
    def _end_of_session():
        yield
        ranks.stop()

    def pytest_sessionfinish() -> None:
        ranks.stop()

else:
    records: dict[str, dict] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(item: pytest.Item) -> None:
        """All ranks meet before each test; each gets the communicator of the test's ranks."""
        from mpi4py import MPI

        request, pause = MPI.COMM_WORLD.Ibarrier(), 0.001
        while not request.Test():
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        number = item.callspec.params["num_ranks"]
        item.config.comm = MPI.COMM_WORLD.Split(0 if MPI.COMM_WORLD.rank < number else MPI.UNDEFINED)
        item.config.is_absent = MPI.COMM_WORLD.rank >= number

    def pytest_runtest_setup(item: pytest.Item) -> None:
        if item.config.is_absent:
            pytest.skip("absent")

    def pytest_runtest_logreport(report: pytest.TestReport) -> None:
        record = records.setdefault(
            report.nodeid, {"name": report.nodeid, "outcome": "passed", "text": "", "seconds": 0}
        )
        record["seconds"] += report.duration
        if report.failed:
            record["outcome"], record["text"] = "failed", record["text"] + report.longreprtext
        elif report.skipped and report.longrepr[2] != "Skipped: absent":
            record["outcome"], record["text"] = "skipped", report.longrepr[2]
        if report.when == "teardown":
            from mpi4py import MPI

            with (Path(os.environ[spmd.FOLDER]) / f"rank-{MPI.COMM_WORLD.rank}").open("a") as file:
                file.write(json.dumps(record) + "\n")

    def pytest_sessionstart() -> None:
        whole_world()


_whole = None


def whole_world():
    """The world of all ranks of the session, joined once; its backend is open before TensorFlow computes."""
    global _whole
    if _whole is None:
        from distributed.collectives import open_collectives
        from distributed.devices import DeviceSettings
        from distributed.world import World

        world = World.join(DeviceSettings(device="cpu"), stalls=None, saves_on_signals=False)
        _whole = world, open_collectives(world, "ring")
    return _whole


@pytest.fixture
def num_ranks(request) -> int:
    return request.param


@pytest.fixture
def world(num_ranks, request):
    """This process among the first `num_ranks` ranks, with a communicator of its own."""
    from distributed.world import World

    comm = request.config.comm
    yield World.join(None, "spmd", stalls=None, comm=comm)
    comm.Free()


@pytest.fixture
def collectives(world):
    """What `--backend auto` opens for these ranks."""
    from distributed.collectives import open_collectives

    opened = open_collectives(world)
    yield opened
    opened.close()


@pytest.fixture
def ring(num_ranks):
    """TensorFlow's ring, which the session opened for all its ranks."""
    if num_ranks != spmd.NUM_RANKS:
        pytest.fail(f"the ring needs @pytest.mark.ranks({spmd.NUM_RANKS})")
    return whole_world()[1]


@pytest.fixture(scope="session")
def session_folder():
    """This rank's folder until the end of the session: one rank may end a test while another still reads."""
    with tempfile.TemporaryDirectory(prefix="ringbert-ranks-") as name:
        yield Path(name)


@pytest.fixture
def folder(world, session_folder) -> Path:
    """One empty folder for all ranks."""
    return world.broadcast(Path(tempfile.mkdtemp(dir=session_folder)))


@pytest.fixture
def hvd(num_ranks, request):
    """`ringbert.horovod` among the first `num_ranks` ranks."""
    import ringbert.horovod as hvd
    from ringbert.horovod.session import current

    hvd.init(comm=request.config.comm)
    world = current().world
    yield hvd
    hvd.shutdown()
    world.leave()  # stops its watchdog
