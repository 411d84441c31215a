"""Weights from and to every format: TensorFlow 1 checkpoints, Hugging Face folders; what is refused."""

import json
import os
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoTokenizer, BertConfig

from bert import weights
from bert.model import Bert
from bert.tensor_names import HEAD_TENSORS, google_name, hugging_face_name
from bert.text import tokenizer
from ringbert.errors import InputError

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
}
SHAPES_OF_HEADS = {
    "cls/squad/output_weights": (2, 32),
    "cls/squad/output_bias": (2,),
    "output_weights": (3, 32),
    "output_bias": (3,),
    "cls/predictions/transform/dense/kernel": (32, 32),
    "cls/predictions/transform/dense/bias": (32,),
    "cls/predictions/transform/LayerNorm/gamma": (32,),
    "cls/predictions/transform/LayerNorm/beta": (32,),
    "cls/predictions/output_bias": (60,),
    "cls/seq_relationship/output_weights": (2, 32),
    "cls/seq_relationship/output_bias": (2,),
}
OF_PRETRAINING = [name for name in SHAPES_OF_HEADS if name.startswith(("cls/pred", "cls/seq"))]
POOLER = ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
GOLDEN_FOLDERS = {"span": "span_gelu", "classifier": "classifier_gelu", "pretraining": "pretraining_gelu"}


def config(**others) -> BertConfig:
    return BertConfig(**SIZES | {"num_labels": 3} | others)


def google_s_shapes() -> dict[str, tuple[int, ...]]:
    """The names and shapes of a `bert_model.ckpt` without its heads, as google-research/bert makes them."""
    shapes = {
        "bert/embeddings/word_embeddings": (60, 32),
        "bert/embeddings/token_type_embeddings": (2, 32),
        "bert/embeddings/position_embeddings": (24, 32),
        "bert/embeddings/LayerNorm/beta": (32,),
        "bert/embeddings/LayerNorm/gamma": (32,),
        "bert/pooler/dense/kernel": (32, 32),
        "bert/pooler/dense/bias": (32,),
    }
    for layer in ("bert/encoder/layer_0", "bert/encoder/layer_1"):
        for part in ("self/query", "self/key", "self/value", "output/dense"):
            shapes |= {f"{layer}/attention/{part}/kernel": (32, 32), f"{layer}/attention/{part}/bias": (32,)}
        shapes |= {f"{layer}/intermediate/dense/kernel": (32, 64), f"{layer}/intermediate/dense/bias": (64,)}
        shapes |= {f"{layer}/output/dense/kernel": (64, 32), f"{layer}/output/dense/bias": (32,)}
        for part in ("attention/output", "output"):
            shapes |= {f"{layer}/{part}/LayerNorm/{end}": (32,) for end in ("beta", "gamma")}
    return shapes


def values_of(shapes) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(11)
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_tf1(prefix: Path, tensors, moments: bool = True) -> Path:
    """Writes a checkpoint with TensorFlow 1's own Saver; `moments` as a training run leaves them."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.compat.v1.get_variable(name, initializer=value) for name, value in tensors.items()]
        if moments:
            for name, value in tensors.items():
                for moment in ("adam_m", "adam_v"):
                    variables.append(tf.compat.v1.get_variable(f"{name}/{moment}", initializer=value + 1))
            variables.append(tf.compat.v1.get_variable("global_step", initializer=np.int64(123)))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver(variables).save(session, str(prefix), write_meta_graph=False)
    return prefix


def write_hf(folder: Path, tensors, shards: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if not shards:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        save_file({name: tensors[name] for name in names[shard::shards]}, folder / file)
        weight_map |= dict.fromkeys(names[shard::shards], file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def span_tensors(goldens) -> dict[str, np.ndarray]:
    return load_file(goldens / "span_gelu" / "model.safetensors")


def assert_equal(model, expected) -> None:
    """The model's variables have the very bits of the arrays under their names."""
    for name, variable in model.named_tensors().items():
        np.testing.assert_array_equal(variable.numpy(), expected[name], err_msg=name)


