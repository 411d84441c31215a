"""The number of ranks changes speed, never the result: each program on several ranks beside one rank."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from harness import rank_programs

BATCH, STEPS = 14, 12  # 14 rows are 5, 5, 4 on three ranks
TRAIN = ("--do_train", f"--global_batch_size={BATCH}", f"--num_train_steps={STEPS}", "--num_warmup_steps=2",
         "--learning_rate=1e-3", "--lr_scaling=none", "--save_checkpoints_steps=6")  # fmt: skip
MORE = {"squad": (), "classifier": ("--class_weights=animal=3,colour=1,tool=0.25",), "pretraining": ()}


@functools.cache
def of_one_rank(program: str, data: Path, *more: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ringbert-one-"))
    rank_programs.run_alone(program, data, folder, *TRAIN, *MORE[program], *more)
    return folder


@pytest.fixture
def data(world) -> Path:
    return world.on_first(rank_programs.data)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("program", ["squad", "classifier", "pretraining"])
def test_training_is_one_ranks(program, world, collectives, data, folder):
    """Spans; labels with class weights; masked words and next sentences, of which ranks have unequal numbers."""
    accumulation = ("--gradient_accumulation_steps=2",) if program == "squad" else ()
    flags = (*TRAIN, *MORE[program], *accumulation)
    rank_programs.run(program, world, collectives, data, folder, *flags)
    world.on_first(lambda: rank_programs.assert_same_training(folder, of_one_rank(program, data)))


@pytest.mark.ranks(2, 3)
def test_a_run_goes_on_from_another_number_of_ranks(world, collectives, data, folder):
    """Six steps on one rank, six on these, are twelve on one."""

    def half() -> None:
        rank_programs.run_alone("squad", data, folder, *TRAIN)
        last = rank_programs.checkpoints(folder)[-1]
        for path in sorted(last.rglob("*"), reverse=True):
            path.unlink()
        last.rmdir()

    world.on_first(half)
    rank_programs.run("squad", world, collectives, data, folder, *TRAIN)
    world.on_first(lambda: rank_programs.assert_same_training(folder, of_one_rank("squad", data)))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    ("program", "files"),
    [("squad", ("predictions.json", "nbest_predictions.json")), ("classifier", ("test_results.tsv",))],
)
def test_predictions_are_one_ranks_to_the_byte(program, files, world, collectives, data, folder):
    flags = ("--do_predict", "--predict_batch_size=4")
    start = world.on_first(lambda: of_one_rank(program, data))
    model = f"--init_checkpoint={start}/model"
    rank_programs.run(program, world, collectives, data, folder / "many", *flags, model)

    def compare() -> None:
        rank_programs.run_alone(program, data, folder / "one", *flags, model)
        for name in files:
            assert (folder / "many" / name).read_bytes() == (folder / "one" / name).read_bytes(), name

    world.on_first(compare)


def test_evaluation_during_training_is_one_ranks(world, collectives, data, folder):
    flags = (*TRAIN, "--do_eval", "--eval_steps=6", *MORE["classifier"])
    scores = rank_programs.run("classifier", world, collectives, data, folder / "many", *flags)

    def compare() -> None:
        alone = rank_programs.run_alone("classifier", data, folder / "one", *flags)
        assert scores.keys() == alone.keys()
        np.testing.assert_allclose([scores[name] for name in alone], [*alone.values()], rtol=1e-4)

    world.on_first(compare)
