"""bert-features: a golden model's hidden states, the model called by hand, and the form of extract_features.py."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import texts
from program_runs import command, error_of, in_process, shell
from real_data import real

from tasks import features

ROOT = Path(__file__).resolve().parent.parent
# Single texts and pairs of 0 to 26 words; the last two are cut to 16 tokens.
LINES = [
    "cat",
    "the red fox near a saw ||| two axe and drill",
    "",
    "grey hare and pink crow by the blue rake of hammer",
    "dog ||| cat",
    "bear bear ||| ",
    "white violet green with wrench in spade on pliers",
    "goat ||| the brown cow ||| a",
    " ".join(["cat", "dog", "fox"] * 8),
    "bear cat cow crow dog fox goat hare blue brown ||| axe drill hammer pliers rake saw spade wrench",
]
MOST_TOKENS = 16
# float32: a batch is padded to its longest line and multiplied in other blocks; values are of the order of 3.
ROUNDING = 1e-5
DECIMALS = 0.5e-6 + 1e-9  # what rounding to 6 decimals takes


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder of a tiny BERT with random weights."""
    from bert import configuration, weights
    from bert.model import Bert
    from bert.text import tokenizer

    folder = tmp_path_factory.mktemp("model")
    texts.write_model(folder / "source")
    words = tokenizer.load(str(folder / "source/vocab.txt"))
    config = configuration.config_from_file(folder / "source/bert_config.json")
    config.num_hidden_layers = 4
    weights.save(Bert(config, "features", seed=3), folder / "model", words)
    return folder / "model"


def extract(output: Path, lines: list[str] | Path, model: Path, *argv: str) -> Path:
    """The program in this process, on one rank; an error of the user's ends it as from the shell."""
    source = lines
    if isinstance(lines, list):
        source = output.with_name("lines.txt")
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    argv = (f"--input_file={source}", f"--output_file={output}", f"--model={model}", *argv)
    in_process("bert-features", features.Config, features.run_features, output.parent, *argv)
    return output


def vectors_in(path: Path) -> list[tuple[list[str], np.ndarray]]:
    """Tokens and values [tokens, layers, H] of each line of a JSON file, in its order."""
    vectors = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines()):
        line = json.loads(text)
        assert line["linex_index"] == number
        values = [[layer["values"] for layer in token["layers"]] for token in line["features"]]
        vectors.append(([token["token"] for token in line["features"]], np.array(values)))
    return vectors


SMALL = ("--max_seq_length=16", "--batch_size=3")


