"""--step whole: what keeps a training from it, and a training on two ranks of TensorFlow's ring,
which is the one with a sum of everything."""

from types import SimpleNamespace

import numpy as np
import pytest
from harness import classifier_runs as own
from harness.jobs import shell
from harness.program_runs import command, metrics_in, refusal
from safetensors.numpy import load_file

from distributed.collectives import Collectives
from distributed.collectives.mpi import MpiCollectives
from tasks.runs.execute.whole import why_not_whole


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    data = own.write_data(tmp_path_factory.mktemp("data"))
    return *own.model_flags(data), *own.own_files(data), *own.LEARN


class Ring(Collectives):
    name = "ring"
    in_xla = False


class Nccl(Collectives):
    name = "nccl"


class Mpi(Collectives):
    name = "mpi"
    in_graph = MpiCollectives.in_graph


@pytest.mark.parametrize(
    ("backend", "size", "has_shapes", "others", "parts"),
    [
        (Nccl, 2, True, {}, None),
        (Ring, 2, False, {}, None),
        (Collectives, 1, True, {}, None),
        (Nccl, 2, True, {"joint": True}, ["joins the rows of all ranks"]),
        (Mpi, 2, True, {"is_elastic": True}, ["--elastic"]),
        (Mpi, 2, True, {}, ["--backend mpi", "nccl", "GPU"]),
        (Nccl, 2, False, {}, ["--backend nccl", "--xla off"]),
        (Ring, 2, True, {}, ["--backend ring", "--xla off"]),
        (Collectives, 1, False, {}, ["one rank", "GPU"]),
        (Collectives, 1, True, {"is_gpu": False}, ["one rank", "GPU"]),
    ],
)
def test_what_it_does_not_work_with_is_named(backend, size, has_shapes, others, parts):
    is_elastic = others.get("is_elastic", False)
    device = SimpleNamespace(is_gpu=others.get("is_gpu", True))
    world = SimpleNamespace(size=size, device=device, ranks=SimpleNamespace(is_elastic=is_elastic))
    job = SimpleNamespace(world=world, collectives=backend())
    reason = why_not_whole(SimpleNamespace(joint=others.get("joint")), job, has_shapes)
    assert bool(reason) == (parts is not None)
    assert [part for part in parts or () if part not in reason] == []


def test_one_rank_without_a_gpu_is_refused_before_it_trains(flags, tmp_path, capsys):
    run = tmp_path / "run"
    refusal(
        capsys,
        "bert-classifier",
        lambda: own.classify(run, *flags, "--num_train_steps=4", "--step=whole"),
        "--step whole",
        "GPU",
    )
    assert not (run / "metrics.jsonl").exists()


@pytest.mark.slow
def test_two_ranks_train_as_with_one_sum_of_everything(flags, tmp_path):
    """The sum of two numbers has the same bits in any order; graphs are optimized in other ways. A
    rank also computes the other's gradient, without a sum."""
    made = *flags, "--global_batch_size=8", "--num_train_steps=6", "--log_steps=1", "--backend=ring"
    accumulation = "--gradient_accumulation_steps=2"
    for name, more in (("layers", ("--step=whole", "--check_steps=2")), ("joined", ())):
        folder = f"--output_dir={tmp_path / name}"
        shell(*command("tasks.classifier", *made, accumulation, *more, folder, ranks=2))
    layers, joined = (metrics_in(tmp_path / name) for name in ("layers", "joined"))
    for found, expected in zip(layers, joined, strict=True):
        for number in ("step", "loss", "gradient_norm"):
            assert found[number] == pytest.approx(expected[number], rel=1e-5)
    values, right = (
        load_file(tmp_path / name / "model/model.safetensors") for name in ("layers", "joined")
    )
    for name, value in right.items():
        # Adam's first steps go as far for a gradient near 0, whose digits are other ones
        np.testing.assert_allclose(values[name], value, rtol=1e-3, atol=1e-4)
