"""Reads and checks a model's configuration: Hugging Face's config.json or Google's bert_config.json."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import BertConfig

from ringbase.errors import InputError
from ringbase.json_files import kind_of, read_object

FLAGS = "(--bert_config_file, --model)"
HIDDEN_ACTS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "tanh", "linear")  # of bert.ops.ACTIVATIONS
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
IDS = (1 << 31) - 1  # the ids of tokens and positions are int32
# Integers of the architecture: the least and the most that is allowed. Memory sets other limits, see below.
WHOLE = {
    "vocab_size": (1, IDS),
    "hidden_size": (1, 1 << 20),
    "num_hidden_layers": (1, 1000),
    "num_attention_heads": (1, 1 << 20),
    "intermediate_size": (1, 1 << 24),
    "max_position_embeddings": (1, IDS),
    "type_vocab_size": (1, IDS),
}
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
# Above the least and at most the most.
NUMBERS = {
    "initializer_range": (0.0, 10.0),
    "layer_norm_eps": (1e-30, 1.0),
}  # 1e-30: a float32 divided by its root
# What changes a model so that it is not the published BERT: the values that are allowed.
FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert",),
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
}
REQUIRED = ("vocab_size", "hidden_size")
MOST_LABELS = 1 << 20


def read_config(source: Path) -> BertConfig | None:
    """The configuration beside the weights (config.json, or Google's bert_config.json), if there is one."""
    folder = source if source.is_dir() else source.parent
    for name in ("config.json", "bert_config.json"):
        if (folder / name).is_file():
            return config_from_file(folder / name)
    return None


def config_from_file(path: str | Path) -> BertConfig:
    """BertConfig of a Hugging Face or Google configuration file. Keys that BERT does not have are left out.

    Raises InputError, with the key, its value and what is needed: a value of another type or out of its range, a
    model that is not the published BERT, or one whose weights need more memory than this machine has.
    """
    values = read_object(Path(path), f"{path} {FLAGS}")
    try:
        return checked(values)
    except InputError as error:
        raise InputError(f"{path}: {error} {FLAGS}") from error


def checked(values: Mapping[str, Any]) -> BertConfig:
    """BertConfig of these values. Raises InputError like `config_from_file`, without the path."""
    if missing := [name for name in REQUIRED if name not in values]:
        raise InputError(f"not a BERT configuration: {missing[0]} is missing")
    for name, allowed in FIXED.items():
        if name in values and (type(values[name]), values[name]) not in [
            (type(value), value) for value in allowed
        ]:
            raise InputError(f"{name} must be {_shown(allowed[0])}, got {_shown(values[name])}")
    for name in (*WHOLE, *DROPOUT, *NUMBERS):
        if name in values:
            _check_number(name, values[name])
    activation = values.get("hidden_act", "gelu")
    if activation not in HIDDEN_ACTS:
        raise InputError(f"hidden_act must be one of {', '.join(HIDDEN_ACTS)}, got {_shown(activation)}")
    kept = {name: values[name] for name in (*WHOLE, *DROPOUT, "hidden_act") if name in values}
    kept |= {name: float(values[name]) for name in NUMBERS if name in values}
    kept["architectures"] = values.get("architectures")
    if not _is_list_of_names(kept["architectures"]):
        raise InputError(f"architectures must be a list of names, got {_shown(kept['architectures'])}")
    config = BertConfig(**kept, **_labels(values), **_token_ids(values))
    if config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"hidden_size {config.hidden_size} is not a multiple of "
            f"num_attention_heads {config.num_attention_heads}"
        )
    _check_memory(config)
    return config


def _check_number(name: str, value: object) -> None:
    """Raises InputError unless the value of a key is a number in its range."""
    if name in WHOLE:
        least, most = WHOLE[name]
        if type(value) is not int or not least <= value <= most:
            raise InputError(f"{name} must be an integer from {least} to {most:,}, got {_shown(value)}")
    elif name in DROPOUT:
        if value is None and name == "classifier_dropout":
            return
        if type(value) not in (int, float) or not 0 <= value < 1:  # type: ignore[operator]
            raise InputError(f"{name} must be a number from 0 to less than 1, got {_shown(value)}")
    else:
        above, highest = NUMBERS[name]
        if type(value) not in (int, float) or not above < value <= highest:  # type: ignore[operator]
            raise InputError(
                f"{name} must be a number above {above:g} and at most {highest:g}, got {_shown(value)}"
            )


def _is_list_of_names(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))


def _labels(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys about labels, as BertConfig takes them."""
    names, number = values.get("id2label"), values.get("num_labels")
    if number is not None and (type(number) is not int or not 1 <= number <= MOST_LABELS):
        raise InputError(f"num_labels must be an integer from 1 to {MOST_LABELS:,}, got {_shown(number)}")
    kind = values.get("problem_type")
    if kind is not None and kind not in PROBLEM_TYPES:
        raise InputError(f"problem_type must be one of {', '.join(PROBLEM_TYPES)}, got {_shown(kind)}")
    kept: dict[str, Any] = {} if kind is None else {"problem_type": kind}
    if names is not None:
        if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
            raise InputError(f"id2label must be an object of label names by number, got {_shown(names)}")
        if sorted(names) != sorted(map(str, range(len(names)))):
            raise InputError(f"the keys of id2label must be 0 to {len(names) - 1}, each once, got {_shown(names)}")
        if len(set(names.values())) < len(names):
            raise InputError(f"id2label names a label twice: {_shown(names)}")
        ordered = [names[str(place)] for place in range(len(names))]
        kept["id2label"] = dict(enumerate(ordered))
        kept["label2id"] = {name: place for place, name in enumerate(ordered)}  # the file's is often another one
        if number not in (None, len(names)):
            raise InputError(f"num_labels is {number}, but id2label names {len(names)} labels")
    elif number is not None:
        kept["num_labels"] = number
    count = len(names) if names is not None else 2 if number is None else number
    if kind == "single_label_classification" and count < 2:
        raise InputError(f"problem_type {kind} needs 2 labels or more, got {count}")
    return kept


def _token_ids(values: Mapping[str, Any]) -> dict[str, Any]:
    """The id of [PAD], if it is stated."""
    pad, size = values.get("pad_token_id"), values["vocab_size"]
    if "pad_token_id" not in values:
        return {}
    if pad is not None and (type(pad) is not int or not 0 <= pad < size):
        raise InputError(f"pad_token_id must be null or an integer below vocab_size {size}, got {_shown(pad)}")
    return {"pad_token_id": pad}


def num_weights(config: BertConfig) -> int:
    """The number of weights of the encoder, without a head."""
    hidden, wide = config.hidden_size, config.intermediate_size
    tables = config.vocab_size + config.max_position_embeddings + config.type_vocab_size + 2
    layer = 4 * (hidden * hidden + hidden) + 2 * hidden * wide + wide + hidden + 4 * hidden
    return tables * hidden + config.num_hidden_layers * layer


def _check_memory(config: BertConfig) -> None:
    """Raises InputError for a model whose weights alone are larger than this machine's memory."""
    needed = 4 * num_weights(config)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        sizes = ", ".join(f"{name} {getattr(config, name):,}" for name in WHOLE if name != "num_attention_heads")
        raise InputError(
            f"the weights alone need {needed / 2**30:,.0f} GiB, this machine has {memory / 2**30:,.0f}: {sizes}"
        )


def _shown(value: object) -> str:
    """A value in a message."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = repr(value) if isinstance(value, str | int | float) or value is None else f"{kind_of(value)} {value!r}"
    return text if len(text) <= 80 else f"{text[:80]}…"
