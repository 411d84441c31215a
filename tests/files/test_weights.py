"""Weights from and to every format: TensorFlow 1 checkpoints and Hugging Face folders, loaded
strictly."""

import json
import os
import stat
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import transformers
from harness.refusals import refused
from harness.texts import write_vocabulary
from harness.weight_files import (
    PRETRAINING_HEAD,
    SIZES,
    config,
    published_shapes,
    values_of,
    write_hf,
    write_tf1,
)
from safetensors.numpy import load_file
from transformers import AutoConfig

from bert import configuration, hub, weights
from bert.heads import HEADS, PRETRAINING, SPAN
from bert.model import Bert
from bert.text import tokenizer
from ringbase.files import read_json, replace_folder


def values_in(model):
    return {name: variable.numpy() for name, variable in model.named_tensors().items()}


def assert_equal(model, expected):
    """The model's variables have the very bits of the arrays under their names."""
    for name, value in values_in(model).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.fixture
def tensors(goldens):
    """Those of a span model, as transformers wrote them."""
    return load_file(goldens / "span_gelu" / "model.safetensors")


def test_a_pretraining_checkpoint_is_found_and_fills_each_head(tmp_path):
    """From TensorFlow 1, with Google's names and shapes. Its archives hold bert_model.ckpt and no
    `checkpoint`."""
    there = values_of(published_shapes() | PRETRAINING_HEAD)
    write_tf1(tmp_path / "model.ckpt-123", there)
    write_tf1(tmp_path / "zip" / "bert_model.ckpt", there)
    (tmp_path / "zip" / "checkpoint").unlink()
    for place, head in (
        ("model.ckpt-123", "span"),
        ("", "classifier"),
        ("zip", "pretraining"),
        ("zip/bert_model.ckpt", "span"),
    ):
        model, source = Bert(config(), HEADS[head]), hub.find(str(tmp_path / place))
        new = model.head.shapes(model.config) if head != "pretraining" else ()
        before, missing = values_in(model), [name for name in new if name not in there]
        line = weights.load(model, source, new=new)
        assert_equal(model, before | there | {name: before[name] for name in missing})
        assert line.startswith(f"{len(before) - len(missing)} tensors")
        assert all(name in line for name in missing)
        assert ("not used by this model" in line) == (head != "pretraining")


MODELS = [path.parent.name for path in Path(__file__).parents[1].glob("goldens/*/config.json")]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_names_are_those_of_transformers(goldens, tmp_path, name):
    """What we write has the keys and values of what transformers wrote, for each architecture."""
    folder = goldens / name
    model = Bert(configuration.read_config(folder), HEADS[name.partition("_")[0]])
    assert weights.load(model, folder) == f"{len(model.variables)} tensors from {folder}"
    weights.copied(model)(tmp_path)
    theirs = load_file(folder / "model.safetensors")
    ours = load_file(tmp_path / "model.safetensors")
    assert sorted(ours) == sorted(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
        assert ours[name].dtype == np.float32
    written, read = AutoConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(folder)
    names = read_json(folder / "config.json").keys() - set(configuration.HARMLESS)
    for name in (*names, "architectures", "id2label"):
        assert getattr(written, name) == getattr(read, name), name
    defaults = transformers.BertConfig().to_dict()
    assert configuration.BertConfig().as_json().items() <= defaults.items()


SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "pad_token_id": 0,
}


@pytest.mark.parametrize("model_type", sorted(configuration.ARCHITECTURES))
def test_transformers_reads_what_is_written_of_a_new_model(tmp_path, model_type):
    """From the few values of a user's configuration: ModernBERT's class knows no null."""
    config = configuration.config_of(SMALL | {"model_type": model_type})
    weights.copied(Bert(config, HEADS["classifier"]))(tmp_path)
    read = AutoConfig.from_pretrained(tmp_path)
    assert read.model_type == model_type
    sizes = read.hidden_size, read.num_hidden_layers, read.vocab_size
    assert sizes == (32, 1, 60)


def as_in_2019(tensors):
    """LayerNorm's old names, no prefix, a pooler that nothing uses, and positions as weights."""
    tensors = {name.removeprefix("bert."): value for name, value in tensors.items()}
    tensors |= {
        "pooler.dense.weight": np.zeros((32, 32), np.float32),
        "pooler.dense.bias": np.zeros(32),
        "embeddings.position_ids": np.arange(24)[None],
    }
    new, old = ("LayerNorm.weight", "LayerNorm.bias"), ("LayerNorm.gamma", "LayerNorm.beta")
    return {
        name.replace(new[0], old[0]).replace(new[1], old[1]): value
        for name, value in tensors.items()
    }


def as_bfloat16(tensors):
    return {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors.items()}


