"""Reads and checks a model's configuration: Hugging Face's config.json or Google's
bert_config.json."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bert.architectures import ARCHITECTURES, Architecture
from ringbase.errors import InputError, shortened
from ringbase.files import read_object
from ringbase.settings import shown

REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
IDS = 1 << 31  # the ids of tokens and positions are int32
# Numbers from the least to less than the most; integers where the least is one.
RANGES: dict[str, tuple[float, float]] = {
    "vocab_size": (1, IDS),
    "max_position_embeddings": (1, IDS),
    "type_vocab_size": (1, IDS),
    "hidden_size": (1, 1 << 20),
    "intermediate_size": (1, 1 << 24),
    "num_hidden_layers": (1, 1001),
    "embedding_size": (1, 1 << 20),
    "num_attention_heads": (1, 1 << 20),
    "num_labels": (1, 1 << 20),
    "hidden_dropout_prob": (0.0, 1),
    "attention_probs_dropout_prob": (0.0, 1),
    "classifier_dropout": (0.0, 1),
    "initializer_range": (1e-10, 10),
    "layer_norm_eps": (1e-30, 1),  # a float32 is divided by its root
    "local_attention": (2, IDS),
    "global_rope_theta": (1.0, 1e12),
    "local_rope_theta": (1.0, 1e12),
}
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh", "linear")
CHOICES: dict[str, tuple[Any, ...]] = {
    "hidden_act": ACTIVATIONS,  # of bert.ops
    "classifier_activation": ACTIVATIONS,
    "problem_type": ("regression", "single_label_classification", "multi_label_classification"),
    # Other values than these are those of models that are not the published BERT.
    "model_type": tuple(ARCHITECTURES),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "classifier_pooling": ("cls", "mean"),
}
# Of ModernBERT, whose published models have these values.
MODERN_CHOICES: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "norm_bias": (False,),
    "classifier_bias": (False,),
    "decoder_bias": (True,),
    "attention_dropout": (0.0,),
    "embedding_dropout": (0.0,),
    "mlp_dropout": (0.0,),
    "causal_mask": (False,),
    "is_causal": (False,),
    # Its positions are rotary, whatever this key says, which transformers does not read.
    "position_embedding_type": ("absolute", "sans_pos", "rope", "rotary"),
}
# Its keys for which there are fields of other names, or none.
MODERN_ONLY = ("rope_parameters", "global_attn_every_n_layers")
FULL, SLIDING = "full_attention", "sliding_attention"  # of `layer_types`
# Of `transformers`, some of its older versions, and of Google's multilingual models; they change
# nothing.
HARMLESS = (
    "_name_or_path",
    "_num_labels",
    "architectures",
    "bos_token_id",
    "chunk_size_feed_forward",
    "directionality",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "label2id",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "return_dict",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "generator_size",
    "qa_dropout",
    "sinusoidal_pos_embds",
    "summary_activation",
    "summary_last_dropout",
    "summary_type",
    "summary_use_proj",
    "tie_weights_",
    "cls_token_id",
    "sep_token_id",
    "deterministic_flash_attn",
    "initializer_cutoff_factor",
    "reference_compile",
    "repad_logits_with_grad",
    "sparse_prediction",
    "sparse_pred_ignore_index",
)


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The fields of transformers' class of this name that say what the published BERT computes,
    with its defaults; importing that class would take 0.7 s. `labels` are the names of a
    classifier's outputs, in their order."""

    model_type: str = "bert"
    vocab_size: int = 30522
    embedding_size: int | None = None
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    problem_type: str | None = None
    # of ModernBERT: the width of the window of local layers, which layers are local, the base of
    # rotary positions in both, and what a classifier reads
    local_attention: int = 0
    layer_types: tuple[str, ...] = ()
    global_rope_theta: float = 0.0
    local_rope_theta: float = 0.0
    classifier_pooling: str = "cls"
    classifier_activation: str = "gelu"  # of the layer before a head
    class_name: str = ""  # of transformers' class that the file names
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    gets_types: bool = True  # whether the tokenizer gives types of tokens; else all are 0

    @property
    def architecture(self) -> Architecture:
        return ARCHITECTURES[self.model_type]

    @property
    def first_position(self) -> int:
        """The row of the position embeddings for a row's first token."""
        return self.pad_token_id + 1 if self.architecture.positions_follow_padding else 0

    @property
    def num_positions(self) -> int:
        """The most tokens of a row."""
        return self.max_position_embeddings - self.first_position

    @property
    def num_token_types(self) -> int:
        return self.type_vocab_size if self.architecture.has_token_types else 0

    @property
    def has_types(self) -> bool:
        """Whether the model tells a first text from a second one by the types of tokens."""
        ignores_types = self.architecture.ignores_token_types or not self.gets_types
        return self.num_token_types > 1 and not ignores_types

    def as_json(self) -> dict[str, Any]:
        """The content of config.json."""
        values = asdict(self)
        for name in NOT_IN_FILES:
            del values[name]
        if self.architecture.encoder == "bert":
            for name in MODERN:
                del values[name]
        keys = {ours: theirs for theirs, ours in self.architecture.keys.items()}
        content = {}
        for name, value in values.items():
            if value is not None:  # of which transformers knows none for some models
                content[keys.get(name, name)] = value
        content["id2label"] = dict(enumerate(self.labels))
        content["label2id"] = {label: number for number, label in enumerate(self.labels)}
        return content


