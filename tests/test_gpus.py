"""Which GPU each rank takes, asked of a driver that is compiled here and loaded as NVIDIA's would be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fake_driver
import hosts
import pytest
from fake_driver import environment
from mpi import ENVIRONMENT, ROOT, Done, alone, mpirun

from distributed.devices import compiled_at_first_use
from distributed.driver import Gpu
from ringbert.errors import InputError

pytestmark = pytest.mark.skipif(fake_driver.COMPILER is None, reason="no C compiler")

H200 = "a/0000:01:00.0/9.0 b/0000:02:00.0/9.0 c/0000:03:00.0/9.0 d/0000:04:00.0/9.0"
# Two instances of one card, as two processes see them with CUDA_VISIBLE_DEVICES=MIG-…
INSTANCES = {"FAKE_GPUS_0": "m1:a/0000:01:00.0/9.0", "FAKE_GPUS_1": "m2:a/0000:01:00.0/9.0"}
KERNELS = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]
GPU_WHEEL = {"cuda_compute_capabilities": KERNELS, "cuda_version": "12.5.1"}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake driver."""
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


def listed(folder: Path, gpus: str, **others: str) -> subprocess.CompletedProcess[str]:
    """What distributed/driver.py says in a process of its own."""
    show = "from distributed import driver\nfor gpu in driver.gpus(): print(gpu.uuid.rstrip('0'), gpu.bus_id, gpu)"
    variables = {**os.environ, **ENVIRONMENT, **environment(folder, gpus, **others)}
    return subprocess.run([sys.executable, "-c", show], env=variables, capture_output=True, text=True, timeout=60)


def test_the_driver_names_its_gpus(driver: Path) -> None:
    done = listed(driver, "a/0000:01:00.0/9.0 b/0000:02:00.0/8.6")
    assert done.stdout.splitlines() == [
        "61 0000:01:00.0 Fake 90, compute capability 9.0",
        "62 0000:02:00.0 Fake 86, compute capability 8.6",
    ], done.stderr


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [("1,0", ["62", "61"]), ("b", ["62"]), ("1,9,0", ["62"]), ("", []), ("-1", [])],
)
def test_the_user_narrows_and_orders_the_gpus(driver: Path, visible: str, uuids: list[str]) -> None:
    done = listed(driver, "a/0000:01:00.0/9.0 b/0000:02:00.0/8.6", CUDA_VISIBLE_DEVICES=visible)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == uuids


def test_instances_of_a_card_have_uuids_of_their_own(driver: Path, tmp_path: Path) -> None:
    """Drivers before CUDA 11.4 have only the call that gives the card's."""
    instances = " ".join(INSTANCES.values())
    assert [line.split()[:2] for line in listed(driver, instances).stdout.splitlines()] == [
        ["6d31", "0000:01:00.0"],
        ["6d32", "0000:01:00.0"],
    ]
    old = fake_driver.build(tmp_path, "-DOLD")
    assert [line.split()[0] for line in listed(old, instances).stdout.splitlines()] == ["61", "61"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("cuInit 803", "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803"),
        ("cuDeviceGetCount 999", "cuDeviceGetCount: CUDA_ERROR_UNKNOWN, 999"),
        ("cuDeviceGetUuid_v2 46", "cuDeviceGetUuid_v2: unknown error, 46"),
    ],
)
def test_a_driver_that_fails_is_not_a_machine_without_gpus(driver: Path, error: str, words: str) -> None:
    done = listed(driver, "a/0000:01:00.0/9.0", FAKE_CUDA_ERROR=error)
    assert done.returncode == 1
    assert f"InputError: the NVIDIA driver of this machine fails ({words})" in done.stderr
    assert "--device cpu" in done.stderr


def taken(np: int, backend: str, *flags: str, env: dict) -> dict:
    done = mpirun(np, "gpus.py", backend, *flags, env=env) if np > 1 else alone("gpus.py", backend, env=env)
    return done.json()


@pytest.mark.slow
def test_ranks_that_see_the_gpus_in_other_orders_take_one_each(driver: Path) -> None:
    orders = {"FAKE_GPUS_1": " ".join(reversed(H200.split())), "FAKE_GPUS_2": "b/0000:02:00.0/9.0"}
    result = taken(3, "auto", "deterministic", env=environment(driver, H200, **orders))
    assert [uuid for uuid, _ in result["ranks"]] == ["a", "d", "b"]
    assert result["auto"] == "nccl"
    assert result["deterministic"]
    assert result["notes"][-3:] == [
        "GPU 0 of 4: Fake 90, compute capability 9.0",
        "TensorFlow's kernels are compiled for this GPU when they are first used: this takes minutes, once",
        "--deterministic: only kernels that give the same bits each time",
    ]


