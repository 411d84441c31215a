"""bert-pretraining on several corpora with weights, and with masks that change, from its flags to
its files."""

import contextlib
import functools
import json
import shutil

import numpy as np
import pytest
from harness import jobs
from harness.corpora import padded, write_records
from harness.program_runs import bert, command, metrics_in, refusal, weights_in
from harness.texts import ALL_WORDS, write_model

import ringbert
from bert.corpus.masking import Masking
from bert.corpus.shards import find_shards, open_shards
from bert.text import tokenizer
from distributed.mixture import Mixture
from distributed.rows import BatchRows
from distributed.stages import Table
from ringbase.files import read_json
from tasks.corpus.__main__ import main as bert_corpus
from tasks.pretraining.task import MaskedTask

LENGTH, STEPS, BATCH, CHANGE, DECAY = 32, 24, 16, 12, 18
# Books come in half-way, and reviews in the decay of the rate, the last quarter; rows by hand.
MIXTURE = "{0}/news=7:2@50%,{0}/books=3:2@50%:0.5@decay,{0}/reviews=0:2@decay"
MASKS = "--masked_lm_prob=0.3:0.15@12:0.1@decay"
WEIGHTS = [[7, 3, 0], [1, 1, 0], [4, 1, 4]]
STARTS = [0, CHANGE * BATCH, DECAY * BATCH]
TRAIN = (
    "--do_train",
    "--do_lower_case",
    f"--num_train_steps={STEPS}",
    "--num_warmup_steps=3",
    "--lr_scheduler_type=wsd",
    f"--num_decay_steps={STEPS - DECAY}",
    "--learning_rate=1e-2",
    f"--global_batch_size={BATCH}",
    "--save_checkpoints_steps=6",
    "--keep_checkpoints=9",
    "--log_steps=1",
    f"--max_seq_length={LENGTH}",
)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """A folder with a vocabulary, a configuration, and corpora that cannot be told apart by their
    build, but for the last five."""
    folder, chance = tmp_path_factory.mktemp("corpora"), np.random.default_rng(1)
    write_model(folder, num_layers=1)
    words = ALL_WORDS * 2

    def document():
        first = chance.integers(len(words) // 2)
        return "\n".join(
            " ".join(words[first:][: chance.integers(4, 14)]) for _ in range(chance.integers(4, 12))
        )

    (folder / "other").mkdir()
    other = (folder / "vocab.txt").read_text().replace("cat\n", "cats\n")
    (folder / "other/vocab.txt").write_text(other)
    built = "--vocab_file=vocab.txt", f"--max_seq_length={LENGTH}"
    with contextlib.chdir(folder):
        for name, num_documents, *flags in (
            ("news", 60, *built, "--dupe_factor=2"),
            ("books", 20, *built),
            ("reviews", 9, *built),
            ("longer", 9, *built, "--max_seq_length=40"),
            ("without", 9, *built, "--nonext_sentence"),
            ("cats", 9, *built, "--vocab_file=other/vocab.txt"),
            ("fewer", 9, *built, "--masked_lm_prob=0.1"),
            ("static", 9, *built, "--masking=static", "--dupe_factor=1"),
        ):
            text = "\n\n".join(document() for _ in range(num_documents))
            (folder / f"{name}.txt").write_text(text)
            files = f"--input_file={name}.txt", f"--output_dir={name}"
            bert_corpus(["build", *files, "--num_shards=2", "--num_workers=1", *flags])
    masks = {"masked_lm_positions": [2], "masked_lm_ids": [8], "is_random_next": 0}
    row = {"input_ids": [5] * 6, "sentence_a_tokens": 4, **masks}
    write_records(folder / "googles.tfrecord", [padded(row, LENGTH, most=20)])
    return folder


def files_of(corpora, mixture=MIXTURE):
    config = f"--bert_config_file={corpora}/bert_config.json"
    return config, f"--input_file={mixture.format(corpora)}"


def pretrain(corpora, output_dir, *flags, mixture=MIXTURE):
    return bert("pretraining", output_dir, *files_of(corpora, mixture), *TRAIN, *flags)


@pytest.fixture(scope="module")
def trained(corpora, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    pretrain(corpora, folder, MASKS)
    return folder


def losses(folder):
    names = "mlm", "nsp", "mlm/news", "mlm/books", "mlm/reviews", "nsp/news"
    return np.array([[line.get(name, 0) for name in names] for line in metrics_in(folder)])


def test_a_mixture_learns_and_tells_what_it_was(corpora, trained):
    lines = metrics_in(trained)
    mlm = [line["mlm"] for line in lines]
    assert np.mean(mlm[-4:]) < np.mean(mlm[:4]) - 0.3
    for number, line in enumerate(lines):
        seen = {name for name in ("news", "books", "reviews") if f"mlm/{name}" in line}
        assert ("reviews" in seen) == (number >= DECAY)
        assert {"news"} < seen
        # a mean of the corpora's means
        for term in ("mlm", "nsp"):
            parts = [line[f"{term}/{name}"] for name in seen]
            assert min(parts) <= line[term] <= max(parts)
    facts = read_json(trained / "run.json")
    stream = facts["stream"]
    assert [piece["value"] for piece in stream["weights"]] == WEIGHTS
    assert [piece["from_row"] for piece in stream["weights"]] == STARTS
    assert [[*piece.values()] for piece in stream["masked_lm_prob"]] == [
        [0, 0.3],
        [STARTS[1], 0.15],
        [STARTS[2], 0.1],
    ]
    sizes = [read_json(corpora / each["name"] / "manifest.json") for each in stream["corpora"]]
    assert [each["rows"] for each in stream["corpora"]] == [
        size["counts"]["examples"] for size in sizes
    ]
    rows = [12 * 16 * 0.7 + 6 * 16 * 0.5 + 6 * 16 * 4 / 9]
    assert stream["corpora"][0]["seen"] == pytest.approx(rows[0] / stream["corpora"][0]["rows"])
    page = (trained / "report.html").read_text()
    assert "parts of the loss, smoothed" in page
    assert "mlm/books" in page
    assert "books 2." in page or "books 1." in page


def test_the_plan_says_how_often_each_corpus_is_seen(corpora, trained, tmp_path, capsys):
    with pytest.raises(SystemExit):
        pretrain(corpora, tmp_path / "planned", MASKS, "--plan")
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["stream"] == read_json(trained / "run.json")["stream"]
    assert "mixture: news 0.7, books 0.3, reviews 0; news 0.5, books 0.5, reviews 0 from row" in (
        printed.err
    )
    assert "seen: news 0.5" in printed.err


@pytest.mark.slow
@pytest.mark.parametrize("step", [6, 18])
def test_stopped_before_a_change_and_continued_gives_the_same_bits(
    corpora, trained, tmp_path, step
):
    broken = shutil.copytree(trained, tmp_path / "broken")
    for checkpoint in (broken / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("rows-")) > step * BATCH:
            shutil.rmtree(checkpoint)
    shutil.rmtree(broken / "model")
    (broken / "result.json").unlink()
    pretrain(corpora, broken, MASKS)
    assert weights_in(broken / "model") == weights_in(trained / "model")
    np.testing.assert_array_equal(losses(broken), losses(trained))


@pytest.mark.slow
def test_two_ranks_train_as_one(corpora, trained, tmp_path):
    files = *files_of(corpora), f"--output_dir={tmp_path}", MASKS
    jobs.shell(*command("tasks.pretraining", *files, *TRAIN, ranks=2))
    # the sums of other micro-batches are rounded in another way
    np.testing.assert_allclose(losses(tmp_path), losses(trained), rtol=2e-3)


def test_masks_follow_the_schedule_by_the_place_in_the_stream(corpora):
    """By hand: round(L · p) of each row's L tokens, p that of its position."""
    words = tokenizer.load(str(corpora / "vocab.txt"))
    shares = Table((0, 40, 100), (0.5, 0.2, 0.1))
    masking = Masking(words, 0.1, LENGTH, False)
    task = MaskedTask(LENGTH, masking, 7, LENGTH, shares=shares, corpora=("a", "b"))
    shards, _ = open_shards(find_shards(f"{corpora}/news"))
    rows = BatchRows(shards)
    order = Mixture([len(rows) - 50, 50], Table((0,), ((1, 1),)), 3)
    for start in range(0, 160, 16):
        of_stream = order.fields_at(start, start + 16)
        fields = rows.take(of_stream["row"]) | of_stream
        batch = task.batch(fields)
        lengths = np.diff(fields["input_ids"][1])
        expected = []
        for length, position in zip(lengths.tolist(), range(start, start + 16), strict=True):
            share = 0.5 if position < 40 else 0.2 if position < 100 else 0.1
            expected.append(max(1, round(length * share)))
        assert len(batch["masked_ids"]) == sum(expected)
        of_corpus = [0, 0]
        for number, count in zip(of_stream["corpus"].tolist(), expected, strict=True):
            of_corpus[number] += count
        weights = task.weights(batch)
        assert [weights["mlm/a"], weights["mlm/b"]] == of_corpus
        assert weights["nsp/a"] + weights["nsp/b"] == weights["nsp"] == 16


@pytest.mark.slow
def test_held_out_examples_have_the_last_share_of_masks(corpora, tmp_path, capsys):
    """So that scores of trainings with the same end can be compared."""
    held_out = f"--eval_input_file={corpora}/reviews", "--do_eval", "--nodo_train"
    config, _ = files_of(corpora)
    given = config, f"--input_file={corpora}/reviews", "--do_lower_case", "--max_seq_length=32"
    bert("pretraining", tmp_path / "run", *given, "--do_train", "--num_train_steps=1")
    scores = []
    for share in ("0.4:0.15@50%", "0.15"):
        flags = *held_out, f"--masked_lm_prob={share}", "--max_predictions_per_seq=13"
        scores.append(bert("pretraining", tmp_path / "run", *given, *flags))
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("mixture", "flags", "named"),
    [
        (
            "{0}/news=1,{0}/longer=1",
            ["--max_seq_length=40"],
            ["max_seq_length (32 and 40)", "longer again with --max_seq_length 32 (bert"],
        ),
        (
            "{0}/news=1,{0}/without=1",
            [],
            ["next_sentence (true and false)", "again with --next_sentence ("],
        ),
        ("{0}/news=1,{0}/cats=1", [], ["a vocabulary other than", "--vocab_file"]),
        (
            "{0}/news,{0}/cats",
            [],
            ["in the vocabulary, ", "cats again with --model ", "news/tokenizer --dupe"],
        ),
        (
            "{0}/news=1,{0}/static=1",
            [],
            ["masking (dynamic and static)", "again with --masking dynamic and without --mas"],
        ),
        ("{0}/news=1,{0}/fewer=1", [], ["masked_lm_prob (", "and 0.1)"]),
        ("{0}/news=1,{0}/googles.tfrecord=1", [], ["TFRecord files", "corpora of one kind"]),
        ("{0}/news=1,{0}/news=2", [], ["twice", "sum of its weights"]),
        ("{0}/news=1,{0}/news/shard-00000*=2", [], ["shard-00000-of-00002.arrow twice"]),
        ("{0}/news=1:2@30,{0}/books=1", [], ["2@30", "before the end at 384"]),
        ("{0}/news=1,{0}/books=0", [], ["books", "always 0"]),
        ("{0}/news=0:1@50%,{0}/books=0:1@50%", [], ["from row 0", "all weights are 0"]),
        ("{0}/static", [MASKS], ["--masked_lm_prob", "--masking dynamic"]),
        ("{0}/news", ["--masked_lm_prob=0.3:0.1@99"], ["--masked_lm_prob", "0.1@99"]),
    ],
)
def test_what_cannot_be_mixed_is_one_line(corpora, tmp_path, capsys, mixture, flags, named):
    call = functools.partial(pretrain, corpora, tmp_path / "out", *flags, mixture=mixture)
    refusal(capsys, "bert-pretraining", call, *named)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("mixture", "flags", "named"),
    [
        ("{0}/news=1,{0}/books", [], ["books has no weight"]),
        ("{0}/news=1", [], ["a weight needs several corpora"]),
        ("{0}/news", ["--mixture_alpha=0.5"], ["--mixture_alpha needs several corpora"]),
        ("{0}/news=1,{0}/books=2", ["--mixture_alpha=0.5"], ["exclude each other"]),
        ("{0}/news,{0}/books", ["--mixture_alpha=0.5:11@50%"], ["at most 10", "11"]),
        ("{0}/news,{0}/books", ["--mixture_alpha=much"], ["--mixture_alpha must be a number"]),
        ("{0}/news", ["--masked_lm_prob=0.3:0@50%"], ["--masked_lm_prob", "got 0"]),
        ("{0}/news", ["--masked_lm_prob=0.3,0.1"], ["0.3:0.15@60%"]),
        ("{0}/news=1,{0}/books=1", ["--do_eval"], ["--eval_input_file"]),
        ("{0}/news", ["--eval_input_file=a=1,b=2"], ["--eval_input_file", "no weights"]),
        (MIXTURE, ["--lr_scheduler_type=linear"], ["@decay", "--lr_scheduler_type wsd"]),
    ],
)
def test_flags_that_contradict_each_other_are_one_line(
    corpora, tmp_path, capsys, mixture, flags, named
):
    call = functools.partial(pretrain, corpora, tmp_path / "out", *flags, mixture=mixture)
    refusal(capsys, "bert-pretraining", call, *named, status=2)