MODERN = (
    "local_attention",
    "layer_types",
    "global_rope_theta",
    "local_rope_theta",
    "classifier_pooling",
    "classifier_activation",
)
NOT_IN_FILES = ("labels", "class_name", "gets_types")
FIELDS = tuple(field.name for field in fields(BertConfig) if field.name not in NOT_IN_FILES)


def unnamed_labels(number: int) -> tuple[str, ...]:
    """What transformers calls the outputs of a classifier whose labels have no names."""
    return tuple(f"LABEL_{place}" for place in range(number))


def read_config(source: Path, say: Callable[[str], None] | None = None) -> BertConfig | None:
    """The configuration beside the weights (config.json, or Google's bert_config.json), if there is
    one."""
    folder = source if source.is_dir() else source.parent
    for name in ("config.json", "bert_config.json"):
        path = folder / name
        if path.is_file():
            return config_from_file(path, say)
    return None


def config_from_file(path: str | Path, say: Callable[[str], None] | None = None) -> BertConfig:
    """What a Hugging Face or Google configuration file holds. `say` is told the keys that BERT does
    not have. Raises InputError: a value has another type, is out of its range, or is not that of
    the published BERT."""
    flags = "(--bert_config_file, --model)"
    values = read_object(Path(path), f"{path} {flags}")
    try:
        config = config_of(values)
    except InputError as error:
        raise InputError(f"{path}: {error} {flags}") from error
    keys = architecture_of(values).keys
    known = {*FIELDS, *CHOICES, *HARMLESS, *MODERN_CHOICES, *MODERN_ONLY, *keys}
    unknown = [name for name in values if name not in known and not name.startswith("pooler_")]
    if say and unknown:
        say(f"warning: {path}: BERT's configuration has no {shortened(unknown)}: not used")
    return config


def config_of(values: Mapping[str, Any]) -> BertConfig:
    """The configuration with these values, by the keys of config.json. Raises InputError as
    `config_from_file` does."""
    architecture = architecture_of(values)
    stated = dict(architecture.fixed)
    for name, value in values.items():
        if value is not None or name in REQUIRED:
            stated[architecture.keys.get(name, name)] = value
    if architecture.encoder == "modern":
        stated = _modern(stated)
    return _checked(stated)


def architecture_of(values: Mapping[str, Any]) -> Architecture:
    """That of a configuration's values; BERT's if they name none that is known."""
    return ARCHITECTURES.get(str(values.get("model_type")), ARCHITECTURES["bert"])


