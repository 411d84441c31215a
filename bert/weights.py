"""Reads and writes BERT weights in the usual formats, under Google's tensor names.

Read: a Hugging Face folder or hub name (`model.safetensors`, whole or in shards), a Google
TensorFlow 1 checkpoint (`bert_model.ckpt`, `model.ckpt-1000`, or a folder with a `checkpoint`
file), our own checkpoints (which are Hugging Face folders). Written: the Hugging Face layout, which
`transformers` loads.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bert import hub
from bert.architectures import ARCHITECTURES, Architecture
from bert.heads import CLASSIFIER, FEATURES, HEADS, Head
from bert.tensors import check_types, files_of
from ringbase.errors import InputError, shortened
from ringbase.files import write_json

UNUSED = "unused/"  # where `read` puts tensors of heads that we do not have
# Entries of checkpoints that are not weights.
NO_WEIGHTS = re.compile(
    r"(/adam_[mv]|/AdamWeightDecay.*|^global_step|^bert/embeddings/position_ids)$"
)

# Hugging Face's copies of other tensors in the masked-word head, under the names that `google_name`
# gives them.
TIED_COPIES = {
    "cls/predictions/decoder/weight": "bert/embeddings/word_embeddings",
    "cls/predictions/decoder/bias": "cls/predictions/output_bias",
}
# Tensors whose names follow no rule. Google and Hugging Face store these matrices in the same
# orientation.
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
# What a CrossEncoder of sentence-transformers, from version 4 on and before, makes of one score: it
# would take the sigmoid.
_IDENTITY = "torch.nn.modules.linear.Identity"
AS_IT_IS = {
    "sentence_transformers": {"activation_fn": _IDENTITY},
    "sbert_ce_default_activation_function": _IDENTITY,
}
_TO_GOOGLE = {theirs: ours for ours, theirs in _TO_HUGGING_FACE.items()}
# How the keys of the encoder's tensors begin in one of the architectures.
ENCODER_KEYS = ("embeddings", "encoder", "transformer", "pooler", "layers.", "final_norm")
_ENDS = (  # of all others, as Hugging Face and Google write them
    ("LayerNorm.weight", "LayerNorm.gamma"),
    ("LayerNorm.bias", "LayerNorm.beta"),
    ("_embeddings.weight", "_embeddings"),
    (".weight", ".kernel"),
)


class MissingTensors(InputError):
    """The source lacks tensors that the model needs."""


# -- names -----------------------------------------------------------------------------------------


def google_name(key: str, architecture: Architecture = ARCHITECTURES["bert"]) -> str:
    """Google's name of a Hugging Face tensor. Those named `kernel` are transposed."""
    name = key.removeprefix(architecture.prefix)
    if name.startswith(architecture.unused):
        return f"{UNUSED}{name}"
    for theirs, ours in architecture.classifier_tensors + architecture.tensors:
        name = name.replace(theirs, ours)
    if name in _TO_GOOGLE:
        return _TO_GOOGLE[name]
    for theirs, ours in _ENDS:
        if name.endswith(theirs):
            name = name.removesuffix(theirs) + ours
    name = re.sub(r"layer\.(\d+)\.", r"layer_\1.", name).replace(".", "/")
    return name if name.startswith("cls/") else f"bert/{name}"


def hugging_face_name(
    name: str, head: Head, architecture: Architecture = ARCHITECTURES["bert"]
) -> str:
    """The inverse of `google_name` for a tensor of a model with this head."""
    key = re.sub(r"layer_(\d+)", r"layer.\1", name.removeprefix("bert/")).replace("/", ".")
    for theirs, ours in _ENDS:
        if key.endswith(ours):
            key = key.removesuffix(ours) + theirs
    key = _TO_HUGGING_FACE.get(name, key)
    renamed = architecture.tensors
    if head is CLASSIFIER:
        renamed = architecture.classifier_tensors + renamed
    for theirs, ours in renamed:
        key = key.replace(ours, theirs)
    is_encoder = key.startswith(ENCODER_KEYS)
    return f"{architecture.prefix}{key}" if is_encoder and head is not FEATURES else key


# -- reading and writing ---------------------------------------------------------------------------


