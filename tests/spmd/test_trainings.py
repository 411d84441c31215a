"""The number of ranks changes speed, never the result: each program on several ranks beside one
rank."""

import functools
import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from harness import classifier_runs, tagger_files, texts
from harness.program_runs import in_world, metrics_in, without_newest_checkpoint
from harness.squad_files import make_entries, write_squad
from safetensors.numpy import load_file

from bert.architectures import ARCHITECTURES
from distributed.world import World
from ringbase.files import read_json, write_json
from ringbase.settings import made
from tasks.corpus.program import build
from tasks.corpus.settings import BuildConfig

ALONE = World()  # one rank, whatever ranks there are around it
BATCH, STEPS = 14, 12  # 14 rows are 5, 5, 4 on three ranks
TRAIN = (
    "--do_train",
    f"--global_batch_size={BATCH}",
    f"--num_train_steps={STEPS}",
    "--num_warmup_steps=2",
    "--learning_rate=1e-3",
    "--lr_scaling=none",
    "--save_checkpoints_steps=6",
    "--check_steps=6",  # the ranks compute the same bits, in each program
)
# of float32 sums of other shares: measured up to 1.4e-5; a rate that is off by 0.1 % gives 1e-3
TOLERANCE = 1e-4
FAMILY = {
    "roberta": {"type_vocab_size": 1, "pad_token_id": 0, "max_position_embeddings": 129},
    "electra": {"embedding_size": 24},
    "distilbert": {"classifier_dropout": 0.0},
    "modernbert": {"local_attention": 8, "pad_token_id": 0, "num_hidden_layers": 3},
}


BERT = "bert_config"  # the file of a configuration, as the names of FAMILY are
PROGRAMS = "squad", "classifier", "tagger", "embedder", "pretraining"


def write_pairs(path, number, seed=5):
    """Anchors with their words in another order as positives, and words of another kind as hard
    negatives, none to three of them; some anchors and positives occur more than once."""
    chance, lines = np.random.default_rng(seed), []
    kinds = [*texts.WORDS]
    for row in range(number):
        if row % 7 == 6:
            lines.append(lines[row - 5] | {"negative": "a red axe"})
            continue
        kind = kinds[row % len(kinds)]
        words = chance.choice(texts.WORDS[kind], chance.integers(2, 9)).tolist()
        other = chance.choice(texts.WORDS[kinds[(row + 1) % len(kinds)]], 4).tolist()
        pair = {"anchor": " ".join(words), "positive": " ".join(words[::-1] + words[:1])}
        negatives = [" ".join(other[: 1 + number]) for number in range(row % 4)]
        lines.append(pair | {"negative": negatives})
    texts.write_lines(path, *map(json.dumps, lines))


def write_taught(path, number):
    """Pairs with one to three hard negatives, and a teacher's scores of all."""
    chance, lines = np.random.default_rng(8), []
    for row in range(number):
        words = chance.choice(texts.ALL_WORDS, 3).tolist()
        negatives = [" ".join(chance.choice(texts.ALL_WORDS, 4)) for _ in range(1 + row % 3)]
        pair = {"query": " ".join(words), "pos": " ".join(words[::-1]), "neg": negatives}
        pair |= {"pos_scores": 2.0, "neg_scores": chance.normal(size=len(negatives)).tolist()}
        lines.append(pair)
    texts.write_lines(path, *map(json.dumps, lines))