def test_a_corpus_named_twice_without_weights_is_read_once_and_said(corpora, tmp_path, capsys):
    with pytest.raises(SystemExit):
        pretrain(corpora, tmp_path, "--plan", mixture="{0}/news,{0}/news/*.arrow")
    assert "--input_file names shards of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "mixture", "named"),
    [
        (
            ["--num_train_steps=48"],
            MIXTURE,
            ["--num_train_steps = 24", "by which --input_file would be"],
        ),
        (["--masked_lm_prob=0.3:0.1@12"], MIXTURE, ["--masked_lm_prob = 0.3; 0.15 from row 192"]),
        ([], MIXTURE.replace("=7:", "=8:"), ["--input_file = weights 7:3:0", "8:3:0"]),
        (["--mixture_alpha=0.5"], "{0}/news,{0}/books,{0}/reviews", ["None", "weights"]),
        ([], "{0}/news", ["other training data", "--input_file was"]),
    ],
)
def test_a_run_goes_on_with_the_same_mixture_alone(corpora, trained, capsys, flags, mixture, named):
    """Also by `--plan`, which says it before anything is read."""
    for more in ([], ["--plan"]):
        given = [MASKS, *flags, *more]
        if more and "other training data" in named:
            continue
        call = functools.partial(pretrain, corpora, trained, *given, mixture=mixture)
        refusal(capsys, "bert-pretraining", call, *named)


