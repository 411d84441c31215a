"""One contract for every file of distributed/collectives, and World's messages, on 1, 2 and 3 ranks."""

import pytest
from mpi import ROOT, alone, mpirun

from distributed.collectives import BACKENDS
from distributed.driver import Gpu
from distributed.world import World
from ringbert.errors import InputError


def test_each_backend_has_a_file_and_each_file_a_backend() -> None:
    files = {path.stem for path in (ROOT / "distributed" / "collectives").glob("*.py")}
    assert files - {"__init__", "machine_memory"} == set(BACKENDS.values())


@pytest.mark.parametrize(
    ("network", "words"),
    [("203.0.113.0/24", "has no address in this network"), ("eth0", "is not a network such as 10.0.0.0/24")],
)
def test_a_network_that_is_not_there(network: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed.collectives.tensorflow import host_address

    monkeypatch.setenv("RINGBERT_NETWORK", network)
    with pytest.raises(InputError, match=f"^RINGBERT_NETWORK={network}.* {words}"):
        host_address(World())


def test_auto_is_not_nccl_where_its_ports_are_open_to_strangers(monkeypatch, capsys):
    from distributed import collectives, socket_filter
    from distributed.collectives import tensorflow

    class TwoMachines(World):
        def all_gather(self, value):
            other = "no socket filter on host2" if isinstance(value, str) else (1, "b")
            return [value, other] if not tensorflow.may_be_open() else [value, value and (1, "b")]

    world = TwoMachines(size=2, num_nodes=2, device="gpu", gpu=Gpu("uuid", "b"))
    assert socket_filter.why_impossible() == ""
    assert collectives._fitting(world) == "mpi"
    assert "closed to strangers (no socket filter on host2), so --backend auto is mpi" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"^--backend nccl: its ports .* on host2.*--backend mpi, or set R"):
        tensorflow.open(world, "nccl")
    monkeypatch.setenv("RINGBERT_OPEN_PORTS", "1")
    assert collectives._fitting(world) == "nccl"


@pytest.mark.parametrize(
    ("device", "own", "others", "chosen"),
    [
        ("gpu", "b", [(0, "a"), (0, "c")], "nccl"),
        ("gpu", "b", [(0, "a"), (0, "b")], "mpi"),  # NCCL refuses two ranks on one card
        ("gpu", "b", [(1, "b")], "nccl"),  # the same place in two machines
        ("cpu", "b", [(0, None)], "mpi"),
        ("gpu", "b", [], "local"),
    ],
)
def test_auto_is_nccl_where_every_rank_has_a_card_of_its_own(
    device: str, own: str, others: list[tuple[int, str | None]], chosen: str
) -> None:
    """The other ranks are made up: this machine need not have three GPUs."""
    from distributed import collectives
    from distributed.collectives import tensorflow

    class MadeUpWorld(World):
        def all_gather(self, value):
            return [value] * self.size if isinstance(value, str) else [value, *others]

    gpu = Gpu("uuid", own) if device == "gpu" else None
    world = MadeUpWorld(size=1 + len(others), device=device, gpu=gpu)
    assert collectives._fitting(world) == chosen
    if chosen == "mpi":
        reason = "share cards: .*--share_gpus" if device == "gpu" else "compute on CPUs"
        with pytest.raises(InputError, match=f"^--backend nccl .*{reason}"):
            tensorflow.open(world, "nccl")


def test_nccl_is_not_asked_to_sum_bfloat16() -> None:
    """TensorFlow's nccl_manager.cc has no bfloat16, so the gradients stay float32 and one line says so."""
    from distributed.collectives import compression_note
    from distributed.collectives.tensorflow import TensorflowCollectives

    assert TensorflowCollectives(World(), "ring").compresses
    nccl = TensorflowCollectives(World(), "nccl")
    assert not nccl.compresses
    assert "TensorFlow's NCCL does not sum bfloat16" in compression_note(World(), nccl)


def test_a_machine_that_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed.collectives import tensorflow

    with tensorflow.listening() as listener:
        host, port = "127.0.0.1", listener.getsockname()[1]
        tensorflow._check_reachable(World(), [f"{host}:{port}"])
    with pytest.raises(InputError, match=f"cannot reach {host}:{port} .*refused.*: set RINGBERT_NETWORK"):
        tensorflow._check_reachable(World(), [f"{host}:{port}"])


@pytest.mark.slow
def test_one_rank() -> None:
    assert alone("collectives.py", "local").json() == {"size": 1, "checks": 6}


def test_two_ranks() -> None:
    # A proxy that the environment names, and that is not there, stands in nobody's way.
    proxy = {
        "http_proxy": "http://127.0.0.1:9",
        "no_proxy": "",
        "no_grpc_proxy": "",
        "RINGBERT_NETWORK": "127.0.0.0/8",
    }
    assert mpirun(2, "collectives.py", "ring", "mpi", env=proxy).json() == {"size": 2, "checks": 7}


@pytest.mark.slow
def test_three_ranks() -> None:
    assert mpirun(3, "collectives.py", "ring", "mpi").json() == {"size": 3, "checks": 7}
