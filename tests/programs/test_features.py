"""bert-features: transformers' hidden states, the form of extract_features.py, and Parquet."""

import io
import json
import re
import shutil
from functools import partial

import numpy as np
import pyarrow.parquet
import pytest
from harness import texts
from harness.google import google_s_example
from harness.models import save_model
from harness.program_runs import in_process, objects_in, refusal
from harness.real_data import real
from safetensors.numpy import load_file, save_file

import ringbert
from ringbase.files import read_json, write_json
from tasks.features.program import LINES_PER_ROW_GROUP, write_parquet

MOST_TOKENS = 16
# Single texts and pairs of 0 to 26 words; the last two are cut.
LINES = [
    "cat",
    "the red fox near a saw ||| two axe and drill",
    "",
    "grey hare and pink crow by the blue rake of hammer",
    "dog ||| cat",
    "bear bear ||| ",
    "goat ||| the brown cow ||| a",
    " ".join(["cat", "dog", "fox"] * 8),
    (
        "bear cat cow crow dog fox goat hare blue brown ||| axe drill hammer pliers rake saw spade"
        " wrench"
    ),
]
# float32: a batch is padded to its longest line and multiplied in other blocks; values are of the
# order of 3.
ROUNDING = 1e-5
DECIMALS = 0.5e-6 + 1e-9  # what rounding to 6 decimals takes
LAYERS = "--layers=-1,0,2"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), "features", num_hidden_layers=4)


def extract(output, lines, model, *argv):
    """The program in this process; `lines` may be a file."""
    if isinstance(lines, list):
        lines = texts.write_lines(output.with_name("lines.txt"), *lines)
    argv = (f"--input_file={lines}", f"--output_file={output}", f"--model={model}", *argv)
    in_process("features", output.parent, *argv)
    return output


def vectors_in(path):
    """Tokens and values [tokens, layers, H] of each line of a JSON file, in its order."""
    vectors = []
    for line in objects_in(path):
        values = [[layer["values"] for layer in token["layers"]] for token in line["features"]]
        vectors.append(([token["token"] for token in line["features"]], np.array(values)))
    return vectors


