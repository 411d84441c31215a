"""bert-embedder on a teacher's scores of each pair's texts."""

import json
from functools import partial

import numpy as np
import pytest
from harness import parsing
from harness.models import save_model
from harness.pair_files import make_pairs
from harness.program_runs import bert, metrics_in
from harness.refusals import refused
from harness.texts import ALL_WORDS, write_lines
from scipy.special import log_softmax

import ringbert
from tasks.embedder.reading import Source, read
from tasks.embedder.settings import PairSettings

embed = partial(bert, "embedder")
TRAIN = ("--do_train", "--num_train_steps=1", "--log_steps=1", "--learning_rate=0")
TRAIN += ("--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0", "--temperature=0.2")


def some_rows(number):
    """Pairs with one to three hard negatives, and scores of all texts."""
    chance, rows = np.random.default_rng(4), []
    for place, pair in enumerate(make_pairs(number, 4)):
        negatives = [" ".join(chance.choice(ALL_WORDS, 3)) for _ in range(1 + place % 3)]
        scores = chance.normal(size=1 + len(negatives)).round(2).tolist()
        row = {"query": pair["anchor"], "pos": [pair["positive"]], "neg": negatives}
        rows.append(row | {"pos_scores": scores[:1], "neg_scores": scores[1:]})
    return rows


def read_file(folder, rows, distills=True):
    file = write_lines(folder / "train.jsonl", *map(json.dumps, rows))
    return read(Source(PairSettings(train_file=file), "train", distills=distills))


@pytest.mark.parametrize("kind", ["margin_mse", "kl_div"])
def test_the_loss_is_that_of_numpy(kind, tmp_path, capsys):
    """Of one step with all rows, in one micro-batch, and in three with two sizes of vectors."""
    model, rows = save_model(tmp_path / "made", "features"), some_rows(20)
    file = write_lines(tmp_path / "train.jsonl", *map(json.dumps, rows))
    flags = (f"--model={model}", f"--train_file={file}", *TRAIN, f"--kd_loss_type={kind}")
    flags += ("--train_batch_size=20",)
    losses = []
    for name, *more in (
        ("one", "--both_ways"),
        ("three", "--gradient_accumulation_steps=3", "--dims=8"),
    ):
        embed(tmp_path / name, *flags, *more)
        losses += [line["loss"] for line in metrics_in(tmp_path / name) if "loss" in line]
    said = capsys.readouterr().err
    assert "from the teacher's scores, by --kd_loss_type" in said
    assert "note: --both_ways" in said
    assert f"nothing: --kd_loss_type {kind} compares the texts of a pair alone" in said

    expected = []
    for size in (64, 8):
        embedder = ringbert.Embedder(model, normalize=True, truncate_dim=size)
        of_pairs, number = 0.0, 0
        for row in rows:
            student = embedder(row["pos"] + row["neg"]) @ embedder(row["query"])
            teacher = np.array(row["pos_scores"] + row["neg_scores"])
            if kind == "margin_mse":
                leads = (student[0] - student[1:]) - (teacher[0] - teacher[1:])
                of_pairs += np.square(leads).sum()
                number += len(leads)
            else:
                logs = log_softmax(teacher)
                of_pairs += (np.exp(logs) * (logs - log_softmax(student / 0.2))).sum()
                number += 1
        expected.append(of_pairs / number)
    np.testing.assert_allclose(losses, [expected[0], sum(expected)], rtol=1e-5)


def test_scores_belong_to_their_texts(tmp_path):
    """Also beside texts that are empty; without the flag they are no part of the loss, which the
    plan says."""
    columns = "query", "pos", "neg", "pos_scores", "neg_scores"
    values = [
        ("a", ["b", "c"], ["", "d"], [1, 2], [3, 4]),
        ("e", "f", "g", 5, 6),
        ("h", ["i"], [], [7], []),
    ]
    rows = [dict(zip(columns, row, strict=True)) for row in values]
    pairs = read_file(tmp_path, rows)
    assert pairs.rows == [("a", "b", "d"), ("a", "c", "d"), ("e", "f", "g")]
    assert pairs.teacher == [(1, 4), (2, 4), (5, 6)]
    assert pairs.counts == {"rows without an anchor, a positive or a negative left out": 1}
    plain = read_file(tmp_path, rows, distills=False)
    assert plain.teacher is None
    assert plain.unread == ["pos_scores, neg_scores: a miner's scores, which no loss here reads"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"neg_scores": [1, 2]}, ["line 2", "neg_scores must have a number for each of the 1"]),
        ({"neg_scores": ["high"]}, ["line 2", "neg_scores", "got ['high']"]),
        ({"pos_scores": None}, ["line 2", "pos_scores", "got None"]),
    ],
)
def test_scores_that_do_not_fit_their_texts_are_refused(change, named, tmp_path):
    row = {"query": "a", "pos": ["b"], "neg": ["c"], "pos_scores": [1], "neg_scores": [2]}
    refused(lambda: read_file(tmp_path, [row, row | change]), *named)
    without = {name: row[name] for name in ("query", "pos", "neg", "pos_scores")}
    refused(lambda: read_file(tmp_path, [without] * 2), "no column 'neg_scores'", "--kd_loss_type")


def test_flags_that_a_teachers_scores_leave_no_room_for(capsys):
    flags = ("--output_dir=o", "--model=m", "--do_train", "--train_file=t", "--kd_loss_type=kl_div")
    found = parsing.refusal(capsys, "bert-embedder", *flags, "--label_column=l")
    assert "--label_column and --kd_loss_type exclude each other" in found