# -- TensorFlow 1 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["bert_model.ckpt", "model.ckpt-123", "folder"])
def test_a_pretraining_checkpoint_fills_each_head(tmp_path, place):
    shapes = google_s_shapes() | {name: SHAPES_OF_HEADS[name] for name in OF_PRETRAINING}
    there = values_of(shapes)
    write_tf1(tmp_path / (place if "ckpt" in place else "model.ckpt-123"), there)
    if place != "folder":
        (tmp_path / "checkpoint").unlink()
    source = weights.find(str(tmp_path / place if place != "folder" else tmp_path))

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
    assert set(there) <= set(google_s_shapes() | SHAPES_OF_HEADS)
    all_shapes = google_s_shapes() | SHAPES_OF_HEADS
    assert all(value.shape == all_shapes[name] for name, value in there.items())
    weights.load(model, write_tf1(tmp_path / "bert_model.ckpt", there))
    assert_equal(model, there)
    weights.save(model, tmp_path / "saved")
    again = Bert(weights.read_config(tmp_path / "saved"), head, seed=9)
    report = weights.load(again, weights.find(str(tmp_path / "saved")))
    assert_equal(again, there)
    assert (report.missing, report.unused, report.loaded) == ([], [], len(there))
    assert again.config.to_dict() == model.config.to_dict() | {
        "architectures": [weights.ARCHITECTURES[head]],
        "dtype": again.config.dtype,
    }


def test_a_classifier_checkpoint_of_another_number_of_labels(tmp_path):
    there = values_of(google_s_shapes() | {"output_weights": (2, 32), "output_bias": (2,)})
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
    there = values_of(google_s_shapes() | {"bert/pooler/dense/kernel": (32, 16)})
    source = write_tf1(tmp_path / "bert_model.ckpt", there)
    with pytest.raises(InputError, match="bert/pooler/dense/kernel has shape"):
        weights.load(Bert(config(), "classifier"), source, new=HEAD_TENSORS["classifier"])


def test_damaged_tensorflow_checkpoints(tmp_path):
    source = write_tf1(tmp_path / "bert_model.ckpt", values_of(google_s_shapes()))
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


# -- Hugging Face folders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", GOLDEN_FOLDERS)
def test_the_names_are_those_of_transformers(goldens, tmp_path, head):
    """What we write has the keys and values of what transformers wrote, for each architecture."""
    folder = goldens / GOLDEN_FOLDERS[head]
    model = Bert(weights.read_config(folder), head)
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


def test_what_is_no_model(tmp_path, monkeypatch):
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
        InputError, match="--model nobody/nothing: there is no such folder, and the hub did not give it"
    ):
        weights.find("nobody/nothing")


# -- configuration and the written folder -------------------------------------------------------------------------


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
        assert weights.read_config(source).vocab_size == 30522
    assert weights.read_config(file.parent).layer_norm_eps == 1e-12
    assert weights.read_config(tmp_path / "elsewhere" / "bert_model.ckpt") is None
    for change, message in (
        ({"num_attention_heads": 7}, "hidden_size 768 is not a multiple of num_attention_heads 7"),
        ({"model_type": "roberta"}, "model_type must be 'bert', got 'roberta'"),
    ):
        file.write_text(json.dumps(google_s | change))
        with pytest.raises(InputError, match=message):
            weights.config_from_file(file)
    for text, message in (
        ("{", "not valid JSON"),
        ("[]", "not a BERT configuration"),
        ('{"vocab_size": 7}', "hidden_size is missing"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            weights.config_from_file(file)


def test_the_saved_folder_is_one_of_transformers(goldens, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Ca", "##fé", "ca", "##fe", "he", "##llo"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    ours = tokenizer.load(str(tmp_path / "vocab.txt"), do_lower_case=False)
    model = Bert(weights.read_config(goldens / "span_gelu"), "span")
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
        weights.save(Bert(weights.read_config(goldens / "span_gelu"), "span"), tmp_path / "model", words)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert {"model.safetensors", "config.json", "vocab.txt"} <= set(modes)
    assert set(modes.values()) == {mode}


def test_googles_archive_is_a_model_as_it_is_unzipped(tmp_path):
    folder = tmp_path / "uncased_L-12_H-768_A-12"
    folder.mkdir()
    values = values_of(google_s_shapes())
    write_tf1(folder / "bert_model.ckpt", values)
    (folder / "checkpoint").unlink(missing_ok=True)
    found = weights.find(str(folder))
    assert found == folder / "bert_model.ckpt"
    assert weights.read(found).keys() == values.keys()
