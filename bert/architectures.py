"""BERT's family: how published encoders differ from BERT, in their files and at the edges of the
model.

A new one is an entry here. `tests/referee/test_model.py` compares each with transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Pooler:
    """The dense layer between the first token's hidden state and scores of examples."""

    activation: str = "tanh"  # "" for that of config.json, `classifier_activation`
    drops_first: bool = False  # there is a dropout before it too
    is_normalized: bool = False  # it has no bias, and a LayerNorm behind it
    of_tokens: bool = False  # it stands before the scores of tokens too


@dataclass(frozen=True)
class Architecture:
    """An entry, by the `model_type` of config.json."""

    transformers: str  # what the names of its classes begin with
    prefix: str  # of the encoder's tensors in Hugging Face files
    encoder: str = "bert"  # of bert.model.ENCODERS
    tensors: Pairs = ()  # parts of tensors' names there, and in transformers' BERT
    classifier_tensors: Pairs = ()  # the same, of the layers above the encoder in a classifier
    keys: Mapping[str, str] = field(default_factory=dict)  # of config.json, and BertConfig's
    # Values that its config.json leaves out, where they differ from BERT's.
    fixed: Mapping[str, object] = field(default_factory=dict)
    has_token_types: bool = True  # there are embeddings of token types
    ignores_token_types: bool = False  # all tokens have type 0
    positions_follow_padding: bool = False  # positions begin after the id of padding (fairseq)
    projects_embeddings: bool = False  # embeddings may have another size, and are then projected
    pooler: Pooler = Pooler()
    unused: tuple[str, ...] = ()  # beginnings of the names of tensors that belong to other heads
    # Keys of config.json that say the id of [CLS] ("cls") or [SEP] ("sep"). Where they are missing,
    # transformers takes those of the published vocabulary.
    special_ids: Mapping[str, str] = field(default_factory=dict)


_CLASSIFIER = (("classifier.out_proj.", "classifier."), ("classifier.dense.", "pooler.dense."))
_ROBERTA = Architecture(
    "Roberta",
    "roberta.",
    classifier_tensors=_CLASSIFIER,
    fixed={"pad_token_id": 1},
    positions_follow_padding=True,
    pooler=Pooler(drops_first=True),
    ignores_token_types=True,
    unused=("lm_head.", "pooler."),
)
_ELECTRA = Architecture(
    "Electra",
    "electra.",
    classifier_tensors=_CLASSIFIER,
    projects_embeddings=True,
    pooler=Pooler("gelu", drops_first=True),
    unused=("discriminator_predictions.", "generator_"),
)
_DISTILBERT_TENSORS = (
    ("pre_classifier.", "pooler.dense."),
    ("transformer.layer.", "encoder.layer."),
    (".attention.q_lin.", ".attention.self.query."),
    (".attention.k_lin.", ".attention.self.key."),
    (".attention.v_lin.", ".attention.self.value."),
    (".attention.out_lin.", ".attention.output.dense."),
    (".sa_layer_norm.", ".attention.output.LayerNorm."),
    (".ffn.lin1.", ".intermediate.dense."),
    (".ffn.lin2.", ".output.dense."),
    (".output_layer_norm.", ".output.LayerNorm."),
)
_DISTILBERT_KEYS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "seq_classif_dropout": "classifier_dropout",
}
_DISTILBERT = Architecture(
    "DistilBert",
    "distilbert.",
    tensors=_DISTILBERT_TENSORS,
    keys=_DISTILBERT_KEYS,
    fixed={"classifier_dropout": 0.2},
    has_token_types=False,
    pooler=Pooler("relu"),
    unused=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
)
_MODERNBERT_TENSORS = (
    ("tok_embeddings.", "word_embeddings."),
    ("embeddings.norm.", "embeddings.LayerNorm."),
    ("layers.", "encoder.layer."),
    (".attn_norm.", ".attention.LayerNorm."),
    (".attn.Wqkv.", ".attention.self.query_key_value."),
    (".attn.Wo.", ".attention.output.dense."),
    (".mlp_norm.", ".intermediate.LayerNorm."),
    (".mlp.Wi.", ".intermediate.dense."),
    (".mlp.Wo.", ".output.dense."),
    ("final_norm.", "encoder.LayerNorm."),
    ("head.dense.", "pooler.dense."),
    ("head.norm.", "pooler.LayerNorm."),
    ("decoder.bias", "cls.predictions.bias"),
    ("decoder.weight", "cls.predictions.decoder.weight"),
)
_MODERNBERT_FIXED = {
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "local_attention": 128,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
}
_MODERNBERT = Architecture(
    "ModernBert",
    "model.",
    encoder="modern",
    tensors=_MODERNBERT_TENSORS,
    keys={"norm_eps": "layer_norm_eps", "hidden_activation": "hidden_act"},
    fixed=_MODERNBERT_FIXED,
    has_token_types=False,
    pooler=Pooler("", is_normalized=True, of_tokens=True),
    special_ids={
        "bos_token_id": "cls",
        "eos_token_id": "sep",
        "cls_token_id": "cls",
        "sep_token_id": "sep",
    },
)
ARCHITECTURES = {
    "bert": Architecture("Bert", "bert."),
    "roberta": _ROBERTA,
    "xlm-roberta": replace(_ROBERTA, transformers="XLMRoberta"),
    "camembert": replace(_ROBERTA, transformers="Camembert"),
    "electra": _ELECTRA,
    "distilbert": _DISTILBERT,
    "modernbert": _MODERNBERT,
}
