"""bert-pretraining from the command line to its files, on a small model and text, from both kinds of shards."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ringbert.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
LENGTH, PREDICTIONS, STEPS, SAVE_EVERY = 32, 5, 24, 6
CONFIG = {
    "model_type": "bert", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
TRAIN = (
    "--do_train", "--do_eval", f"--num_train_steps={STEPS}", "--num_warmup_steps=3", "--global_batch_size=16",
    "--learning_rate=1e-2", f"--save_checkpoints_steps={SAVE_EVERY}", "--log_steps=1", "--eval_steps=12",
    f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}",
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """A folder with text, a vocabulary, a configuration, and shards: dynamic, static, tf, held."""
    folder = tmp_path_factory.mktemp("corpus")
    chance = np.random.default_rng(1)
    words = ["".join(chance.choice(list("abcdefgh"), 3)) for _ in range(60)]
    for name, num_documents in (("text", 60), ("held", 12)):
        lines = []
        for _ in range(num_documents):
            first = chance.integers(60)
            for _ in range(chance.integers(4, 12)):  # words follow each other, so that they can be guessed
                lines.append(" ".join(words[(first + place) % 60] for place in range(chance.integers(4, 14))))
            lines.append("")
        (folder / f"{name}.txt").write_text("\n".join(lines))
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    corpus_command(folder, "vocab", "--input_file=text.txt", "--output_dir=vocab", "--vocab_size=100")
    build = (
        "build", "--vocab_file=vocab/vocab.txt", f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={PREDICTIONS}", "--num_workers=1", "--num_shards=2",
    )  # fmt: skip
    static = ("--masking=static", "--dupe_factor=2")
    corpus_command(folder, *build, "--input_file=text.txt", "--output_dir=dynamic")
    corpus_command(folder, *build, "--input_file=held.txt", "--output_dir=held")
    corpus_command(folder, *build, "--input_file=text.txt", "--output_dir=static", *static)
    corpus_command(
        folder, *build, "--input_file=text.txt", "--output_dir=tf", "--format=tfrecord", "--dupe_factor=2"
    )
    return folder


def corpus_command(folder: Path, *arguments: str) -> None:
    """bert-corpus in this process, from `folder`."""
    from tasks.corpus import main

    with contextlib.chdir(folder):
        main(arguments)


def command(corpus: Path, output_dir: Path, shards: str, *flags: str, ranks: int = 1) -> list[str]:
    program = [
        sys.executable, "-m", "tasks.pretraining", f"--input_file={corpus}/{shards}", f"--output_dir={output_dir}",
        f"--eval_input_file={corpus}/held/*.arrow", f"--bert_config_file={corpus}/bert_config.json", *flags,
    ]  # fmt: skip
    launch = [sys.executable, "-m", "distributed.launch", "-np", str(ranks), "--"]
    return program if ranks == 1 else [*launch, *program]


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    cache = str(tmp_path_factory.mktemp("cache"))
    return {**os.environ, "PYTHONPATH": str(ROOT), "RINGBERT_CACHE": cache, "CUDA_VISIBLE_DEVICES": "-1"}


def run(arguments: list[str], environment: dict[str, str], status: int = 0) -> str:
    """Runs a command; its standard error. Fails unless it exits with `status`."""
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr


def in_process(arguments: list[str], output_dir: Path) -> None:
    """The program in this process, on one rank."""
    from distributed.collectives.local import LocalCollectives
    from distributed.run import Run
    from distributed.world import World
    from tasks import flags
    from tasks.job import Job
    from tasks.pretraining.program import Config, run_pretraining

    config = flags.parse(Config, arguments, prog="bert-pretraining", description="")
    job = Job(World(), LocalCollectives(), Run(output_dir, is_writer=True))
    run_pretraining(config.with_default_steps(), job)


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(folder: Path) -> np.ndarray:
    return np.array([[line["mlm"], line["nsp"]] for line in metrics(folder) if "mlm" in line])


@pytest.fixture(scope="module")
def trained(corpus, environment, tmp_path_factory) -> Path:
    """The folder of a run on one rank with masks drawn again in every epoch."""
    folder = tmp_path_factory.mktemp("trained")
    printed = run(command(corpus, folder, "dynamic/*.arrow", *TRAIN), environment)
    assert "masks drawn again in every epoch" in printed
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("shards", ["dynamic/*.arrow", "tf/*.tfrecord"])
def test_what_xla_compiles_trains_the_same(shards, corpus, environment, tmp_path):
    """On 2 ranks with 2 micro-batches; where the shards allow it a length is no multiple of 8."""
    length = LENGTH if shards.startswith("tf") else LENGTH + 1
    flags = (*TRAIN[:-2], f"--max_seq_length={length}", f"--max_predictions_per_seq={PREDICTIONS}",
             "--gradient_accumulation_steps=2", "--num_train_steps=8", "--num_warmup_steps=2")  # fmt: skip
    if shards.startswith("tf"):
        printed = run(command(corpus, tmp_path / "no", shards, *flags), environment, status=1)
        assert (
            "error: --eval_input_file has Arrow shards, but --input_file has none: give their --vocab_file"
            in printed
        )
        flags = (*flags, f"--vocab_file={corpus}/vocab/vocab.txt")
    found = {}
    for xla in ("off", "on"):
        printed = run(command(corpus, tmp_path / xla, shards, *flags, f"--xla={xla}", ranks=2), environment)
        assert ("shapes for XLA" in printed) == (xla == "on")
        found[xla] = losses(tmp_path / xla)
    assert found["on"].shape == (8, 2)
    # float32 at a rate of 1e-2: 1e-4 is what other orders of the sums make of 8 steps.
    np.testing.assert_allclose(found["on"], found["off"], rtol=1e-3)


def test_a_run_leaves_its_files(trained, corpus):
    found = losses(trained)
    assert len(found) == STEPS
    assert found[-4:, 0].mean() < found[:4, 0].mean() - 0.3
    told = json.loads((trained / "result.json").read_text())["scores"]
    written = dict(line.split(" = ") for line in (trained / "eval_results.txt").read_text().splitlines())
    loss = told["masked_lm_loss"] + told["next_sentence_loss"]
    assert {name: float(value) for name, value in written.items()} == told | {"global_step": STEPS, "loss": loss}
    names = {"masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "next_sentence_loss"}
    assert set(told) == names
    measured = [line for line in metrics(trained) if "masked_lm_loss" in line]
    assert [line["step"] for line in measured] == [12, 24]
    assert {name: measured[-1][name] for name in names} == told  # the last step's evaluation is the final one


@pytest.mark.parametrize(
    ("shards", "kind", "files"),
    [
        ("dynamic", "arrow", None),
        ("dynamic/*", "arrow", None),
        ("dynamic/shard-00000*,static/*.arrow", "arrow", None),
        ("tf", "tfrecord", 2),
        ("tf/*", "tfrecord", 2),
        ("tf/shard-00001*", "tfrecord", 1),
        ("foreign/part*", "tfrecord", 1),
        ("foreign", "", "this is a folder: give"),
        ("dynamic,tf", "", "arrow and tfrecord shards match"),
        ("dynamic/manifest.json", "", "no shard matches"),
        ("nothing/*", "", "no file matches"),
    ],
)
def test_shards_are_found_by_folder_and_glob(corpus, shards, kind, files):
    """Other files of the folder, manifest and tokenizer, are no shards, whatever the glob."""
    from bert.corpus.shards import find_shards, open_table

    (corpus / "foreign").mkdir(exist_ok=True)
    shutil.copy(next((corpus / "tf").glob("*.tfrecord")), corpus / "foreign" / "part-1")
    patterns = ",".join(f"{corpus}/{part}" for part in shards.split(","))
    if not kind:
        with pytest.raises(InputError, match=files):
            find_shards(patterns)
        return
    found, names = find_shards(patterns)
    assert found == kind
    if kind == "arrow" and "static" not in shards:
        assert open_table(names)[0].num_rows > 0
    if kind == "tfrecord":
        assert len(names.split(",")) == files
        assert all(Path(name).is_file() for name in names.split(","))


def test_the_model_is_one_of_transformers(trained, corpus):
    from safetensors.numpy import load_file
    from transformers import AutoConfig, AutoTokenizer

    assert AutoConfig.from_pretrained(trained / "model").architectures == ["BertForPreTraining"]
    vocabulary = (corpus / "vocab" / "vocab.txt").read_text().split("\n")
    text = (corpus / "text.txt").read_text().split("\n")[0]
    ids = AutoTokenizer.from_pretrained(trained / "model")(text).input_ids
    assert "".join(vocabulary[i].removeprefix("##") for i in ids[1:-1]) == text.replace(" ", "")
    assert load_file(trained / "model" / "model.safetensors")["cls.seq_relationship.weight"].shape == (2, 32)


@pytest.mark.slow
def test_two_and_three_ranks_give_one_ranks_run(trained, corpus, environment, tmp_path):
    """Dropout off: the same examples with the same masks at each step; losses to float32's rounding (1e-6 each
    step, grown over 24 steps at a high rate), evaluation exact but for the weights' rounding."""
    for ranks in (2, 3):
        output = tmp_path / str(ranks)
        run(command(corpus, output, "dynamic/*.arrow", *TRAIN, ranks=ranks), environment)
        np.testing.assert_allclose(losses(output), losses(trained), rtol=2e-4)
        one, many = (json.loads((f / "result.json").read_text())["scores"] for f in (trained, output))
        assert many == pytest.approx(one, rel=2e-3)