@pytest.mark.parametrize(("change", "shards"), [(dict, 3), (as_in_2019, 0), (as_bfloat16, 0)])
def test_folders_in_the_wild(tensors, tmp_path, change, shards):
    model = Bert(config(num_labels=2), SPAN)
    line = weights.load(model, write_hf(tmp_path, change(tensors), shards))
    there = as_bfloat16(tensors) if change is as_bfloat16 else tensors
    for name, value in values_in(model).items():
        expected = there[weights.hugging_face_name(name, SPAN)].astype(np.float32)
        np.testing.assert_array_equal(value, expected.T if name.endswith("/kernel") else expected)
    assert ("bert/pooler/dense/kernel" in line) == (change is as_in_2019)


def test_a_tied_decoder_is_left_out_and_an_untied_one_refused(goldens, tmp_path):
    tied = load_file(goldens / "pretraining_gelu" / "model.safetensors")
    words, biases = tied["bert.embeddings.word_embeddings.weight"], tied["cls.predictions.bias"]
    weight, bias = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
    tied |= {weight: words.copy(), bias: biases.copy()}
    model = Bert(config(num_labels=2), PRETRAINING)
    assert "not used" not in weights.load(model, write_hf(tmp_path / "tied", tied))
    source = write_hf(tmp_path / "untied", tied | {weight: words + 1})
    refused(lambda: weights.load(model, source), source, "word_embeddings")


def test_a_saved_folder_is_readable_by_others(tmp_path):
    """safetensors lets only the owner read what it writes."""
    words, before = tokenizer.load(str(write_vocabulary(tmp_path, "a"))), os.umask(0o027)
    try:
        replace_folder(tmp_path / "model", weights.copied(Bert(config(), SPAN), words))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()} == {0o640}
    assert AutoConfig.from_pretrained(tmp_path / "model").pad_token_id == words.pad_id
    assert tokenizer.load(folder=tmp_path / "model").digest == words.digest


KEY, NAME = "bert.encoder.layer.1.output.dense.weight", "bert/encoder/layer_1/output/dense/kernel"
OTHER = "bert.encoder.layer.2.output.dense.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda there: there.pop(KEY), [NAME]),
        (lambda there: there.update({OTHER: there[KEY]}), ["layer_2", "--bert_conf"]),
        (lambda there: there.update({KEY: there[KEY].T.copy()}), [NAME, "(32, 64)", "(64, 32)"]),
        (lambda there: np.put(there[KEY], 99, np.nan), [NAME]),
        (lambda there: there.pop("qa_outputs.weight"), ["cls/squad/output_weights"]),
    ],
    ids=["missing", "unknown", "transposed", "nan", "headless"],
)
def test_tensors_that_do_not_fit_are_named_and_the_model_stays(tensors, tmp_path, change, named):
    model = Bert(config(num_labels=2), SPAN)
    before = values_in(model)
    change(tensors)
    source = write_hf(tmp_path / "there", tensors)
    refused(lambda: weights.load(model, source), source, *named)
    assert_equal(model, before)


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"])
def test_numbers_that_need_a_scale_are_refused_and_places_of_tokens_are_not(tmp_path, kind):
    """Written as the format of safetensors says: the length of a JSON header, the header, bytes."""
    key = "bert.pooler.dense.bias"
    entries = {
        key: {"dtype": kind, "shape": [4], "data_offsets": [0, 4]},
        "bert.embeddings.position_ids": {"dtype": "I64", "shape": [1], "data_offsets": [4, 12]},
    }
    path = tmp_path / "model.safetensors"
    for name in (kind, "F32"):
        entries[key]["dtype"] = name
        entries[key]["shape"] = [4 if name == kind else 1]
        header = json.dumps(entries).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
        if name == kind:
            refused(lambda: weights.read(tmp_path), path, key, kind, "BF16")
        else:
            assert weights.read(tmp_path)["bert/pooler/dense/bias"].tolist() == [0.0]


