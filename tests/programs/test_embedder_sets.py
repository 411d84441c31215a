"""bert-embedder on rows of several files: by weights, or each batch of one file."""

import json
from functools import partial

import numpy as np
import pytest
from harness import parsing
from harness.models import save_model
from harness.pair_files import loss_by_hand, make_pairs
from harness.program_runs import bert, metrics_in
from harness.refusals import refused
from harness.texts import write_lines

import ringbert
from distributed.mixture import Mixture
from distributed.order import Order
from distributed.stages import Table
from tasks.embedder.reading import Source, read
from tasks.embedder.settings import PairSettings

embed = partial(bert, "embedder")
SIZES = 40, 11


@pytest.fixture
def files(tmp_path):
    """Two files of pairs, which have no text in common."""
    paths = []
    for number, (name, size) in enumerate(zip(("news", "books"), SIZES, strict=True)):
        rows = make_pairs(size, number)
        for place, row in enumerate(rows):
            rows[place] = {key: f"{text} {name}" for key, text in row.items()}
        paths.append(write_lines(tmp_path / f"{name}.jsonl", *map(json.dumps, rows)))
    return paths


def rows_in(file):
    return read(Source(PairSettings(train_file=file), "train")).rows


TRAIN = ("--do_train", "--num_train_steps=4", "--log_steps=1", "--learning_rate=0")
TRAIN += ("--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0")


@pytest.mark.parametrize(
    ("weights", "units", "starts"),
    [
        (("=1", "=1"), [(1, 1)], [0]),
        (("=3:1@50%", "=1"), [(3, 1), (1, 1)], [0, 18]),
        (("", ""), [SIZES], [0]),
    ],
)
def test_batches_of_one_file_have_their_own_negatives_only(weights, units, starts, files, tmp_path):
    """The loss of each step, with a model that does not change, is that of the rows by hand."""
    model = save_model(tmp_path / "made", "features")
    named = ",".join(file + weight for file, weight in zip(files, weights, strict=True))
    apart = (
        "--same_dataset_within_batch",
        "--global_batch_size=9",
        "--gradient_accumulation_steps=2",
    )
    embed(tmp_path / "run", f"--model={model}", f"--train_file={named}", *TRAIN, *apart)
    losses = [line["loss"] for line in metrics_in(tmp_path / "run") if "loss" in line]

    rows = [row for file in files for row in rows_in(file)]
    order = Mixture(SIZES, Table(tuple(starts), tuple(units)), 42, 9, Order)
    embedder = ringbert.Embedder(model, normalize=True)
    expected = []
    for step in range(4):
        numbers = order.rows_at(9 * step, 9 * step + 9)
        batch = [rows[number] for number in numbers]
        assert len({row[0].split()[-1] for row in batch}) == 1
        expected.append(loss_by_hand(batch, embedder, embedder, 0.05))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_rows_are_mixed_by_weights_and_the_plan_and_the_run_say_so(files, tmp_path, capsys):
    model = save_model(tmp_path / "made", "features")
    named = f"{files[0]}=0.25,{files[1]}=0.75"
    flags = (f"--model={model}", f"--train_file={named}", *TRAIN, "--train_batch_size=8")
    with pytest.raises(SystemExit):
        embed(tmp_path / "run", *flags, "--plan")
    planned = capsys.readouterr()
    (plan,) = json.loads(planned.out)
    embed(tmp_path / "run", *flags)
    said = capsys.readouterr().err
    for text in (planned.err, said):
        assert "mixture: news 0.25, books 0.75" in text
        assert "seen: news 0.2 times (40 rows), books 2.18 times (11 rows)" in text
    assert "news 40, books 11" in said
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["stream"] == plan["stream"]
    assert run["stream"]["weights"] == [{"from_row": 0, "value": [1, 3]}]

    losses = [line["loss"] for line in metrics_in(tmp_path / "run") if "loss" in line]
    rows = [row for file in files for row in rows_in(file)]
    order = Mixture(SIZES, Table((0,), ((1, 3),)), 42, 1, Order)
    embedder = ringbert.Embedder(model, normalize=True)
    for step, loss in enumerate(losses):
        batch = [rows[number] for number in order.rows_at(8 * step, 8 * step + 8)]
        assert sum(row[0].endswith("news") for row in batch) == 2
        assert loss == pytest.approx(loss_by_hand(batch, embedder, embedder, 0.05), rel=1e-5)


def test_files_without_weights_are_read_as_one(files, tmp_path):
    joined = rows_in(",".join(files))
    assert joined == rows_in(files[0]) + rows_in(files[1])
    with_comma = write_lines(tmp_path / "a,b.csv", "anchor,positive", "a,b", "c,d")
    assert rows_in(with_comma) == [("a", "b"), ("c", "d")]


def test_files_that_do_not_go_together_are_one_line(files, tmp_path, capsys):
    scored = write_lines(tmp_path / "scored.csv", "anchor,positive,score", "a,b,1", "c,d,0")
    refused(lambda: rows_in(f"{files[0]},{scored}"), f"{scored} have scores", "one loss trains")
    flags = ("--output_dir=o", "--model=m", "--do_train")
    for train_file, *more, named in (
        ("a.csv=1,b.csv", "b.csv has no weight"),
        ("a.csv=0.5", "a weight needs several files"),
        ("a.csv=1,b.csv=0:1@decay", "@decay needs --lr_scheduler_type wsd"),
        ("a.csv,b.csv", "--same_dataset_within_batch", "needs --global_batch_size"),
    ):
        given = (*flags, f"--train_file={train_file}", *more)
        assert named in parsing.refusal(capsys, "bert-embedder", *given)