@pytest.fixture(scope="module")
def extracted(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("extracted")
    return extract(folder / "features.jsonl", LINES, model, "--layers=-1,0,2", *SMALL)


def by_hand(line: str) -> tuple[list[str], int]:
    """Tokens of a line of whole known words, and how many of them are of type 0: extract_features.py's
    convert_examples_to_features, one token after another."""
    match = re.match(r"^(.*) \|\|\| (.*)$", line.strip())
    first, second = (match.group(1).split(), match.group(2).split()) if match else (line.split(), None)
    # "|||" within a text is three marks that the vocabulary does not have.
    first = [piece for word in first for piece in (["[UNK]"] * 3 if word == "|||" else [word])]
    if second is None:
        first = first[: MOST_TOKENS - 2]
        return ["[CLS]", *first, "[SEP]"], len(first) + 2
    while len(first) + len(second) > MOST_TOKENS - 3:
        (first if len(first) > len(second) else second).pop()
    return ["[CLS]", *first, "[SEP]", *second, "[SEP]"], len(first) + 2


def test_a_vocabulary_of_another_language_is_noticed(model, tmp_path):
    lines = ["완전히 다른 말로 된 문장", "모르는 글자"]
    with pytest.raises(SystemExit):
        extract(tmp_path / "out.jsonl", lines, model, *SMALL)
    assert not (tmp_path / "out.jsonl").exists()
    extract(tmp_path / "out.jsonl", lines, model, *SMALL, "--allow_unknown")
    assert len(vectors_in(tmp_path / "out.jsonl")) == 2


def test_vectors_are_the_models_hidden_states(model, extracted):
    """Each line alone, its ids looked up by hand, through the model; layers as the user counts them."""
    import tensorflow as tf

    from bert import configuration, weights
    from bert.model import Bert

    bert = Bert(configuration.read_config(model), "features")
    weights.load(bert, model)
    vocabulary = (model / "vocab.txt").read_text().split("\n")
    vectors = vectors_in(extracted)
    assert len(vectors) == len(LINES)
    for line, (tokens, values) in zip(LINES, vectors, strict=True):
        expected, num_first = by_hand(line)
        assert tokens == expected
        place = np.arange(len(tokens), dtype=np.int32)[None]
        states = bert.hidden_states(
            {
                "input_ids": tf.constant([[vocabulary.index(token) for token in tokens]], tf.int32),
                "token_type_ids": tf.constant((place >= num_first).astype(np.int32)),
                "position_ids": tf.constant(place),
                "example_ids": tf.ones_like(place),
            }
        )
        chosen = np.stack([np.asarray(states[index]).reshape(len(tokens), -1) for index in (4, 1, 3)], 1)
        np.testing.assert_allclose(values, chosen, rtol=0, atol=ROUNDING + DECIMALS)


def test_the_form_is_that_of_extract_features(extracted):
    """Keys and their order, and six decimals at most, as run through OrderedDict and round(x, 6) there."""
    for number, text in enumerate(extracted.read_text().splitlines()):
        line = json.loads(text, object_pairs_hook=list)
        assert [key for key, _ in line] == ["linex_index", "features"]
        assert line[0][1] == number
        for token in line[1][1]:
            assert [key for key, _ in token] == ["token", "layers"]
            assert [[key for key, _ in layer] for layer in token[1][1]] == [["index", "values"]] * 3
            assert [layer[0][1] for layer in token[1][1]] == [-1, 0, 2]
        numbers = re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)
        assert len(numbers) == 3 * 64 * len(line[1][1])
        assert all(float(written) == round(float(written), 6) for written in numbers)


def test_a_golden_models_vectors(goldens, tmp_path):
    """MiniLM's hidden states by transformers on PyTorch, of one sentence, within 1e-5."""
    folder = real("minilm")
    golden = json.loads((goldens / "minilm.json").read_text())
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    tokens = [vocabulary[number] for number in golden["input_ids"]]
    lines = ["a line before it that is longer than the sentence, so that it is padded .", " ".join(tokens[1:-1])]
    output = extract(tmp_path / "features.jsonl", lines, folder, "--layers=0,1,2,3,4,5,-1")
    written, values = vectors_in(output)[1]
    assert written == tokens
    np.testing.assert_array_equal(values[:, 5], values[:, 6])
    for layer in range(6):
        ours = [values[token, layer, part] for token, part in golden["places"]]
        np.testing.assert_allclose(ours, golden["values"][layer + 1], rtol=0, atol=1e-5)
        # A norm over 13 x 384 values sees a wrong one anywhere.
        assert np.linalg.norm(values[:, layer]) == pytest.approx(golden["norms"][layer + 1], rel=1e-5)


def test_parquet_holds_the_same(model, extracted, tmp_path):
    import pyarrow.parquet

    lines = LINES * 7  # more than one row group
    assert len(lines) > features.LINES_PER_ROW_GROUP
    path = extract(tmp_path / "features.parquet", lines, model, "--layers=-1,0,2", *SMALL)
    with pyarrow.parquet.ParquetFile(path) as file:
        assert file.num_row_groups == 2
        table = file.read()
    assert table.column_names == ["linex_index", "tokens", "layer_-1", "layer_0", "layer_2"]
    assert str(table.schema.field("layer_0").type.value_type.value_type) == "float"
    assert table.column("linex_index").to_pylist() == list(range(len(lines)))
    rows = table.to_pylist()
    for number, row in enumerate(rows):
        tokens, values = vectors_in(extracted)[number % len(LINES)] if number < len(LINES) else (None, None)
        if tokens is None:
            assert row["tokens"] == rows[number % len(LINES)]["tokens"]
            continue
        assert row["tokens"] == tokens
        stacked = np.stack([row[f"layer_{layer}"] for layer in (-1, 0, 2)], 1)
        # The first three batches are the JSON run's own: only its decimals differ; the last has other neighbours.
        limit = DECIMALS if number < 9 else ROUNDING + DECIMALS
        np.testing.assert_allclose(stacked, values, rtol=0, atol=limit)