def test_folders_and_names_without_a_model(tmp_path, monkeypatch):
    """An index names files beside it only."""
    monkeypatch.chdir(tmp_path)
    for name in (str(tmp_path), "."):
        refused(lambda name=name: weights.read(hub.find(name)), "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80")
    refused(lambda: weights.read(hub.find(".")), "pytorch_model.bin", "save_pretrained")
    index = tmp_path / "model.safetensors.index.json"
    for name in ("../model.safetensors", "/etc/passwd", "", 7, "absent.safetensors"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        refused(lambda: weights.read(tmp_path), index)
    for name in ("/nowhere/bert", "./nowhere", "bert_model.ckpt", "nobody/nothing"):
        refused(lambda name=name: hub.find(name), name)


GOOGLE = SIZES | {"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "initializer_range": 0.02}
MORE = {
    "id2label": {"0": "no", "1": "yes"},
    "model_type": "bert",
    "problem_type": "single_label_classification",
}


def configured(folder, values, name="config.json", say=None):
    (folder / name).write_text(json.dumps(values))
    return configuration.config_from_file(folder / name, say)


def test_both_forms_of_a_configuration_are_read(tmp_path):
    assert configuration.read_config(tmp_path / "bert_model.ckpt") is None
    google_s = configured(tmp_path, GOOGLE, "bert_config.json")
    for made in (google_s, configured(tmp_path, GOOGLE | MORE)):
        assert {name: getattr(made, name) for name in GOOGLE} == GOOGLE
        assert (len(made.labels), made.layer_norm_eps, made.pad_token_id) == (2, 1e-12, 0)
    assert configuration.read_config(tmp_path / "bert_model.ckpt").labels == ("no", "yes")


def test_unknown_keys_are_told_in_one_line(tmp_path):
    lines = []
    published = {
        "directionality": "bidi",
        "pooler_fc_size": 768,
        "torch_dtype": "x",
        "use_cache": True,
    }
    unknown = {"layer_norm_epsilon": 1e-5, "hidden_dropout": 0.2, "classifier_dropout": None}
    for more in (published, unknown):
        configured(tmp_path, GOOGLE | MORE | more, say=lines.append)
    (line,) = lines
    for name in ("layer_norm_epsilon", "hidden_dropout", str(tmp_path / "config.json")):
        assert name in line


WRONG = [
    {"hidden_size": "64"},
    {"hidden_size": 64.0},
    {"num_hidden_layers": True},
    {"num_attention_heads": 0},
    {"num_attention_heads": 5},
    {"vocab_size": 10**12},
    {"vocab_size": None},
    {"hidden_dropout_prob": 1.5},
    {"attention_probs_dropout_prob": 1},
    {"layer_norm_eps": 1e-300},
    {"initializer_range": 1e300},
    {"hidden_act": "swish"},
    {"position_embedding_type": "relative_key"},
    {"is_decoder": True},
    {"model_type": "albert"},
    {"id2label": ["no", "yes"]},
    {"id2label": {"0": "a", "2": "b"}},
    {"id2label": {"0": 1, "1": "1"}},
    {"id2label": {"0": True, "1": 0.5}},
    {"position_embedding_type": "rope"},
    {"num_labels": 3},
    {"problem_type": "span"},
    {"pad_token_id": 60},
    {"layer_norm_eps": float("nan")},
]


MODERN = SIZES | {"model_type": "modernbert", "pad_token_id": 0, "num_hidden_layers": 4}
FULL, SLIDING = "full_attention", "sliding_attention"


def test_both_spellings_of_modernberts_configuration_are_read_and_written(tmp_path):
    """transformers 4 and 5 write the same model so."""
    old = MODERN | {"global_attn_every_n_layers": 2, "local_rope_theta": 160000.0}
    theta = {"rope_type": "default", "rope_theta": 160000.0}
    layers = [FULL, SLIDING, FULL, SLIDING]
    new = MODERN | {"layer_types": layers, "rope_parameters": {FULL: theta, SLIDING: theta}}
    config = configured(tmp_path, old)
    assert config == configured(tmp_path, new)
    assert config == configured(tmp_path, config.as_json())
    assert (config.global_rope_theta, config.local_rope_theta) == (160_000, 160_000)
    assert config.layer_types == tuple(layers)
    assert (config.local_attention, config.layer_norm_eps) == (128, 1e-5)
    published = configured(tmp_path, MODERN)
    assert published.layer_types == (FULL, SLIDING, SLIDING, FULL)
    assert published.local_rope_theta == 10_000


def test_values_of_published_configurations_that_change_nothing_are_read(tmp_path):
    """As transformers reads them: ModernBERT's positions are rotary whatever the key says, and
    numbers are names of labels."""
    plain = configured(tmp_path, MODERN)
    for kind in ("absolute", "sans_pos", "rope"):
        assert configured(tmp_path, MODERN | {"position_embedding_type": kind}) == plain
    named = configured(tmp_path, GOOGLE | {"id2label": {"0": 1, "1": 0, "2": "many"}})
    assert named.labels == ("1", "0", "many")
    assert named.as_json()["id2label"] == {0: "1", 1: "0", 2: "many"}
    silu = configured(tmp_path, MODERN | {"classifier_activation": "silu"})
    assert configured(tmp_path, silu.as_json()) == silu
    assert silu.as_json()["classifier_activation"] == "silu"


WRONG_IN_MODERN = [
    {"classifier_activation": "softmax"},
    {"position_embedding_type": "relative_key"},
    {"attention_bias": True},
    {"mlp_dropout": 0.1},
    {"is_causal": True},
    {"classifier_pooling": "max"},
    {"layer_types": [FULL]},
    {"layer_types": [FULL, "chunked", FULL, FULL]},
    {"global_attn_every_n_layers": 0},
    {"local_attention": 1},
    {"rope_parameters": {FULL: {"rope_type": "yarn"}}},
    {"local_rope_theta": -1.0},
]


@pytest.mark.parametrize(
    ("base", "changes"),
    [*((GOOGLE | MORE, each) for each in WRONG), *((MODERN, each) for each in WRONG_IN_MODERN)],
    ids=str,
)
def test_a_wrong_value_is_named(tmp_path, base, changes):
    named = tmp_path / "config.json", next(iter(changes)), "--bert_config_file"
    refused(lambda: configured(tmp_path, base | changes), *named)