@functools.cache
def make_data():
    """A tiny model's files, questions, labelled texts and a corpus; made once by the process that
    asks."""
    folder = Path(tempfile.mkdtemp(prefix="ringbert-data-"))
    classifier_runs.write_data(folder)
    for name, values in FAMILY.items():
        config = read_json(folder / "bert_config.json") | values | {"model_type": name}
        names = {ours: theirs for theirs, ours in ARCHITECTURES[name].keys.items()}
        write_json(
            folder / f"{name}.json", {names.get(key, key): value for key, value in config.items()}
        )
    (folder / "tagger").mkdir()
    tagger_files.write_data(folder / "tagger")
    write_squad(folder / "squad.json", make_entries(60, 1))
    write_squad(folder / "squad-dev.json", make_entries(30, 2))
    write_pairs(folder / "pairs.jsonl", 60)
    write_pairs(folder / "others.jsonl", 25, seed=6)
    write_taught(folder / "taught.jsonl", 40)
    chance = np.random.default_rng(3)
    documents = [[" ".join(chance.choice(texts.ALL_WORDS, 9)) for _ in range(8)] for _ in range(30)]
    (folder / "text.txt").write_text("\n\n".join("\n".join(lines) for lines in documents))
    settings = {
        "input_file": f"{folder}/text.txt",
        "vocab_file": f"{folder}/vocab.txt",
        "output_dir": f"{folder}/corpus",
        "num_shards": 2,
        "num_workers": 1,
        "max_seq_length": 32,
        "max_predictions_per_seq": 5,
    }
    build(made(BuildConfig, settings), World())
    return folder


def run(program, world, data, output_dir, *more):
    """What bert-PROGRAM does after it has joined its ranks; what it returns."""
    flags = {
        "squad": [
            f"--vocab_file={data}/vocab.txt",
            f"--train_file={data}/squad.json",
            "--max_seq_length=40",
            f"--predict_file={data}/squad-dev.json",
            "--max_query_length=16",
            "--doc_stride=12",
        ],
        "classifier": [
            *classifier_runs.model_flags(data),
            *classifier_runs.own_files(data),
            "--class_weights=animal=3,colour=1,tool=0.25",
        ],
        "tagger": tagger_files.flags(data / "tagger"),
        "embedder": [
            f"--vocab_file={data}/vocab.txt",
            f"--train_file={data}/pairs.jsonl=0.6,{data}/others.jsonl=0.4",
            "--same_dataset_within_batch",
            f"--predict_file={data}/pairs.jsonl",
            f"--dev_file={data}/pairs.jsonl",
            "--max_seq_length=32",
            "--both_ways",
            "--dims=24,8",
        ],
        "pretraining": [
            f"--input_file={data}/corpus/*.arrow",
            f"--eval_input_file={data}/corpus/*.arrow",
            "--max_seq_length=32",
            "--max_predictions_per_seq=5",
        ],
    }
    shared = f"--bert_config_file={data}/bert_config.json", f"--output_dir={output_dir}"
    return in_world(world, program, output_dir, *shared, *flags[program], *more)


@functools.cache
def of_one_rank(program, data, config):
    folder = Path(tempfile.mkdtemp(prefix="ringbert-one-"))
    run(program, ALONE, data, folder, *TRAIN, f"--bert_config_file={data}/{config}.json")
    return folder


def trained(folder, steps=STEPS):
    """Names of the checkpoints, how the weights moved between the first and the last one, and the
    losses."""
    checkpoints = sorted((folder / "checkpoints").glob("rows-*"))
    values = [load_file(path / "model.safetensors") for path in checkpoints]
    first, last = values[0], values[-1]
    losses = [line["loss"] for line in metrics_in(folder) if "learning_rate" in line]
    movement = np.concatenate([(last[name] - first[name]).ravel() for name in sorted(first)])
    assert len(losses) == steps, "a short run logs each step"
    return [path.name for path in checkpoints], movement, np.array(losses)


def assert_same_training(folder, reference, steps=STEPS):
    names, movement, losses = trained(folder, steps)
    expected_names, expected, expected_losses = trained(reference, steps)
    assert names == expected_names
    difference = np.linalg.norm(movement - expected) / np.linalg.norm(expected)
    assert difference <= TOLERANCE, f"weights differ by {difference:.1e} of the movement"
    np.testing.assert_allclose(losses, expected_losses, rtol=TOLERANCE)


@pytest.fixture
def data(world):
    return world.on_first(make_data)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("program", PROGRAMS)
def test_training_is_one_ranks(program, world, data, folder):
    """Spans; labels with class weights; masked words and next sentences, of which ranks have
    unequal numbers; pairs with hard negatives, which are negatives of the pairs of all ranks."""
    compare_training(program, BERT, world, data, folder)


