"""Weights from and to every format: TensorFlow 1 checkpoints, Hugging Face folders; the folder that we write."""

import os
import re

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoTokenizer, BertConfig
from weight_files import (
    SHAPES_OF_HEADS,
    assert_equal,
    config,
    published_shapes,
    span_tensors,
    values_of,
    write_hf,
    write_tf1,
)

from bert import configuration, weights
from bert.model import Bert
from bert.tensor_names import HEAD_TENSORS, google_name, hugging_face_name
from bert.text import tokenizer
from ringbert.errors import InputError

OF_PRETRAINING = [name for name in SHAPES_OF_HEADS if name.startswith(("cls/pred", "cls/seq"))]
POOLER = ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
GOLDEN_FOLDERS = {"span": "span_gelu", "classifier": "classifier_gelu", "pretraining": "pretraining_gelu"}


# -- TensorFlow 1 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["bert_model.ckpt", "model.ckpt-123", "folder"])
def test_a_checkpoint_is_found_by_prefix_and_by_folder(tmp_path, place):
    tensors = values_of({"output_bias": (3,)})
    write_tf1(tmp_path / (place if "ckpt" in place else "model.ckpt-123"), tensors)
    if place != "folder":
        (tmp_path / "checkpoint").unlink()
    found = weights.read(weights.find(str(tmp_path / place if place != "folder" else tmp_path)))
    assert found.keys() == tensors.keys()
    np.testing.assert_array_equal(found["output_bias"], tensors["output_bias"])


def test_a_pretraining_checkpoint_fills_each_head(tmp_path):
    shapes = published_shapes() | {name: SHAPES_OF_HEADS[name] for name in OF_PRETRAINING}
    there = values_of(shapes)
    source = write_tf1(tmp_path / "bert_model.ckpt", there)

    span = Bert(config(), "span")
    before = {name: span.named_tensors()[name].numpy() for name in HEAD_TENSORS["span"]}
    report = weights.load(span, source, new=HEAD_TENSORS["span"])
    assert_equal(span, there | before)
    assert sorted(report.missing) == sorted(HEAD_TENSORS["span"])
    assert report.unused == sorted(OF_PRETRAINING + POOLER)
    assert report.loaded == len(span.named_tensors()) - 2
    assert "new, with their initial values: cls/squad/output_weights" in str(report)
    assert "not used by this model: bert/pooler/dense/bias" in str(report)

    classifier = Bert(config(), "classifier")
    report = weights.load(classifier, source, new=HEAD_TENSORS["classifier"])
    assert report.missing == ["output_weights", "output_bias"]
    assert report.unused == sorted(OF_PRETRAINING)
    np.testing.assert_array_equal(classifier.named_tensors()["bert/pooler/dense/kernel"], there[POOLER[1]])

    pretraining = Bert(config(), "pretraining")
    report = weights.load(pretraining, source)
    assert_equal(pretraining, there)
    assert (report.missing, report.unused) == ([], [])


@pytest.mark.parametrize("head", ["span", "classifier", "pretraining"])
def test_a_round_trip_keeps_the_bits(tmp_path, head):
    """TensorFlow 1 -> model -> safetensors -> model."""
    model = Bert(config(), head)
    there = values_of({name: tuple(variable.shape) for name, variable in model.named_tensors().items()})
    assert set(there) <= set(published_shapes() | SHAPES_OF_HEADS)
    all_shapes = published_shapes() | SHAPES_OF_HEADS
    assert all(value.shape == all_shapes[name] for name, value in there.items())
    weights.load(model, write_tf1(tmp_path / "bert_model.ckpt", there))
    assert_equal(model, there)
    weights.save(model, tmp_path / "saved")
    again = Bert(configuration.read_config(tmp_path / "saved"), head, seed=9)
    report = weights.load(again, weights.find(str(tmp_path / "saved")))
    assert_equal(again, there)
    assert (report.missing, report.unused, report.loaded) == ([], [], len(there))
    assert again.config.to_dict() == model.config.to_dict() | {
        "architectures": [weights.ARCHITECTURES[head]],
        "dtype": again.config.dtype,
    }


def test_a_classifier_checkpoint_of_another_number_of_labels(tmp_path):
    there = values_of(published_shapes() | {"output_weights": (2, 32), "output_bias": (2,)})
    source = write_tf1(tmp_path / "model.ckpt-9", there)
    two, three = (Bert(config(num_labels=labels), "classifier") for labels in (2, 3))
    weights.load(two, source)
    assert_equal(two, there)
    with pytest.raises(InputError, match=r"output_weights has shape \(2, 32\).*needs \(3, 32\)"):
        weights.load(three, source)
    before = {name: three.named_tensors()[name].numpy() for name in ("output_weights", "output_bias")}
    report = weights.load(three, source, new=HEAD_TENSORS["classifier"])
    assert sorted(report.missing) == ["output_bias", "output_weights"]
    assert_equal(three, there | before)


def test_a_wrong_pooler_is_refused_even_when_the_head_is_new(tmp_path):
    there = values_of(published_shapes() | {"bert/pooler/dense/kernel": (32, 16)})
    source = write_tf1(tmp_path / "bert_model.ckpt", there)
    with pytest.raises(InputError, match="bert/pooler/dense/kernel has shape"):
        weights.load(Bert(config(), "classifier"), source, new=HEAD_TENSORS["classifier"])