@pytest.mark.parametrize("batch_size", [1, pytest.param(4, marks=pytest.mark.slow), 32])
def test_the_batch_size_changes_nothing(model, extracted, tmp_path, batch_size):
    """Lines of unlike lengths keep their order and, to rounding, their vectors: those of a batch of their own."""
    argv = ("--layers=-1,0,2", "--max_seq_length=16", f"--batch_size={batch_size}")
    vectors = vectors_in(extract(tmp_path / "features.jsonl", LINES, model, *argv))
    for (tokens, values), (expected, wanted) in zip(vectors, vectors_in(extracted), strict=True):
        assert tokens == expected
        np.testing.assert_allclose(values, wanted, rtol=0, atol=ROUNDING + 2 * DECIMALS)


@pytest.mark.slow
def test_two_ranks_write_the_same_bytes(model, extracted, tmp_path):
    output, source = tmp_path / "features.jsonl", extracted.with_name("lines.txt")
    argv = [f"--input_file={source}", f"--output_file={output}", f"--model={model}", "--layers=-1,0,2", *SMALL]
    shell(command("tasks.features", *argv, ranks=2))
    assert output.read_bytes() == extracted.read_bytes()


def test_a_checkpoint_in_the_folder_of_the_output_is_no_run(model, tmp_path):
    """As where --init_checkpoint and --output_file share a folder; the old file is replaced, nothing else left."""
    (tmp_path / "model.ckpt-1000.index").touch()
    (tmp_path / "features.jsonl").write_text("old")
    extract(tmp_path / "features.jsonl", ["cat"], model, "--layers=-1")
    assert len(vectors_in(tmp_path / "features.jsonl")) == 1
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["features.jsonl", "lines.txt", "model.ckpt-1000.index"]


# -- bad input ----------------------------------------------------------------------------------------------------


def refused(capsys, tmp_path: Path, *arguments) -> str:
    """The line that `extract` ends with."""
    with pytest.raises(SystemExit) as stop:
        extract(tmp_path / "features.jsonl", *arguments)
    assert stop.value.code == 1
    assert not [path for path in tmp_path.iterdir() if "features" in path.name]
    return error_of(capsys.readouterr().err, "bert-features")


@pytest.mark.parametrize(("layers", "wrong"), [("-1,-5", -5), ("4", 4), ("0,99", 99)])
def test_layers_out_of_range(model, tmp_path, capsys, layers, wrong):
    printed = refused(capsys, tmp_path, ["cat"], model, f"--layers={layers}")
    assert f"--layers {layers}: the model has 4 layers and no layer {wrong}" in printed


def test_bad_files(model, tmp_path, capsys):
    bad = tmp_path / "bad.txt"
    assert f"--input_file {bad}: no such file" in refused(capsys, tmp_path, bad, model)
    bad.write_bytes(b"cat\nd\xf6g\n")
    assert f"--input_file {bad}: line 2 is not UTF-8" in refused(capsys, tmp_path, bad, model)
    bad.write_bytes(b"")
    assert f"--input_file {bad}: the file is empty" in refused(capsys, tmp_path, bad, model)
    weights = tmp_path / "model"
    weights.mkdir()
    for path in model.iterdir():
        (weights / path.name).write_bytes(path.read_bytes()[: 5000 if path.suffix == ".safetensors" else None])
    printed = refused(capsys, tmp_path, ["cat"], weights)
    assert "model.safetensors: damaged, or not a safetensors file" in printed


FILES = ("--input_file=i", "--output_file=o")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--input_file"),
        (["--input_file=i"], "--output_file"),
        ([*FILES], "weights are needed: give --init_checkpoint, or --model"),
        ([*FILES, "--model=m", "--layers=last"], "--layers must be integers separated by commas, got last"),
        ([*FILES, "--max_seq_length=3"], "--max_seq_length must be at least 4, got 3"),
        ([*FILES, "--layer=1"], "did you mean --layers"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(argv, message, capsys):
    with pytest.raises(SystemExit) as stop:
        features.main(argv)
    printed = capsys.readouterr().err
    assert stop.value.code == 2
    assert printed.count("\n") == 1
    assert message in error_of(printed, "bert-features")