def _checked(values: Mapping[str, Any]) -> BertConfig:
    for name in REQUIRED:
        if name not in values:
            raise InputError(f"not a BERT configuration: {name} is missing")
    for name, (least, most) in RANGES.items():
        value = values.get(name, least)
        kind = type(least)
        if type(value) not in (int, kind) or not least <= value < most:
            number = "an integer" if kind is int else "a number"
            raise InputError(
                f"{name} must be {number} from {least:g} to less than {most:,}, got {shown(value)}"
            )
    _check_choices(values, CHOICES)
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    pad = values.get("pad_token_id", 0)
    embedding = values.get("embedding_size", hidden)
    if hidden % heads:
        raise InputError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    if type(pad) is not int or not 0 <= pad < values["vocab_size"]:
        raise InputError(
            f"pad_token_id must be null or an integer below vocab_size, got {shown(pad)}"
        )
    if embedding != hidden and not architecture_of(values).projects_embeddings:
        raise InputError(f"embedding_size must be hidden_size {hidden}, got {embedding}")
    known = {name: values[name] for name in FIELDS if name in values}
    for name, (least, _) in RANGES.items():
        if name in known:
            known[name] = type(least)(known[name])  # 1 may stand for 1.0
    classes = values.get("architectures")
    if isinstance(classes, list) and classes:
        known["class_name"] = str(classes[0])
    known["labels"] = _labels(values)
    return BertConfig(**known)


def _modern(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a ModernBERT in one spelling: transformers 5 has dicts of rotary positions and
    a list of layers, earlier versions a base for each kind and the distance of global layers."""
    _check_choices(values, MODERN_CHOICES)
    values = {name: value for name, value in values.items() if name not in MODERN_CHOICES}
    rotary = values.pop("rope_parameters", {})
    for kind, name in ((FULL, "global_rope_theta"), (SLIDING, "local_rope_theta")):
        of_kind = None
        if isinstance(rotary, dict):
            of_kind = rotary.get(kind, {})
        if not isinstance(of_kind, dict) or of_kind.get("rope_type", "default") != "default":
            raise InputError(
                f"rope_parameters must have rope_type default for {FULL} and {SLIDING}, got"
                f" {shown(rotary)}"
            )
        values[name] = of_kind.get("rope_theta", values[name])
    every = values.pop("global_attn_every_n_layers", 3)
    number = values.get("num_hidden_layers")
    if type(every) is not int or every < 1:
        raise InputError(f"global_attn_every_n_layers must be at least 1, got {shown(every)}")
    if "layer_types" not in values and type(number) is int:
        values["layer_types"] = [SLIDING if layer % every else FULL for layer in range(number)]
    kinds: Any = values.get("layer_types")
    is_known = isinstance(kinds, list) and all(kind in (FULL, SLIDING) for kind in kinds)
    if not is_known or len(kinds) != number:
        raise InputError(
            f"layer_types must name {FULL} or {SLIDING} for each of num_hidden_layers"
            f" {shown(number)}, got {shown(kinds)}"
        )
    return values | {"layer_types": tuple(kinds)}


def _check_choices(values: Mapping[str, Any], choices: Mapping[str, tuple[Any, ...]]) -> None:
    for name, allowed in choices.items():
        if values.get(name, allowed[0]) in allowed:
            continue
        needed = ", ".join(map(json.dumps, allowed))
        if len(allowed) > 1:
            needed = f"one of {needed}"
        raise InputError(f"{name} must be {needed}, got {shown(values[name])}")


def _labels(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels by number, without `label2id`, which often says something else."""
    table = values.get("id2label")
    number = values.get("num_labels", 2)
    labels: tuple[Any, ...] = unnamed_labels(number)
    if table is not None:
        names = table if isinstance(table, dict) else {}
        labels = tuple(_label(names.get(str(place))) for place in range(len(names)))
        are_names = labels and all(isinstance(label, str) for label in labels)
        if not are_names or len(set(labels)) < len(labels):
            raise InputError(
                f"id2label must name the labels 0, 1, …, each once, got {shown(table)}"
            )
        if "num_labels" in values and number != len(labels):
            raise InputError(f"num_labels is {number}, but id2label names {len(labels)} labels")
    if values.get("problem_type") == "single_label_classification" and len(labels) < 2:
        raise InputError(
            f"problem_type single_label_classification needs 2 labels or more, got {len(labels)}"
        )
    return labels


def _label(value: Any) -> Any:
    """A name of a label as transformers' users meet it: numbers are names too."""
    return str(value) if type(value) is int else value
