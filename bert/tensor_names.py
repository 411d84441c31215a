"""Names of BERT's tensors: Google's, which are ours, and Hugging Face's."""

import re

# The tensors of each head, by Google's names: new when training starts, and ignored by models with other heads.
HEAD_TENSORS = {
    "span": ("cls/squad/output_weights", "cls/squad/output_bias"),
    "classifier": ("output_weights", "output_bias", "bert/pooler/dense/kernel", "bert/pooler/dense/bias"),
    "pretraining": (
        "cls/predictions/transform/dense/kernel",
        "cls/predictions/transform/dense/bias",
        "cls/predictions/transform/LayerNorm/gamma",
        "cls/predictions/transform/LayerNorm/beta",
        "cls/predictions/output_bias",
        "cls/seq_relationship/output_weights",
        "cls/seq_relationship/output_bias",
        "bert/pooler/dense/kernel",
        "bert/pooler/dense/bias",
    ),
    "features": (),
}
# Entries of checkpoints that are not weights.
NO_WEIGHTS = re.compile(r"(/adam_[mv]|/AdamWeightDecay.*|^global_step|^bert/embeddings/position_ids)$")

# Hugging Face's copies of other tensors in the masked-word head, under the names that `google_name` gives them.
TIED_COPIES = {
    "cls/predictions/decoder/kernel": "bert/embeddings/word_embeddings",
    "cls/predictions/decoder/weight": "bert/embeddings/word_embeddings",
    "cls/predictions/decoder/bias": "cls/predictions/output_bias",
}
# Head tensors whose names follow no rule. Google and Hugging Face store these matrices in the same orientation.
_HEADS_TO_HUGGING_FACE = {
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
}
_HEADS_TO_GOOGLE = {theirs: ours for ours, theirs in _HEADS_TO_HUGGING_FACE.items()}
# Hugging Face's name -> Google's, by regular expression; the first match wins.
_TO_GOOGLE = (
    (r"^embeddings\.(word|token_type|position)_embeddings\.weight$", r"bert/embeddings/\1_embeddings"),
    (r"^embeddings\.position_ids$", "bert/embeddings/position_ids"),
    (r"^embeddings\.LayerNorm\.", "bert/embeddings/LayerNorm/"),
    (r"^encoder\.layer\.(\d+)\.", r"bert/encoder/layer_\1/"),
    (r"^pooler\.", "bert/pooler/"),
    (r"^cls\.predictions\.decoder\.(weight|bias)$", r"cls/predictions/decoder/\1"),
    (r"^cls\.predictions\.", "cls/predictions/"),
)


def google_name(hugging_face_name: str) -> tuple[str, bool]:
    """Google's name of a Hugging Face tensor, and whether the matrix must be transposed."""
    name = hugging_face_name.removeprefix("bert.")
    if name in _HEADS_TO_GOOGLE:
        return _HEADS_TO_GOOGLE[name], False
    for pattern, replacement in _TO_GOOGLE:
        name, count = re.subn(pattern, replacement, name)
        if count:
            break
    if "LayerNorm" in name:  # folders from 2019 use gamma and beta
        name = re.sub(r"\.?LayerNorm[./](weight|gamma)$", "/LayerNorm/gamma", name)
        name = re.sub(r"\.?LayerNorm[./](bias|beta)$", "/LayerNorm/beta", name)
    if name.endswith(".weight"):
        return name.removesuffix(".weight").replace(".", "/") + "/kernel", True
    return name.replace(".", "/").replace("//", "/"), False


def hugging_face_name(name: str, head: str) -> tuple[str, bool]:
    """The inverse of `google_name` for a tensor of a model with this head."""
    if name in _HEADS_TO_HUGGING_FACE:
        return _HEADS_TO_HUGGING_FACE[name], False
    transpose = name.endswith("/kernel")
    dotted = re.sub(r"layer_(\d+)", r"layer.\1", name).replace("/", ".")
    dotted = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", dotted)
    dotted = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", dotted)
    dotted = re.sub(r"(\.kernel|(?<=_embeddings))$", ".weight", dotted)
    return (dotted.removeprefix("bert.") if head == "features" else dotted), transpose