def test_toml_and_python_name_corpora_in_lists(corpora, tmp_path, capsys):
    listed = [f"{corpora}/news=7", f"{corpora}/books=3:2@50%"]
    table = f'input_file = {json.dumps(listed)}\nmasked_lm_prob = "0.3:0.15@12"\n'
    (tmp_path / "mixture.toml").write_text(table)
    job = ringbert.Pretraining(
        input_file=listed,
        masked_lm_prob="0.3:0.15@12",
        bert_config_file=corpora / "bert_config.json",
        num_train_steps=STEPS,
        global_batch_size=BATCH,
        max_seq_length=LENGTH,
        do_lower_case=True,
        output_dir=tmp_path / "run",
    )
    (planned,) = job.plan()
    config, _ = files_of(corpora)
    with pytest.raises(SystemExit):
        bert("pretraining", tmp_path, config, *TRAIN, f"--config={tmp_path}/mixture.toml", "--plan")
    (of_toml,) = json.loads(capsys.readouterr().out)
    assert planned["stream"] == of_toml["stream"]
    assert [piece["value"] for piece in planned["stream"]["weights"]] == [[7, 3], [7, 2]]


@pytest.mark.slow
def test_masks_of_the_builds_may_differ_where_flags_say_others(corpora, tmp_path):
    given = "--masked_lm_prob=0.2", "--num_train_steps=1", "--num_warmup_steps=0"
    given += "--num_decay_steps=0", "--global_batch_size=4"
    pretrain(corpora, tmp_path, *given, mixture="{0}/news=1,{0}/fewer=1")
    assert read_json(tmp_path / "run.json")["fixed"]["--masked_lm_prob"] == 0.2


def test_a_temperature_gives_the_shares_of_its_formula(corpora, tmp_path, capsys):
    mixture, alpha = "{0}/news,{0}/books", "--mixture_alpha=0.7:0.3@50%"
    with pytest.raises(SystemExit):
        pretrain(corpora, tmp_path, alpha, "--plan", mixture=mixture)
    (run,) = json.loads(capsys.readouterr().out)
    sizes = np.array([each["rows"] for each in run["stream"]["corpora"]])
    for exponent, piece in zip((0.7, 0.3), run["stream"]["weights"], strict=True):
        found = np.array(piece["value"])
        expected = sizes**exponent / (sizes**exponent).sum()
        np.testing.assert_allclose(found / found.sum(), expected, atol=2e-9)
