"""A trained model as Google's TensorFlow 1 checkpoint: `bert_model.ckpt`, `bert_config.json` and vocabulary."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from transformers import BertConfig

from bert.text.tokenizer import Tokenizer
from bert.weights import PUBLISHED_PREFIX

GOOGLES_KEYS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size",
    "initializer_range",
)  # fmt: skip
GOOGLES_EPSILON = 1e-12  # of LayerNorm, which Google's code does not read from the configuration
GOOGLES_ACTIVATIONS = ("gelu", "relu", "tanh", "linear")


def save(folder: Path, tensors: Mapping[str, np.ndarray], config: BertConfig, tokenizer: Tokenizer) -> None:
    """Writes the folder. `tensors` are the weights by Google's names, which are ours."""
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(folder / PUBLISHED_PREFIX),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(tensors[name]) for name in names],
    )
    text = json.dumps(google_config(config), indent=2, ensure_ascii=False)
    (folder / "bert_config.json").write_text(text + "\n", encoding="utf-8")
    tokenizer.save(folder)


def google_config(config: BertConfig) -> dict[str, Any]:
    """The keys of Google's bert_config.json, and those of ours that our programs need and Google's ignore."""
    values = {name: getattr(config, name) for name in GOOGLES_KEYS}
    values["layer_norm_eps"] = config.layer_norm_eps
    if config.problem_type is not None:
        values["problem_type"] = config.problem_type
        values["id2label"] = {str(number): name for number, name in sorted(config.id2label.items())}
    if config.pad_token_id not in (None, 0):
        values["pad_token_id"] = config.pad_token_id
    return values


def notes(config: BertConfig, tokenizer: Tokenizer) -> list[str]:
    """What the user of Google's scripts must know about this checkpoint."""
    found = []
    if config.layer_norm_eps != GOOGLES_EPSILON:
        found.append(
            f"layer_norm_eps is {config.layer_norm_eps:g}, and Google's code always uses {GOOGLES_EPSILON:g}"
        )
    if config.hidden_act not in GOOGLES_ACTIVATIONS:
        found.append(f"Google's code does not know hidden_act {config.hidden_act}; its own gelu is gelu_new")
    elif config.hidden_act == "gelu":
        found.append("hidden_act gelu is exact, as in Google's first release; its last approximates it by tanh")
    if tokenizer.kind != "wordpiece":
        found.append("the tokenizer is a SentencePiece model, which Google's code does not read")
    elif not tokenizer.lower_case:
        found.append("the vocabulary is cased: give Google's scripts --do_lower_case=False")
    return found