# -- Hugging Face folders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", GOLDEN_FOLDERS)
def test_the_names_are_those_of_transformers(goldens, tmp_path, head):
    """What we write has the keys and values of what transformers wrote, for each architecture."""
    folder = goldens / GOLDEN_FOLDERS[head]
    model = Bert(configuration.read_config(folder), head)
    report = weights.load(model, folder)
    assert (report.missing, report.unused) == ([], [])
    weights.save(model, tmp_path)
    theirs, ours = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert sorted(ours) == sorted(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
        assert ours[name].dtype == np.float32
    written = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(written, BertConfig)
    assert written.architectures == AutoConfig.from_pretrained(folder).architectures
    for name in ("hidden_act", "num_labels", "layer_norm_eps", "max_position_embeddings", "vocab_size"):
        assert getattr(written, name) == getattr(model.config, name)


@pytest.mark.parametrize("head", ["span", "classifier", "pretraining", "features"])
def test_names_turn_both_ways(head):
    for name in Bert(config(), head).named_tensors():
        theirs, transpose = hugging_face_name(name, head)
        assert google_name(theirs) == (name, transpose)
        assert transpose == name.endswith("/kernel")


def old_names(tensors) -> dict[str, np.ndarray]:
    """LayerNorm.weight and bias under the names of 2019."""
    renamed = {re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", name): value for name, value in tensors.items()}
    return {re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", name): value for name, value in renamed.items()}


def without_prefix(tensors) -> dict[str, np.ndarray]:
    return {name.removeprefix("bert."): value for name, value in tensors.items()}


def with_pooler_and_positions(tensors) -> dict[str, np.ndarray]:
    pooler = {"bert.pooler.dense.weight": np.zeros((32, 32), np.float32), "bert.pooler.dense.bias": np.zeros(32)}
    return tensors | pooler | {"bert.embeddings.position_ids": np.arange(24)[None]}


@pytest.mark.parametrize("change", [dict, without_prefix, old_names, with_pooler_and_positions])
@pytest.mark.parametrize("shards", [0, 3])
def test_folders_in_the_wild(goldens, tmp_path, change, shards):
    tensors = span_tensors(goldens)
    expected = Bert(config(num_labels=2), "span")
    weights.load(expected, goldens / "span_gelu")
    model = Bert(config(num_labels=2), "span", seed=1)
    report = weights.load(model, write_hf(tmp_path / "there", change(tensors), shards))
    assert_equal(model, {name: variable.numpy() for name, variable in expected.named_tensors().items()})
    assert report.unused == (POOLER if change is with_pooler_and_positions else [])


def test_a_folder_without_pooler(goldens, tmp_path):
    """A span model does not need it, a classifier's may be new when training starts and never for prediction."""
    source = write_hf(tmp_path / "there", span_tensors(goldens))
    weights.load(Bert(config(num_labels=2), "span"), source)
    classifier = Bert(config(), "classifier")
    report = weights.load(classifier, source, new=HEAD_TENSORS["classifier"])
    assert sorted(report.missing) == sorted(HEAD_TENSORS["classifier"])
    assert report.unused == ["cls/squad/output_bias", "cls/squad/output_weights"]
    with pytest.raises(InputError, match=r"tensors that the model needs are missing: .*bert/pooler/dense/kernel"):
        weights.load(classifier, source)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_stored_types(goldens, tmp_path, kind):
    stored = {name: value.astype(kind) for name, value in span_tensors(goldens).items()}
    model = Bert(config(num_labels=2), "span")
    weights.load(model, write_hf(tmp_path / "there", stored))
    for name, variable in model.named_tensors().items():
        key, transpose = hugging_face_name(name, "span")
        expected = stored[key].astype(np.float32)
        np.testing.assert_array_equal(variable.numpy(), expected.T if transpose else expected)
        assert variable.dtype == "float32"


# -- the folder that we write -----------------------------------------------------------------------------------


def test_the_saved_folder_is_one_of_transformers(goldens, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Ca", "##fé", "ca", "##fe", "he", "##llo"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    ours = tokenizer.load(str(tmp_path / "vocab.txt"), do_lower_case=False)
    model = Bert(configuration.read_config(goldens / "span_gelu"), "span")
    weights.save(model, tmp_path / "model", ours)
    assert AutoConfig.from_pretrained(tmp_path / "model").architectures == ["BertForQuestionAnswering"]
    theirs = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert theirs("hello Café").input_ids == [2, 9, 10, 5, 6, 3]
    assert ours.encode(["hello Café"])[0][0].tolist() == [9, 10, 5, 6]
    again = tokenizer.load(folder=tmp_path / "model")
    assert (again.lower_case, again.digest) == (False, ours.digest)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_the_saved_files_have_the_permissions_of_new_files(goldens, tmp_path, umask, mode):
    """safetensors lets only the owner read what it writes."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    words = tokenizer.load(str(tmp_path / "vocab.txt"))
    before = os.umask(umask)
    try:
        weights.save(Bert(configuration.read_config(goldens / "span_gelu"), "span"), tmp_path / "model", words)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert {"model.safetensors", "config.json", "vocab.txt"} <= set(modes)
    assert set(modes.values()) == {mode}


def test_googles_archive_is_a_model_as_it_is_unzipped(tmp_path):
    folder = tmp_path / "uncased_L-12_H-768_A-12"
    folder.mkdir()
    values = values_of(published_shapes())
    write_tf1(folder / "bert_model.ckpt", values)
    (folder / "checkpoint").unlink(missing_ok=True)
    found = weights.find(str(folder))
    assert found == folder / "bert_model.ckpt"
    assert weights.read(found).keys() == values.keys()
