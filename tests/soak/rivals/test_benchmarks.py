"""Measurements on small inputs: they run to their end and their figures add up."""

import json
import string

import pytest
from harness.program_runs import command, shell
from harness.squad_files import write_squad
from harness.texts import BERT_CONFIG, SPECIAL_TOKENS, write_lines, write_small_corpus

TINY = ("--model_size=tiny", "--batch_size=2", "--seq_length=32")
SHORT = ("--num_warmup=0", "--num_steps=2")


@pytest.fixture
def figures(tmp_path):
    """Runs a measurement; its figures."""

    def measured(module, *flags, ranks=1):
        shell(command(module, *flags, f"--output_file={tmp_path}/figures", ranks=ranks))
        return json.loads((tmp_path / "figures").read_text())

    return measured


@pytest.fixture
def model(tmp_path):
    """A folder with a model's configuration and vocabulary, and questions about contexts of two lengths."""
    words = [*SPECIAL_TOKENS, *"abcdefgh", *string.punctuation]
    write_lines(tmp_path / "vocab.txt", *words)
    (tmp_path / "config.json").write_text(json.dumps(BERT_CONFIG | {"vocab_size": len(words)}))
    entries = [("a b " + "c d " * (4 + 16 * (number % 2)), "e f", "b", 2) for number in range(64)]
    write_squad(tmp_path / "train.json", entries)
    return tmp_path


@pytest.mark.parametrize(
    ("packing", "xla", "padding"),
    [("auto", "off", (0, 0.2)), ("off", "off", (0.2, 0.5)), ("auto", "on", (0, 0.25))],
)
def test_a_step_on_real_windows(model, figures, packing, xla, padding):
    """On 2 ranks x 2 micro-batches x 8 rows: half of the windows."""
    flags = (f"--model={model}", f"--train_file={model}/train.json", f"--packing={packing}", f"--xla={xla}")
    size = ("--gradient_accumulation_steps=2", "--batch_size=8", "--seq_length=64", *SHORT)
    found = figures("tasks.bench", "step", *flags, *size, ranks=2)
    assert padding[0] <= found["padding"] < padding[1]
    assert 15 < found["tokens_per_s"] / found["examples_per_s"] < 47  # the windows have 15 and 47 tokens


def test_sums_and_scaling(figures, tmp_path):
    flags = (*TINY, *SHORT, "--repeat=1", "--megabytes=1,4", "--max_ranks=2", f"--picture={tmp_path}/picture.png")
    found = figures("tasks.bench", "scaling", *flags)
    first, second = list(found["layouts"].values())[:2]
    assert second["speedup"] == pytest.approx(second["examples_per_s"] / first["examples_per_s"])
    assert second["efficiency"] == pytest.approx(second["speedup"] / 2)
    assert all(sums["ours_s"] > 0 for sums in found["allreduce"].values())
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("program", ["squad", "classifier", "pretraining"])
def test_starts_on_one_and_two_ranks(figures, program):
    found = figures("tasks.bench", "start", f"--programs={program}", *TINY, "--num_examples=64", "--repeat=1")
    for seconds in (found[program][ranks][cache] for ranks in "12" for cache in ("cold", "warm")):
        parts = [value for name, value in seconds.items() if not name.startswith("to_")]
        assert min(parts) > 0
        assert seconds["to_second_step_s"] == pytest.approx(sum(parts))


def test_building_and_reading_a_corpus(figures, tmp_path):
    write_small_corpus(tmp_path)
    flags = (
        f"--input_file={tmp_path}/text.txt",
        f"--vocab_file={tmp_path}/vocab.txt",
        "--repeat=1",
        "--device=cpu",
    )
    sizes = ("--one_core_megabytes=0.02", "--scaling_megabytes=0.05", "--megabytes=0.04", "--num_steps=3")
    found = figures("tasks.bench", "corpus", *flags, *sizes, "--batch_size=4", "--device=cpu")
    assert all(found["rates"][name]["mb_per_s"] > 0 for name in ("tfrecord", "static", "arrow"))
    assert found["memory"]["large_mb"] == pytest.approx(10 * found["memory"]["small_mb"], rel=0.01)  # whole lines
    assert 0 < found["reading"]["data_wait"] < 1


def test_preparing_beside_transformers_and_the_update_beside_the_floor(model, figures):
    files = (f"--train_file={model}/train.json", f"--vocab_file={model}/vocab.txt", "--repeat=2")
    found = figures("benchmarks.prepare", *files, "--max_seq_length=64", "--doc_stride=32")
    assert found["questions"] == 64
    assert min(found["ours_s"], found["transformers_s"], found["ratio"]) > 0
    found = figures("benchmarks.update", "--model_size=tiny", "--repeat=2", "--device=cpu")
    assert min(found["ours_s"], found["floor_s"], found["keras_s"]) > 0