def load(model, source: Path, *, new: Iterable[str] = ()) -> str:
    """Fills the variables of a `Bert` from `source`. Returns a line that says what was loaded and
    what was not.

    Tensors in `new` may be missing and then keep their initial values: the head's own when training
    starts, none for prediction. A classifier's with another number of labels counts as missing.
    Raises MissingTensors, or InputError for a tensor that no head owns, or whose shape or values
    are wrong; the model is then unchanged.
    """
    variables = model.named_tensors()
    tensors = read(source, model.config.architecture)
    new = set(new)
    for copy, original in TIED_COPIES.items():
        value = tensors.pop(copy, None)
        if value is None or original not in tensors:
            continue
        if not np.array_equal(value, tensors[original]):
            raise InputError(
                f"{source}: {copy} differs from {original}, which BERT uses in its place"
            )
    for name in new & tensors.keys():
        if name.startswith("output_") and tensors[name].shape != variables[name].shape:
            del tensors[name]  # of a classifier with another number of labels
    missing = [name for name in variables if name not in tensors]
    if absent := [name for name in missing if name not in new]:
        raise MissingTensors(
            f"{source}: tensors that the model needs are missing: {shortened(absent)}"
        )
    unused = {name for name in tensors.keys() - variables.keys() if not NO_WEIGHTS.search(name)}
    own = {name for name in unused if not name.startswith(UNUSED)}
    if unknown := own.difference(*(head.shapes(model.config) for head in HEADS.values())):
        raise InputError(
            f"{source}: has tensors that the model does not have: {shortened(sorted(unknown))}; "
            "does --bert_config_file (or config.json) belong to these weights?"
        )
    loaded = {name: tensors[name] for name in variables if name in tensors}
    for name, tensor in loaded.items():
        needed = variables[name].shape
        if tensor.shape != needed:
            raise InputError(
                f"{source}: {name} has shape {tensor.shape}, but the configuration needs {needed}:"
                " do --bert_config_file and --vocab_file belong to this file?"
            )
        # as fast as reading; isfinite would need a copy
        if not np.isfinite(tensor.sum(dtype=np.float64)):
            raise InputError(
                f"{source}: {name} has values that are not finite: the weights are damaged"
            )
    for name, tensor in loaded.items():
        variables[name].assign(tensor.astype(variables[name].dtype, copy=False))
    text = f"{len(loaded)} tensors from {source}"
    if missing:
        text += f"; new, with their initial values: {', '.join(missing)}"
    if unused:
        text += f"; not used by this model: {shortened(sorted(unused))}"
    return text


def copied(model, tokenizer=None) -> Callable[[Path], None]:
    """Copies the weights now. Returns a function that writes them to a folder, which `transformers`
    loads: `model.safetensors`, `config.json` and the tokenizer's files."""
    architecture = model.config.architecture
    tensors = {}
    for name, variable in model.named_tensors().items():
        value = variable.numpy()
        key = hugging_face_name(name, model.head, architecture)
        tensors[key] = value.T if name.endswith("/kernel") else value
    names = [architecture.transformers + model.head.transformers]
    config = {"architectures": names, **model.config.as_json()}
    if tokenizer is not None:
        config["pad_token_id"] = tokenizer.pad_id
        ids = {"cls": tokenizer.cls_id, "sep": tokenizer.sep_id}
        config |= {key: ids[token] for key, token in architecture.special_ids.items()}
    if model.head is CLASSIFIER and model.config.problem_type == "regression":
        config |= AS_IT_IS

    def write(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", config, indent=2)
        values = {key: np.ascontiguousarray(value, np.float32) for key, value in tensors.items()}
        save_file(values, folder / "model.safetensors", {"format": "pt"})
        if tokenizer is not None:
            tokenizer.save(folder, model.config.has_types, model.config.num_positions)

    return write


def read(source: Path, architecture: Architecture = ARCHITECTURES["bert"]) -> dict[str, np.ndarray]:
    """Every weight of the source under Google's name, kernels as [in, out]."""
    if hub.is_tf_checkpoint(source):
        return _read_tf(source)
    tensors = {}
    for file in files_of(source):
        try:
            check_types(file)
            for key, value in load_file(file).items():
                name = google_name(key, architecture)
                tensors[name] = value.T if name.endswith("/kernel") else value
        except SafetensorError as error:
            raise InputError(f"{file}: damaged, or not a safetensors file: {error}") from error
    return tensors


def _read_tf(source: Path) -> dict[str, np.ndarray]:
    import tensorflow as tf

    prefix = tf.train.latest_checkpoint(str(source)) if source.is_dir() else str(source)
    if prefix is None:
        raise InputError(
            f"{source}: its file `checkpoint` names no checkpoint that exists (--init_checkpoint)"
        )
    try:
        reader = tf.train.load_checkpoint(prefix)
        names = [name for name in reader.get_variable_to_shape_map() if not NO_WEIGHTS.search(name)]
        return {name: reader.get_tensor(name) for name in names}
    # IndexError: a truncated data file
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise InputError(
            f"{prefix}: unreadable TensorFlow checkpoint: {str(error).splitlines()[0]}"
        ) from error