@pytest.fixture(scope="module")
def extracted(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("extracted")
    size = (f"--max_seq_length={MOST_TOKENS}", "--batch_size=3")
    return extract(folder / "features.jsonl", LINES, model, LAYERS, *size)


def by_hand(line):
    """The tokens of a line of whole known words. extract_features.py reads pairs so, and cuts them
    as run_classifier.py."""
    match = re.match(r"^(.*) \|\|\| (.*)$", line.strip())
    first, second = (match.group(1), match.group(2).split()) if match else (line, None)
    # "|||" within a text is three marks that the vocabulary does not have.
    first = first.replace("|||", "[UNK] [UNK] [UNK]").split()
    return google_s_example(first, second, MOST_TOKENS)[0]


def test_tokens_and_form_are_those_of_extract_features(extracted):
    """Keys and their order, and six decimals at most, as run through OrderedDict and round(x, 6)
    there."""
    vectors, lines = vectors_in(extracted), extracted.read_text().splitlines()
    assert [tokens for tokens, _ in vectors] == [by_hand(line) for line in LINES]
    for number, (text, (tokens, states)) in enumerate(zip(lines, vectors, strict=True)):
        features = [{"token": token, "layers": []} for token in tokens]
        for feature, state in zip(features, states.tolist(), strict=True):
            for index, values in zip((-1, 0, 2), state, strict=True):
                values = [round(value, 6) for value in values]
                feature["layers"].append({"index": index, "values": values})
        assert text == json.dumps({"linex_index": number, "features": features})


def test_vectors_are_those_of_transformers(goldens, tmp_path):
    """MiniLM's hidden states by transformers on PyTorch, of one sentence, within 1e-5."""
    folder, golden = real("minilm"), read_json(goldens / "minilm.json")
    vocabulary = (folder / "vocab.txt").read_text().split("\n")
    tokens = [vocabulary[number] for number in golden["input_ids"]]
    lines = [
        "a line before it that is longer than the sentence, so that it is padded .",
        " ".join(tokens[1:-1]),
    ]
    output = extract(tmp_path / "features.jsonl", lines, folder, "--layers=0,3,-1")
    written, values = vectors_in(output)[1]
    assert written == tokens
    for place, state in enumerate((1, 4, 6)):
        ours = [values[token, place, part] for token, part in golden["places"]]
        np.testing.assert_allclose(ours, golden["values"][state], rtol=0, atol=1e-5)
        # A norm over 13 x 384 values sees a wrong one anywhere.
        assert np.linalg.norm(values[:, place]) == pytest.approx(golden["norms"][state], rel=1e-5)


PAIR = ("the red fox near a saw", "two axe and drill")


def changed(model, folder, num_types, **tokenizer_config):
    """A copy of the model whose second type is like the first one, or which has one type only; and
    whose tokenizer_config.json says something else."""
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    (name,) = [name for name in tensors if "token_type" in name]
    tensors[name] = tensors[name][[0] * num_types]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    contents = {"config.json": {"type_vocab_size": num_types}}
    contents["tokenizer_config.json"] = tokenizer_config
    for file, content in contents.items():
        write_json(folder / file, read_json(folder / file) | content)
    return folder


def test_pairs_have_type_0_where_the_tokenizer_or_the_model_has_no_other(model, tmp_path):
    """As with XLM-R's tokenizer, and of a model with one type."""
    without = {"model_input_names": ["input_ids", "attention_mask"]}
    alike = ringbert.Features(changed(model, tmp_path / "alike", 2))(PAIR).vectors
    assert np.abs(ringbert.Features(model)(PAIR).vectors - alike).max() > 100 * ROUNDING
    silent = tmp_path / "silent"
    shutil.copytree(model, silent)
    config = read_json(silent / "tokenizer_config.json")
    write_json(silent / "tokenizer_config.json", config | without)
    for folder in (silent, changed(model, tmp_path / "one", 1)):
        found = ringbert.Features(folder)(PAIR).vectors
        np.testing.assert_allclose(found, alike, rtol=0, atol=ROUNDING)


def test_parquet_holds_the_same_whatever_the_batch_size(model, extracted, tmp_path):
    """Lines of unlike lengths keep their order and, to rounding, their vectors. More than one row
    group."""
    lines = LINES * 8
    assert len(lines) > LINES_PER_ROW_GROUP
    size = (f"--max_seq_length={MOST_TOKENS}", "--batch_size=1")
    path = extract(tmp_path / "features.parquet", lines, model, LAYERS, *size)
    with pyarrow.parquet.ParquetFile(path) as file:
        assert file.num_row_groups == 2
        table = file.read()
    assert table.column_names == ["linex_index", "tokens", "layer_-1", "layer_0", "layer_2"]
    assert str(table.schema.field("layer_0").type.value_type.value_type) == "float"
    assert table.column("linex_index").to_pylist() == list(range(len(lines)))
    for row, (tokens, values) in zip(table.to_pylist(), vectors_in(extracted) * 8, strict=True):
        assert row["tokens"] == tokens
        stacked = np.stack([row[f"layer_{layer}"] for layer in (-1, 0, 2)], 1)
        np.testing.assert_allclose(stacked, values, rtol=0, atol=ROUNDING + DECIMALS)


def test_a_broken_off_parquet_file_is_closed():
    def vectors():
        for number in range(LINES_PER_ROW_GROUP + 1):
            yield number, ["[CLS]"], np.zeros((1, 1, 4), np.float32)
        raise OSError("the disk is full")

    file = io.BytesIO()
    with pytest.raises(OSError, match="full") as kept:  # and with it the writer
        write_parquet(file, [-1], vectors())
    assert (
        pyarrow.parquet.read_table(io.BytesIO(file.getvalue())).num_rows == LINES_PER_ROW_GROUP
    ), kept


@pytest.mark.parametrize(
    ("content", "layers", "named"),
    [
        (None, "0", ["--input_file", "input.txt"]),
        (b"cat\nd\xf6g\n", "0", ["--input_file", "line 2", "UTF-8"]),
        (b"", "0", ["--input_file", "empty"]),
        (b"cat\n", "-1,-5", ["--layers", "4", "-5"]),
        (b"cat\n", "4", ["--layers", "4"]),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(model, tmp_path, capsys, content, layers, named):
    source, output = tmp_path / "input.txt", tmp_path / "features.jsonl"
    if content is not None:
        source.write_bytes(content)
    call = partial(extract, output, source, model, f"--layers={layers}")
    refusal(capsys, "bert-features", call, *named)
    assert [path for path in tmp_path.iterdir() if path != source] == []