@pytest.mark.slow
def test_killed_in_mid_epoch_and_resumed_gives_the_same_bits(trained, corpus, environment, tmp_path):
    output = tmp_path / "killed"
    arguments = command(corpus, output, "dynamic/*.arrow", *TRAIN)
    job = subprocess.Popen(arguments, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (output / "checkpoints" / f"rows-{16 * SAVE_EVERY:012d}").exists():
            assert time.monotonic() < deadline
            assert job.poll() is None
            time.sleep(0.01)
        job.send_signal(signal.SIGKILL)
        assert job.wait(timeout=30) == -signal.SIGKILL
    finally:
        job.kill()
    newest = json.loads(sorted(output.glob("checkpoints/rows-*/state.json"))[-1].read_text())
    rows = json.loads((corpus / "dynamic" / "manifest.json").read_text())["counts"]["examples"]
    assert newest["step"] < STEPS
    assert newest["position"] % rows != 0
    assert "checkpoints/rows-" in run(arguments, environment)
    resumed = (output / "model" / "model.safetensors").read_bytes()
    assert resumed == (trained / "model" / "model.safetensors").read_bytes()
    np.testing.assert_array_equal(losses(output), losses(trained))


@pytest.mark.slow
def test_tfrecord_shards_train_as_the_same_examples_in_arrow_shards(corpus, environment, tmp_path):
    """TFRecord files without a vocabulary, as Google's program reads them; the model then has none either."""
    flags = [flag for flag in TRAIN if flag not in ("--do_eval", "--eval_steps=12")]
    evaluated = (f"--eval_input_file={corpus}/tf/*.tfrecord", "--eval_steps=auto", "--max_eval_steps=1")
    printed = run(command(corpus, tmp_path / "tf", "tf/*.tfrecord", *flags, *evaluated), environment)
    assert [line["step"] for line in metrics(tmp_path / "tf") if "masked_lm_loss" in line] == [8, 16, STEPS]
    assert "saved without its vocabulary" in printed
    assert "masks read from the shards" in printed
    run(command(corpus, tmp_path / "static", "static/*.arrow", *flags), environment)
    np.testing.assert_array_equal(losses(tmp_path / "tf"), losses(tmp_path / "static"))
    assert not (tmp_path / "tf" / "model" / "vocab.txt").exists()
    assert (tmp_path / "static" / "model" / "vocab.txt").exists()


@pytest.mark.slow
def test_a_second_phase_starts_from_the_first_s_model_and_moments(trained, corpus, environment, tmp_path):
    from safetensors.numpy import load_file

    first = trained / "checkpoints" / f"rows-{16 * STEPS:012d}"
    flags = ("--do_train", "--num_train_steps=1", "--num_warmup_steps=0", "--learning_rate=1e-4",
             "--optimizer=lamb", "--global_batch_size=8", f"--max_seq_length={LENGTH}",
             f"--init_checkpoint={first}")  # fmt: skip
    second = {}
    for name, more in (("with", ["--init_moments"]), ("without", [])):
        printed = run(command(corpus, tmp_path / name, "dynamic/*.arrow", *flags, *more), environment)
        assert ("moments: " in printed) == (name == "with")
        second[name] = load_file(tmp_path / name / "checkpoints" / "rows-000000000008" / "optimizer.safetensors")
    moments = load_file(first / "optimizer.safetensors")
    assert moments["0000"] == STEPS
    assert second["with"]["0000"] == second["without"]["0000"] == 1  # the schedule is the new run's
    # v = 0.999 v + 0.001 g²: the same gradient in both, so the difference is what came along.
    for name in list(moments)[-3:]:
        np.testing.assert_allclose(
            second["with"][name] - second["without"][name], 0.999 * moments[name], rtol=1e-4, atol=1e-9
        )


def test_moments_are_only_in_checkpoints(trained, corpus, tmp_path):
    flags = ("--do_train", "--num_train_steps=1", f"--max_seq_length={LENGTH}", "--init_moments")
    arguments = command(corpus, tmp_path / "out", "dynamic/*.arrow", *flags, f"--init_checkpoint={trained}/model")
    message = "has no optimizer.safetensors: expected a folder in a run's checkpoints/"
    with pytest.raises(InputError, match=message):
        in_process(arguments[3:], tmp_path / "out")


@pytest.mark.parametrize(
    ("shards", "flags", "message"),
    [
        ("nothing/*.arrow", (), "nothing/"),
        ("cut/*.arrow", (), "shard-00001-of-00002.arrow"),
        ("empty/*.arrow", (), "shard-00001-of-00002.arrow"),
        ("dynamic/*.arrow", ("--max_seq_length=16",), "--max_seq_length must be at least 32, the length"),
        ("dynamic/*.arrow", ("--vocab_file=other.txt",), "made with a vocabulary other than"),
        ("dynamic/*.arrow", ("--eval_input_file=absent/*.arrow",), "--eval_input_file absent/"),
        ("tf/*.tfrecord", ("--max_seq_length=16",), "--max_seq_length is 16"),
        ("tf/*.tfrecord", ("--max_predictions_per_seq=4",), "--max_predictions_per_seq is 4"),
        ("cut_tf/*.tfrecord", (), "shard-00001-of-00002.tfrecord"),
        ("zipped/*.tfrecord", (), "gzip -dc"),
    ],
)  # fmt: skip
def test_shards_that_do_not_fit_are_one_line(corpus, environment, tmp_path, shards, flags, message, capfd):
    """In this process: the program's own message, without an output folder full of leftovers."""
    import gzip

    here = tmp_path / "shards"
    for name, kind in (("cut", "dynamic"), ("empty", "dynamic"), ("cut_tf", "tf"), ("zipped", "tf")):
        shutil.copytree(corpus / kind, here / name)
    for path in (here / "cut" / "shard-00001-of-00002.arrow", here / "cut_tf" / "shard-00001-of-00002.tfrecord"):
        path.write_bytes(path.read_bytes()[:-100])
    (here / "empty" / "shard-00001-of-00002.arrow").write_bytes(b"")
    (here / "zipped" / "manifest.json").unlink()  # files of others: a manifest would tell that the sizes differ
    for path in (here / "zipped").glob("*.tfrecord"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    lines = (corpus / "vocab" / "vocab.txt").read_text().splitlines()
    (tmp_path / "other.txt").write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]) + "\n")

    folder = here if (here / shards).parent.is_dir() else corpus
    flags = tuple(flag.replace("other.txt", str(tmp_path / "other.txt")) for flag in flags)
    arguments = command(folder, tmp_path / "out", shards, *TRAIN, *flags)[3:]
    arguments = [a.replace(str(folder) + "/bert_config", str(corpus) + "/bert_config") for a in arguments]
    with pytest.raises(InputError, match=message.replace("*", r"\*")) as refused:
        in_process(arguments, tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "nothing to do"),
        (["--do_train", "--num_train_steps=5", "--num_train_epochs=1"], "exclude each other"),
        (["--do_train", "--init_moments"], "--init_moments needs --init_checkpoint"),
        (["--do_train", "--masked_lm_prob=1.5"], "--masked_lm_prob must be between 0 and 1, got 1.5"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(flags, message, capsys):
    from tasks.pretraining.program import main

    with pytest.raises(SystemExit) as stop:
        main(["--input_file=x.arrow", "--output_dir=y", *flags])
    printed = capsys.readouterr().err
    assert stop.value.code == 2
    assert printed.count("\n") == 1
    assert message in printed


def test_the_defaults_are_google_s():
    from tasks.pretraining.program import Config

    config = Config(output_dir="o", input_file="i", do_train=True).with_default_steps()
    found = (config.num_train_steps, config.num_warmup_steps, config.learning_rate, config.max_seq_length)
    assert found == (100_000, 10_000, 5e-5, 128)
    assert (config.eval_batch_size, config.max_eval_steps) == (8, 100)
    found = {"max_predictions_per_seq": 20, "masked_lm_prob": 0.15, "do_whole_word_mask": False}
    assert config.masks({}) == found
    by_epochs = Config(output_dir="o", input_file="i", do_train=True, num_train_epochs=2.0).with_default_steps()
    assert (by_epochs.num_train_steps, by_epochs.num_warmup_steps) == (None, None)


def test_masks_are_those_that_the_shards_were_built_for_unless_flags_say_otherwise():
    from tasks.pretraining.program import Config

    built = {"max_predictions_per_seq": 13, "masked_lm_prob": 0.4, "do_whole_word_mask": True, "format": "arrow"}
    config = Config(output_dir="o", input_file="i", do_train=True)
    assert config.masks(built) == {name: built[name] for name in list(built)[:3]}
    config = Config(output_dir="o", input_file="i", do_train=True, masked_lm_prob=0.2, do_whole_word_mask=False)
    found = {"max_predictions_per_seq": 13, "masked_lm_prob": 0.2, "do_whole_word_mask": False}
    assert config.masks(built) == found


def test_the_loss_is_pytorch_s(goldens):
    """Masked words averaged over their number plus next sentences over theirs: the golden's loss."""
    from test_model import golden

    from tasks.pretraining import examples as pretraining

    model, there, inputs = golden(goldens, "pretraining_gelu")
    labels = {"masked_ids": there["masked_ids"], "next_sentence_label": there["labels"]}
    batch = inputs | {name: value.astype(np.int32) for name, value in labels.items()}
    sums, weights = pretraining.losses(model(inputs), batch), pretraining.weights(batch)
    assert weights == {"mlm": 5.0, "nsp": 3.0}
    assert sum(float(sums[term]) / weights[term] for term in sums) == pytest.approx(float(there["loss"]), rel=1e-5)


def test_masks_are_a_function_of_seed_row_and_epoch():
    from bert.corpus.masking import Masking
    from tasks.pretraining.examples import collate

    masking = Masking(100, 4, (2, 3))
    values = np.tile(np.r_[2, np.arange(10, 40), 3], 2).astype(np.int32)
    fields = {"input_ids": (values, np.array([0, 32, 64])), "sentence_a_tokens": np.array([32, 32], np.int32)}

    def masks(rows, epoch, seed=1):
        place = {"row": np.array(rows), "epoch": np.array([epoch, epoch])}
        return collate(fields | place, masking, seed)["input_ids"]

    once = masks([7, 8], 0)
    np.testing.assert_array_equal(once, masks([7, 8], 0))
    np.testing.assert_array_equal(once[::-1], masks([8, 7], 0))  # wherever in the batch it stands
    assert not np.array_equal(once[0], once[1])
    assert not np.array_equal(once, masks([7, 8], 1))
    assert not np.array_equal(once, masks([7, 8], 0, seed=2))