@pytest.mark.ranks(2)
def test_training_on_two_ranks_is_one_ranks(world, data, folder):
    """Of one program: tests/spmd/test_step.py has the step of all on one, two and three ranks."""
    compare_training("squad", BERT, world, data, folder)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("config", FAMILY)
def test_training_of_the_family_is_one_ranks(config, world, data, folder):
    compare_training("classifier", config, world, data, folder)


def compare_training(program, config, world, data, folder):
    has_parts = program in ("squad", "embedder")
    accumulation = ("--gradient_accumulation_steps=2",) if has_parts else ()
    more = (
        f"--bert_config_file={data}/{config}.json",
        f"--timeline={folder}/timeline.json",
        *accumulation,
    )
    run(program, world, data, folder, *TRAIN, *more, "--profile_steps=3:4")
    world.on_first(lambda: assert_same_training(folder, of_one_rank(program, data, config)))
    world.on_first(assert_timed, folder, world.size)


@pytest.mark.ranks(3)
def test_negatives_that_are_left_out_are_one_ranks(world, data, folder):
    """On these ranks with four micro-batches. Few steps: a product so near to its limit that
    rounding decides, about one in a million, would change the training."""
    steps = 4
    flags = (*TRAIN, f"--num_train_steps={steps}", "--save_checkpoints_steps=2", "--check_steps=2")
    flags += ("--guide_margin=0.1", "--dims=")
    more = ("--gradient_accumulation_steps=4",)
    run("embedder", world, data, folder / "many", *flags, *more)
    world.on_first(lambda: run("embedder", ALONE, data, folder / "one", *flags))

    def assert_same():
        assert_same_training(folder / "many", folder / "one", steps)
        counts = []
        for name in ("many", "one"):
            lines = metrics_in(folder / name)
            counts.append([line["loss/left_out"] for line in lines if "loss" in line])
        assert counts[0] == counts[1]
        assert 0 < min(counts[0]) < 20

    world.on_first(assert_same)


@pytest.mark.ranks(2)
def test_a_teachers_scores_are_learned_as_on_one_rank(world, data, folder):
    """Also in several micro-batches."""
    steps = 4
    flags = (*TRAIN, f"--num_train_steps={steps}", "--save_checkpoints_steps=2")
    flags += (f"--train_file={data}/taught.jsonl", "--kd_loss_type=kl_div", "--both_ways=false")
    run("embedder", world, data, folder / "many", *flags, "--gradient_accumulation_steps=3")
    world.on_first(lambda: run("embedder", ALONE, data, folder / "one", *flags))
    world.on_first(lambda: assert_same_training(folder / "many", folder / "one", steps))


@pytest.mark.ranks(2)
def test_a_recipe_is_one_rank_s(world, data, folder):
    flags = (*TRAIN, "--lr_scheduler_type=cosine", "--min_lr_ratio=0.1", "--weight_decay=0.05")
    flags += ("--adam_bias_correction", "--adam_beta1=0.8", "--max_grad_norm=0.5")
    flags += ("--layer_lr_decay=0.7", "--head_learning_rate=3e-3", "--label_smoothing_factor=0.1")
    flags += ("--freeze=embeddings",)
    run("classifier", world, data, folder / "many", *flags)
    world.on_first(lambda: run("classifier", ALONE, data, folder / "one", *flags))
    world.on_first(lambda: assert_same_training(folder / "many", folder / "one"))


def assert_timed(folder, size):
    """The timeline has each rank's steps one after the other, and no sum ends before all ranks
    have begun it."""
    events = [
        event for event in read_json(folder / "timeline.json")["traceEvents"] if event["ph"] == "X"
    ]
    sums = []
    for rank in range(size):
        own = [event for event in events if event["pid"] == rank]
        pauses = "checkpoint", "check"
        names = [event["name"] for event in own if event["name"] not in pauses]
        assert names == ["data", "compute", "reduce", "apply"] * STEPS
        # µs, rounded
        assert all(a["ts"] + a["dur"] <= b["ts"] + 2 for a, b in itertools.pairwise(own))
        sums.append(
            [
                (event["ts"], event["ts"] + event["dur"])
                for event in own
                if event["name"] == "reduce"
            ]
        )
    begins, ends = np.moveaxis(sums, -1, 0)
    # The ranks set their clocks when they leave a barrier, on a busy machine not all at once.
    assert (begins.max(axis=0) - ends.min(axis=0)).max() < 1e6
    assert len(read_json(folder / "step_times.json")) == size
    assert [*(folder / "profile").rglob("*.xplane.pb")]