@pytest.mark.slow
def test_instances_of_one_card_compute_but_not_with_nccl(driver: Path) -> None:
    result = taken(2, "auto", env=environment(driver, "", **INSTANCES))
    assert [uuid for uuid, _ in result["ranks"]] == ["m1", "m2"]
    assert result["auto"] == "mpi"


def failed(np: int, backend: str, *flags: str, env: dict) -> str:
    """The only line of error that the ranks print."""
    done: Done = mpirun(np, "gpus.py", backend, *flags, env=env)
    assert done.status == 1, done
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("prog: error")]
    return line


@pytest.mark.slow
def test_fewer_gpus_than_ranks(driver: Path) -> None:
    env = environment(driver, "a/0000:01:00.0/9.0")
    assert "2 ranks on this machine cannot have a GPU each: they see 1 GPU" in failed(2, "auto", env=env)
    result = taken(2, "auto", "share_gpus", env=env)
    assert [uuid for uuid, _ in result["ranks"]] == ["a", "a"]
    assert result["auto"] == "mpi"


@pytest.mark.slow
def test_nccl_on_a_shared_gpu_takes_the_ranks_for_hosts(driver: Path) -> None:
    """So that NCCL lets two ranks share a card, over sockets. What it does then needs a GPU."""
    env = environment(driver, "a/0000:01:00.0/9.0")
    done = mpirun(2, "gpus.py", "nccl", "share_gpus", env=env)
    assert done.json()["nccl"] == [["rank-0", "1", "1"], ["rank-1", "1", "1"]]
    assert done.stderr.count("--backend nccl is then for tests only") == 1
    refused = failed(2, "nccl", env=environment(driver, "", **INSTANCES))
    assert "these 2 ranks share cards" in refused
    assert "--share_gpus" in refused


def test_a_gpu_that_is_too_new_is_refused_before_tensorflow_uses_it(driver: Path) -> None:
    done = alone("gpus.py", "auto", env=environment(driver, "a/0000:01:00.0/12.0"))
    assert done.status == 1
    noise = ("WARNING: All log messages before absl", "I0000 ")  # TensorFlow's, on some CPUs
    (line,) = [line for line in done.stderr.splitlines() if line and not line.startswith(noise)]
    assert line.startswith("prog: error: Fake 120, compute capability 12.0: this TensorFlow, built with CUDA 12.5")
    assert "--device cpu" in line


@pytest.mark.parametrize("capability", [(6, 0), (6, 1), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0)])
def test_the_gpus_that_tensorflows_wheel_computes_on(capability: tuple[int, int]) -> None:
    """Machine code runs on its own and higher minor versions of one major version, PTX on all newer GPUs."""
    assert compiled_at_first_use(Gpu("a", capability=capability), GPU_WHEEL) is (capability == (9, 0))


@pytest.mark.parametrize(
    ("capability", "words"),
    [
        ((5, 2), "capabilities 6.0 to 9.0; .*install another TensorFlow"),
        ((10, 0), "install a newer TensorFlow"),  # PTX 8.5 of CUDA 12.5 knows neither
        ((12, 1), "install a newer TensorFlow"),
    ],
)
def test_the_gpus_that_it_does_not(capability: tuple[int, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        compiled_at_first_use(Gpu("a", capability=capability), GPU_WHEEL)


def test_other_builds() -> None:
    blackwell = Gpu("a", capability=(12, 0))
    assert compiled_at_first_use(blackwell, {"cuda_compute_capabilities": ["compute_90"], "cuda_version": "12.8"})
    built_for_it = {"cuda_compute_capabilities": ["sm_80", "sm_120a"], "cuda_version": "12.9"}
    assert not compiled_at_first_use(blackwell, built_for_it)
    assert not compiled_at_first_use(blackwell, {"is_cuda_build": False})


@pytest.mark.slow
@pytest.mark.skipif(hosts.available() is not None, reason=hosts.available() or "")
def test_the_same_places_on_two_hosts_are_different_cards(driver: Path) -> None:
    variables = {**ENVIRONMENT, **environment(driver, "a/0000:01:00.0/9.0 b/0000:02:00.0/9.0")}
    command = [sys.executable, str(ROOT / "tests" / "programs" / "gpus.py"), "auto"]
    names = [name for name in variables if name.startswith("FAKE_")]
    mpi_args = [argument for name in names for argument in ("-x", name)]
    with hosts.two_hosts() as two:
        done = two.mpirun(2, command, timeout=180, env=variables, mpi_args=mpi_args)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert [bus for _, bus in result["ranks"]] == ["0000:01:00.0", "0000:02:00.0"] * 2
    assert result["auto"] == "nccl"
