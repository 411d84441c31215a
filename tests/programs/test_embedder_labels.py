"""bert-embedder on labels: of pairs, such as those of NLI, and of texts, which name their class."""

import json
from functools import partial

import numpy as np
import pytest
from harness import parsing
from harness.models import save_model
from harness.program_runs import bert, metrics_in
from harness.refusals import refused
from harness.texts import FILLING, WORDS, write_lines
from sklearn.metrics import average_precision_score

import ringbert
from tasks.embedder.reading import Source, read
from tasks.embedder.settings import PairSettings

embed = partial(bert, "embedder")
NLI = [
    ("a fox runs", "an animal moves", "entailment"),
    ("a fox runs", "a fox sleeps", "contradiction"),
    ("a fox runs", "a red fox runs", "neutral"),
    ("a fox runs", "there is a fox", "entailment"),
    ("a saw", "a tool", "Entailment"),
    ("a dog", "a cat", "contradiction"),
    ("a dog", "", "entailment"),
    ("a cow", "an animal", "-"),
]


def settings_of(folder, columns, rows, **more):
    lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    file = write_lines(folder / "train.jsonl", *lines)
    return PairSettings(train_file=file, label_column="label", **more)


def test_labels_of_pairs_make_positives_and_hard_negatives(tmp_path):
    columns = {"anchor_column": "premise", "positive_column": "hypothesis"}
    settings = settings_of(tmp_path, ("premise", "hypothesis", "label"), NLI, **columns)
    pairs = read(Source(settings, "train"))
    assert pairs.rows == [
        ("a fox runs", "an animal moves", "a fox sleeps"),
        ("a fox runs", "there is a fox", "a fox sleeps"),
        ("a saw", "a tool"),
    ]
    assert pairs.labels is None
    assert pairs.counts == {
        "rows without premise, hypothesis or label left out": 1,
        "pairs whose label says neither left out": 2,
        "anchors without a right text left out": 2,
    }


@pytest.mark.parametrize("label", [2, "other", 0.5])
def test_a_label_that_says_nothing_of_a_pair_is_refused(label, tmp_path):
    rows = [("a", "b", 1), ("c", "d", 0), ("e", "f", label)]
    settings = settings_of(tmp_path, ("query", "pos", "label"), rows)
    named = "line 3", "the label of a pair must be one of entailment", f"got '{label}'"
    refused(lambda: read(Source(settings, "train")), *named)


def texts_of_kinds(number, seed):
    """Texts of words of one kind, which is their class, among filling."""
    chance, rows = np.random.default_rng(seed), []
    for place in range(number):
        kind = [*WORDS][place % len(WORDS)]
        words = [*chance.choice(WORDS[kind], 3), *chance.choice(FILLING, 2)]
        rows.append((" ".join(chance.permutation(words)), kind))
    return rows


def test_each_text_gets_another_of_its_class_and_is_one_once(tmp_path):
    rows = [*texts_of_kinds(30, 1), ("alone", "rare"), ("nothing", None), texts_of_kinds(1, 1)[0]]
    pairs = read(Source(settings_of(tmp_path, ("text", "label"), rows), "train"))
    kinds = dict(texts_of_kinds(30, 1))
    assert [text for text, _ in pairs.rows] == [*kinds]
    assert sorted(other for _, other in pairs.rows) == sorted(kinds)
    assert all(text != other and kinds[text] == kinds[other] for text, other in pairs.rows)
    assert pairs.labels == [*kinds.values()]
    assert pairs.counts == {
        "rows without text or label left out": 1,
        "texts that their class has already left out": 1,
        "texts alone in their class left out": 1,
    }


def test_texts_of_a_class_are_no_negatives_and_are_found(tmp_path, capsys):
    """The loss of one step by hand; scores by scikit-learn, with a text itself left out."""
    model = save_model(tmp_path / "made", "features")
    rows = texts_of_kinds(24, 2)
    settings = settings_of(tmp_path, ("text", "label"), rows)
    flags = (f"--model={model}", f"--train_file={settings.train_file}", "--label_column=label")
    flags += (f"--dev_file={settings.train_file}", "--do_train", "--do_eval", "--learning_rate=0")
    flags += ("--num_train_steps=1", "--train_batch_size=24", "--log_steps=1")
    flags += ("--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0")
    scores = embed(tmp_path / "run", *flags)
    said = capsys.readouterr().err
    assert "which is another text of its class, because the texts have labels" in said
    (line,) = [line for line in metrics_in(tmp_path / "run") if "loss" in line]

    embedder = ringbert.Embedder(model, normalize=True)
    pairs = read(Source(settings, "train"))
    vectors = embedder([text for text, _ in pairs.rows])
    positives = embedder([other for _, other in pairs.rows])
    products = vectors @ positives.T / 0.05
    labels = np.array(pairs.labels)
    is_other = labels[:, None] != labels
    losses = []
    for number, row in enumerate(products):
        candidates = [row[number], *row[is_other[number]]]
        losses.append(np.log(np.exp(candidates).sum()) - row[number])
    assert line["loss"] == pytest.approx(np.mean(losses), rel=1e-5)

    cosines = vectors @ vectors.T
    others = ~np.eye(len(labels), dtype=bool)
    nearest = np.where(others, cosines, -2).argmax(1)
    assert scores["eval_precision@1"] == pytest.approx(np.mean(labels[nearest] == labels))
    precisions = []
    for row, is_right, is_candidate in zip(cosines, ~is_other, others, strict=True):
        precisions.append(average_precision_score(is_right[is_candidate], row[is_candidate]))
    assert scores["eval_map@100"] == pytest.approx(np.mean(precisions))


def test_labels_and_scores_exclude_each_other(capsys):
    flags = ("--output_dir=o", "--model=m", "--do_train", "--train_file=t", "--label_column=l")
    named = "--label_column and --score_column exclude each other"
    assert named in parsing.refusal(capsys, "bert-embedder", *flags, "--score_column=s")
