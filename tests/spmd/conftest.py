"""Fixtures of tests that run on several ranks, and the hooks that hand them to the ranks (harness/spmd.py)."""

import functools
import json
import os
import tempfile
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
        try:
            hook, written = item.config.hook, ranks.run(names)
            reports = [hook.pytest_report_from_serializable(config=item.config, data=data) for data in written]
        except spmd.NoEnd as error:
            reports = [pytest.TestReport(item.nodeid, item.location, {}, "failed", str(error), "call")]
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish() -> None:
        ranks.stop()

else:

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(item: pytest.Item) -> None:
        """All ranks meet before each test; each gets the communicator of the test's ranks."""
        from mpi4py import MPI

        world, _ = whole_world()
        world.barrier()
        item.config.is_absent = world.rank >= item.callspec.params["num_ranks"]
        item.config.comm = world.comm.Split(MPI.UNDEFINED if item.config.is_absent else 0)

    def pytest_runtest_setup(item: pytest.Item) -> None:
        if item.config.is_absent:
            pytest.skip("absent")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(item: pytest.Item):
        """Writes the report for the parent."""
        outcome = yield
        report, rank = outcome.get_result(), whole_world()[0].rank
        if report.failed:
            report.longrepr = f"--- rank {rank}\n{report.longreprtext}"
        data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        with (Path(os.environ[spmd.FOLDER]) / f"rank-{rank}").open("a") as file:
            file.write(json.dumps(data) + "\n")

    def pytest_sessionstart() -> None:
        whole_world()


@functools.cache
def whole_world():
    """The world of all ranks of the session, joined once; its backend is open before TensorFlow computes."""
    from distributed.collectives import open_collectives
    from distributed.devices import DeviceSettings
    from distributed.world import World

    world = World.join(DeviceSettings(device="cpu"), stalls=None, is_script=True)
    return world, open_collectives(world, "ring")


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
