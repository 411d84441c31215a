"""A model's configuration: what is wrong with it is said by file and key, before anything is built from it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fuzz.model_files import CONFIG, GOOGLE

from bert import configuration, ops
from ringbert.errors import InputError


def read(folder: Path, **changes: Any):
    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    return configuration.config_from_file(path)


def test_both_forms_are_read(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert {name: getattr(config, name) for name in GOOGLE if name != "directionality"} == {
        name: value for name, value in GOOGLE.items() if name != "directionality"
    }
    assert config.id2label == {0: "no", 1: "yes"}
    assert config.problem_type == "single_label_classification"
    (tmp_path / "config.json").write_text(json.dumps(GOOGLE))
    again = configuration.config_from_file(tmp_path / "config.json")
    assert (again.num_labels, again.layer_norm_eps, again.pad_token_id) == (2, 1e-12, 0)


def test_keys_that_are_not_bert_s_do_no_harm(tmp_path: Path) -> None:
    """transformers makes attributes of them, over its own methods too."""
    config = read(tmp_path, to_dict=3, quantization_config=5, torch_dtype="nonsense", _attn_implementation=[1])
    assert config.to_dict()["hidden_size"] == 32


def test_the_activations_are_those_of_the_model() -> None:
    assert set(configuration.HIDDEN_ACTS) == set(ops.ACTIVATIONS)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a string": ({"hidden_size": "64"}, "hidden_size must be an integer from 1 to 1,048,576, got '64'"),
    "a float": ({"hidden_size": 64.0}, "hidden_size must be an integer from 1 to 1,048,576, got 64.0"),
    "a boolean": ({"num_hidden_layers": True}, "num_hidden_layers must be an integer from 1 to 1,000, got True"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads must be an integer from 1 to 1,048,576, got 0"),
    "heads that do not divide": (
        {"num_attention_heads": 5},
        "hidden_size 32 is not a multiple of num_attention_heads 5",
    ),
    "layers below 0": ({"num_hidden_layers": -1}, "num_hidden_layers must be an integer from 1 to 1,000, got -1"),
    "no words": ({"vocab_size": 0}, "vocab_size must be an integer from 1 to 2,147,483,647, got 0"),
    "words without end": (
        {"vocab_size": 10**12},
        "vocab_size must be an integer from 1 to 2,147,483,647, got 1000000000000",
    ),
    "null": ({"vocab_size": None}, "vocab_size must be an integer from 1 to 2,147,483,647, got None"),
    "dropout": (
        {"hidden_dropout_prob": 1.5},
        "hidden_dropout_prob must be a number from 0 to less than 1, got 1.5",
    ),
    "dropout of all": (
        {"attention_probs_dropout_prob": 1},
        "attention_probs_dropout_prob must be a number from 0 to less than 1, got 1",
    ),
    "dropout below 0": (
        {"classifier_dropout": -0.1},
        "classifier_dropout must be a number from 0 to less than 1, got -0.1",
    ),
    "no epsilon": ({"layer_norm_eps": 0}, "layer_norm_eps must be a number above 1e-30 and at most 1, got 0"),
    "an epsilon that float32 lacks": (
        {"layer_norm_eps": 1e-300},
        "layer_norm_eps must be a number above 1e-30 and at most 1, got 1e-300",
    ),
    "initial values": (
        {"initializer_range": 1e300},
        "initializer_range must be a number above 0 and at most 10, got 1e+300",
    ),
    "an activation": (
        {"hidden_act": "swish"},
        "hidden_act must be one of gelu, gelu_new, gelu_pytorch_tanh, relu",
    ),
    "an activation of another type": ({"hidden_act": ["gelu"]}, "hidden_act must be one of gelu, "),
    "positions": (
        {"position_embedding_type": "relative_key"},
        "position_embedding_type must be 'absolute', got 'relative_key'",
    ),
    "a decoder": ({"is_decoder": True}, "is_decoder must be False, got True"),
    "another model": ({"model_type": "roberta"}, "model_type must be 'bert', got 'roberta'"),
    "labels in a list": (
        {"id2label": ["no", "yes"]},
        "id2label must be an object of label names by number, got a l",
    ),
    "labels that are numbers": ({"id2label": {"0": 1}}, "id2label must be an object of label names by number"),
    "a label's number missing": (
        {"id2label": {"0": "a", "2": "b"}},
        "the keys of id2label must be 0 to 1, each once, got",
    ),
    "a label twice": ({"id2label": {"0": "a", "1": "a"}}, "id2label names a label twice"),
    "another number of labels": ({"num_labels": 3}, "num_labels is 3, but id2label names 2 labels"),
    "labels without end": (
        {"id2label": None, "num_labels": 10**9},
        "num_labels must be an integer from 1 to 1,048,5",
    ),
    "a problem": ({"problem_type": "span"}, "problem_type must be one of regression, single_label_classification"),
    "one label": (
        {"id2label": {"0": "a"}},
        "problem_type single_label_classification needs 2 labels or more, got 1",
    ),
    "architectures": ({"architectures": [1]}, "architectures must be a list of names, got a list [1]"),
    "padding": ({"pad_token_id": 60}, "pad_token_id must be null or an integer below vocab_size 60, got 60"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_named_with_what_is_needed(tmp_path: Path, case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(InputError) as caught:
        read(tmp_path, **changes)
    assert str(caught.value).startswith(f"{tmp_path}/config.json: {message}")
    assert str(caught.value).endswith(" (--bert_config_file, --model)")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 1 << 20, "num_attention_heads": 16},
        {"vocab_size": (1 << 31) - 1, "hidden_size": 1 << 14},
        {"max_position_embeddings": (1 << 31) - 1, "hidden_size": 1 << 14},
        {"intermediate_size": 1 << 24, "hidden_size": 1 << 14},
    ],
)
def test_a_model_larger_than_the_machine_is_refused_with_its_size(tmp_path: Path, changes: dict[str, int]) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    with pytest.raises(InputError, match=rf"the weights alone need [\d,]+ GiB, this machine has {memory:,.0f}: "):
        read(tmp_path, **changes)


def test_the_number_of_weights_is_the_model_s(tmp_path: Path) -> None:
    from bert.model import Bert

    config = read(tmp_path)
    model = Bert(config, "features")
    assert configuration.num_weights(config) == sum(
        variable.value.shape.num_elements() for variable in model.weights
    )