@pytest.mark.ranks(3)
def test_a_run_goes_on_from_another_number_of_ranks(world, data, folder):
    """Six steps on one rank, six on these, are twelve on one."""

    def half():
        without_newest_checkpoint(of_one_rank("squad", data, BERT), folder / "run")

    world.on_first(half)
    run("squad", world, data, folder / "run", *TRAIN)
    world.on_first(lambda: assert_same_training(folder / "run", of_one_rank("squad", data, BERT)))


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("program", "files"),
    [
        ("squad", ("predictions.json", "nbest_predictions.json")),
        ("classifier", ("test_results.tsv",)),
        ("tagger", ("predictions.conll", "predictions.jsonl")),
        ("embedder", ("vectors.npy",)),
    ],
)
def test_predictions_are_one_ranks_to_the_byte(program, files, world, data, folder):
    start = world.on_first(lambda: of_one_rank(program, data, BERT))
    flags = ("--do_predict", "--predict_batch_size=4", f"--init_checkpoint={start}/model")
    run(program, world, data, folder / "many", *flags)
    world.on_first(lambda: run(program, ALONE, data, folder / "one", *flags))
    for name in files:
        assert (folder / "many" / name).read_bytes() == (folder / "one" / name).read_bytes(), name


@pytest.mark.ranks(2)
def test_mined_negatives_are_one_ranks_to_the_byte(world, data, folder):
    start = world.on_first(lambda: of_one_rank("embedder", data, BERT))
    flags = ("--do_predict", "--predict_batch_size=4", f"--init_checkpoint={start}/model")
    flags += ("--num_negatives=3", "--range_min=1", "--relative_margin=0.01")
    run("embedder", world, data, folder / "many", *flags)

    def assert_same_files():
        run("embedder", ALONE, data, folder / "one", *flags)
        mined = [(folder / name / "mined.jsonl").read_bytes() for name in ("many", "one")]
        assert mined[0] == mined[1]
        assert mined[0].count(b"\n") > 10

    world.on_first(assert_same_files)


def test_evaluation_during_training_is_one_ranks(world, data, folder):
    """Of a model that is loaded on rank 0, on texts with words that the few of its training do not
    have."""
    start = world.on_first(lambda: of_one_rank("classifier", data, BERT))
    flags = (*TRAIN, "--do_eval", "--eval_steps=5", "--eval_batch_size=2")
    flags += ("--max_train_examples=14", f"--init_checkpoint={start}/model")
    scores = run("classifier", world, data, folder / "many", *flags)
    alone = world.on_first(lambda: run("classifier", ALONE, data, folder / "one", *flags))
    assert scores.keys() == alone.keys()
    np.testing.assert_allclose([scores[name] for name in alone], [*alone.values()], rtol=1e-4)
    last = world.on_first(
        lambda: [line for line in metrics_in(folder / "many") if "eval_loss" in line]
    )[-1]
    assert last["step"] == STEPS
    # of what is saved
    np.testing.assert_allclose(last["eval_loss"], scores["eval_loss"], rtol=1e-6)


def test_the_plan_says_how_many_steps_of_one_rank_its_steps_are(world, data, folder, capsys):
    flags = ("--do_train", "--train_batch_size=4", "--num_train_steps=5")
    run("classifier", world, data, folder, *flags)
    note = (
        "note: 5 steps of one rank are 2 here, with 2 times the rows; --global_batch_size 4 keeps"
        " one rank's"
    )
    assert (note in "".join(capsys.readouterr())) == (world.rank == 0)
