"""What is refused: damaged checkpoints and folders, tensors that do not fit, configurations that are none."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from weight_files import assert_equal, config, published_shapes, span_tensors, values_of, write_hf, write_tf1

from bert import configuration, weights
from bert.model import Bert
from bert.tensor_names import HEAD_TENSORS
from ringbert.errors import InputError


def test_damaged_tensorflow_checkpoints(tmp_path):
    source = write_tf1(tmp_path / "bert_model.ckpt", values_of(published_shapes()))
    data = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"bert_model\.ckpt: unreadable TensorFlow checkpoint"):
        weights.read(source)
    data.unlink()
    with pytest.raises(InputError, match="unreadable TensorFlow checkpoint"):
        weights.read(source)
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="unreadable TensorFlow checkpoint"):
        weights.read(source)
    (tmp_path / "bert_model.ckpt.index").unlink()
    with pytest.raises(InputError, match="names no checkpoint that exists"):
        weights.read(tmp_path)


def test_a_tied_decoder_is_left_out_and_an_untied_one_refused(goldens, tmp_path):
    tensors = load_file(goldens / "pretraining_gelu" / "model.safetensors")
    tied = tensors | {
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].copy(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].copy(),
    }
    report = weights.load(Bert(config(num_labels=2), "pretraining"), write_hf(tmp_path / "tied", tied))
    assert report.unused == []
    untied = tied | {"cls.predictions.decoder.weight": tied["cls.predictions.decoder.weight"] + 1}
    with pytest.raises(InputError, match="differs from bert/embeddings/word_embeddings"):
        weights.load(Bert(config(num_labels=2), "pretraining"), write_hf(tmp_path / "untied", untied))


def test_missing_unknown_and_misshapen_tensors(goldens, tmp_path):
    tensors = span_tensors(goldens)
    model = Bert(config(num_labels=2), "span")
    before = {name: variable.numpy() for name, variable in model.named_tensors().items()}
    key = "bert.encoder.layer.1.output.dense.weight"

    lacking = write_hf(tmp_path / "lacking", {name: value for name, value in tensors.items() if name != key})
    with pytest.raises(InputError, match=r"lacking: .*missing: bert/encoder/layer_1/output/dense/kernel$"):
        weights.load(model, lacking, new=HEAD_TENSORS["span"])

    more = write_hf(tmp_path / "more", tensors | {key.replace("layer.1", "layer.2"): tensors[key]})
    with pytest.raises(
        InputError, match="does not have: bert/encoder/layer_2/output/dense/kernel; does --bert_conf"
    ):
        weights.load(model, more)

    transposed = write_hf(tmp_path / "other", tensors | {key: np.ascontiguousarray(tensors[key].T)})
    with pytest.raises(InputError, match=r"layer_1/output/dense/kernel has shape \(32, 64\).*needs \(64, 32\)"):
        weights.load(model, transposed)

    for value in (np.nan, np.inf):
        spoilt = tensors[key].copy()
        spoilt[3, 5] = value
        source = write_hf(tmp_path / f"spoilt-{value}", tensors | {key: spoilt})
        with pytest.raises(InputError, match="layer_1/output/dense/kernel has values that are not finite"):
            weights.load(model, source, new=HEAD_TENSORS["span"])

    headless = {name: value for name, value in tensors.items() if not name.startswith("qa_outputs")}
    with pytest.raises(InputError, match="missing: cls/squad/output_weights, cls/squad/output_bias"):
        weights.load(model, write_hf(tmp_path / "headless", headless))
    assert_equal(model, before)  # a refused load leaves the model as it was


@pytest.mark.parametrize("left", [0, 5, 300, 40_000])
def test_a_truncated_safetensors_file(goldens, tmp_path, left):
    file = write_hf(tmp_path / "there", span_tensors(goldens)) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(InputError, match=r"model\.safetensors: damaged, or not a safetensors file"):
        weights.read(tmp_path / "there")


def test_a_lacking_or_damaged_shard_and_index(goldens, tmp_path):
    folder = write_hf(tmp_path / "there", span_tensors(goldens), shards=3)
    index = folder / "model.safetensors.index.json"
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-00002-of-00003.safetensors"):
        weights.read(folder)
    for text in ('{"weight_map": {"a', "{}", "[]", '{"weight_map": {}}'):
        index.write_text(text)
        with pytest.raises(InputError, match=r"index.json"):
            weights.read(folder)


def test_folders_and_names_without_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(
        InputError, match=r"only a pickle \(pytorch_model\.bin\), which can run code.*save_pretrained"
    ):
        weights.read(weights.find(str(tmp_path)))
    (tmp_path / "pytorch_model.bin").unlink()
    for name in (str(tmp_path), "."):
        with pytest.raises(InputError, match=r"no model.safetensors, no TensorFlow checkpoint"):
            weights.read(weights.find(name))
    for name in ("/nowhere/bert", "./nowhere", "bert_model.ckpt", "a/b/c"):
        with pytest.raises(InputError, match=f"{name}: no such folder or checkpoint"):
            weights.find(name)
    with pytest.raises(
        InputError, match="--model nobody/nothing: there is no such folder, and it cannot be downloaded"
    ):
        weights.find("nobody/nothing")


def test_configurations(tmp_path):
    google_s = {
        "attention_probs_dropout_prob": 0.1,
        "directionality": "bidi",
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "type_vocab_size": 2,
        "vocab_size": 30522,
    }
    file = tmp_path / "bert_config.json"
    file.write_text(json.dumps(google_s))
    for source in (tmp_path, tmp_path / "bert_model.ckpt"):
        assert configuration.read_config(source).vocab_size == 30522
    assert configuration.read_config(file.parent).layer_norm_eps == 1e-12
    assert configuration.read_config(tmp_path / "elsewhere" / "bert_model.ckpt") is None
    for change, message in (
        ({"num_attention_heads": 7}, "hidden_size 768 is not a multiple of num_attention_heads 7"),
        ({"model_type": "roberta"}, "model_type must be 'bert', got 'roberta'"),
    ):
        file.write_text(json.dumps(google_s | change))
        with pytest.raises(InputError, match=message):
            configuration.config_from_file(file)
    for text, message in (
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object, got a list"),
        ('{"vocab_size": 7}', "hidden_size is missing"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            configuration.config_from_file(file)
