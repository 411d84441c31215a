"""Names of BERT's tensors: Google's, which are ours, and Hugging Face's."""

import re

POOLER = ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")
# The tensors of each head, by Google's names: new when training starts, and ignored by models with other heads.
HEAD_TENSORS = {
    "span": ("cls/squad/output_weights", "cls/squad/output_bias"),
    "classifier": ("output_weights", "output_bias", *POOLER),
    "pretraining": (
        *(f"cls/predictions/transform/dense/{name}" for name in ("kernel", "bias")),
        *(f"cls/predictions/transform/LayerNorm/{name}" for name in ("gamma", "beta")),
        "cls/predictions/output_bias",
        *(f"cls/seq_relationship/output_{name}" for name in ("weights", "bias")),
        *POOLER,
    ),
    "features": (),
}
# Entries of checkpoints that are not weights.
NO_WEIGHTS = re.compile(r"(/adam_[mv]|/AdamWeightDecay.*|^global_step|^bert/embeddings/position_ids)$")

# Hugging Face's copies of other tensors in the masked-word head, under the names that `google_name` gives them.
TIED_COPIES = {
    "cls/predictions/decoder/weight": "bert/embeddings/word_embeddings",
    "cls/predictions/decoder/bias": "cls/predictions/output_bias",
}
# Tensors whose names follow no rule. Google and Hugging Face store these matrices in the same orientation.
_TO_HUGGING_FACE = {
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/predictions/decoder/weight": "cls.predictions.decoder.weight",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
}
_TO_GOOGLE = {theirs: ours for ours, theirs in _TO_HUGGING_FACE.items()}


def google_name(key: str) -> tuple[str, bool]:
    """Google's name of a Hugging Face tensor, and whether the matrix must be transposed."""
    name = key.removeprefix("bert.")
    if name in _TO_GOOGLE:
        return _TO_GOOGLE[name], False
    name = re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", name)  # as they are named in folders from 2019
    name = re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", name)
    name = re.sub(r"_embeddings\.weight$", "_embeddings", name)
    name = re.sub(r"layer\.(\d+)\.", r"layer_\1/", name)
    transpose = name.endswith(".weight")
    name = re.sub(r"\.weight$", "/kernel", name).replace(".", "/")
    return (name if name.startswith("cls/") else f"bert/{name}"), transpose


def hugging_face_name(name: str, head: str) -> tuple[str, bool]:
    """The inverse of `google_name` for a tensor of a model with this head."""
    if name in _TO_HUGGING_FACE:
        return _TO_HUGGING_FACE[name], False
    key = re.sub(r"layer_(\d+)", r"layer.\1", name).replace("/", ".")
    key = key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    key = re.sub(r"(\.kernel|(?<=_embeddings))$", ".weight", key)
    return (key.removeprefix("bert.") if head == "features" else key), name.endswith("/kernel")
