"""Weights of BERT from and to the formats of the field, under Google's tensor names.

Read: a Hugging Face folder or hub name (`model.safetensors`, whole or in shards), a Google TensorFlow 1
checkpoint (`bert_model.ckpt`, `model.ckpt-1000`, or a folder with a `checkpoint` file), our own checkpoints
(which are Hugging Face folders). Written: the Hugging Face layout, which `transformers` loads.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from transformers import BertConfig

from ringbert.errors import InputError

ARCHITECTURES = {
    "span": "BertForQuestionAnswering",
    "classifier": "BertForSequenceClassification",
    "pretraining": "BertForPreTraining",
    "features": "BertModel",
}
PUBLISHED_PREFIX = "bert_model.ckpt"
# Google's tensor that each head owns: new when training starts, and no loss to another head's model.
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
UNUSED_PATTERN = re.compile(r"(/adam_[mv]|/AdamWeightDecay.*|^global_step|^bert/embeddings/position_ids)$")

# Hugging Face's name -> Google's, by regular expression, tried in order. Kernels are transposed.
_HF_RULES = (
    (r"^embeddings\.(word|token_type|position)_embeddings\.weight$", r"bert/embeddings/\1_embeddings"),
    (r"^embeddings\.position_ids$", "bert/embeddings/position_ids"),
    (r"^embeddings\.LayerNorm\.", "bert/embeddings/LayerNorm/"),
    (r"^encoder\.layer\.(\d+)\.", r"bert/encoder/layer_\1/"),
    (r"^pooler\.", "bert/pooler/"),
    (r"^qa_outputs\.weight$", "cls/squad/output_weights"),
    (r"^qa_outputs\.bias$", "cls/squad/output_bias"),
    (r"^classifier\.weight$", "output_weights"),
    (r"^classifier\.bias$", "output_bias"),
    (r"^cls\.predictions\.bias$", "cls/predictions/output_bias"),
    (r"^cls\.predictions\.decoder\.(weight|bias)$", r"cls/predictions/decoder/\1"),
    (r"^cls\.seq_relationship\.weight$", "cls/seq_relationship/output_weights"),
    (r"^cls\.seq_relationship\.bias$", "cls/seq_relationship/output_bias"),
    (r"^cls\.predictions\.", "cls/predictions/"),
)


@dataclass
class LoadReport:
    """What a load did: tensors read, those kept at their initial values, those of the source left unused."""

    source: str
    loaded: int = 0
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.loaded} tensors from {self.source}"
        if self.missing:
            text += f"; new, from their initial values: {', '.join(self.missing)}"
        if self.unused:
            text += f"; not used by this model: {_listed(self.unused)}"
        return text


def google_name(hugging_face_name: str) -> tuple[str, bool]:
    """Google's name of a Hugging Face tensor, and whether the matrix must be transposed."""
    name = hugging_face_name.removeprefix("bert.")
    for pattern, replacement in _HF_RULES:
        name, count = re.subn(pattern, replacement, name)
        if count:
            break
    if "LayerNorm" in name:  # old folders say gamma and beta
        name = re.sub(r"\.?LayerNorm[./](weight|gamma)$", "/LayerNorm/gamma", name)
        name = re.sub(r"\.?LayerNorm[./](bias|beta)$", "/LayerNorm/beta", name)
    if name.endswith(".weight"):
        return name.removesuffix(".weight").replace(".", "/") + "/kernel", True
    return name.replace(".", "/").replace("//", "/"), False


def hugging_face_name(name: str, head: str) -> tuple[str, bool]:
    """The inverse of `google_name` for a tensor of a model with this head."""
    fixed = {
        "cls/squad/output_weights": "qa_outputs.weight",
        "cls/squad/output_bias": "qa_outputs.bias",
        "output_weights": "classifier.weight",
        "output_bias": "classifier.bias",
        "cls/predictions/output_bias": "cls.predictions.bias",
        "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
        "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    }
    if name in fixed:
        return fixed[name], False
    transpose = name.endswith("/kernel")
    dotted = re.sub(r"layer_(\d+)", r"layer.\1", name).replace("/", ".")
    dotted = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", dotted)
    dotted = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", dotted)
    dotted = re.sub(r"(\.kernel|(?<=_embeddings))$", ".weight", dotted)
    return (dotted.removeprefix("bert.") if head == "features" else dotted), transpose


def find(name_or_path: str) -> Path:
    """The folder or checkpoint prefix that a `--model` or `--init_checkpoint` names; a hub name is downloaded.

    Raises InputError when there is neither a file, a folder, nor a hub repository of this name.
    """
    path = Path(name_or_path).expanduser()
    if (path / f"{PUBLISHED_PREFIX}.index").is_file() and not (path / "model.safetensors").is_file():
        return path / PUBLISHED_PREFIX  # Google's archive as it is unzipped
    if path.exists() or _is_tf_checkpoint(path):
        return path
    if name_or_path.count("/") > 1 or name_or_path.startswith(("/", ".", "~")) or "ckpt" in name_or_path:
        raise InputError(f"{name_or_path}: no such folder or checkpoint (--model, --init_checkpoint)")
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError

    wanted = ["*.json", "vocab.txt", "*.model", "model.safetensors", "model-*.safetensors"]
    try:
        return Path(snapshot_download(name_or_path, allow_patterns=wanted))
    except (HFValidationError, OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if constants.HF_HUB_OFFLINE:
            reason = f"HF_HUB_OFFLINE is set and HF_HOME lacks it; run `hf download {name_or_path}` with a network"
        raise InputError(
            f"--model {name_or_path} is no folder here and cannot be had from the hub: {reason}"
        ) from error


def read_config(source: Path) -> BertConfig | None:
    """The configuration beside the weights (config.json, or Google's bert_config.json), if there is one."""
    folder = source if source.is_dir() else source.parent
    for name in ("config.json", "bert_config.json"):
        if (folder / name).is_file():
            return config_from_file(folder / name)
    return None


def config_from_file(path: str | Path) -> BertConfig:
    """BertConfig of a Hugging Face or Google configuration file. Raises InputError when it is neither."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not a JSON configuration ({error}) (--bert_config_file, --model)") from error
    if not isinstance(values, dict) or "vocab_size" not in values or "hidden_size" not in values:
        raise InputError(
            f"{path}: no BERT configuration: vocab_size or hidden_size is missing (--bert_config_file, --model)"
        )
    if values.get("model_type", "bert") != "bert":
        raise InputError(f"{path}: model_type is {values['model_type']!r}, needed is 'bert' (--model)")
    config = BertConfig.from_dict(values)
    if config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"{path}: hidden_size {config.hidden_size} is no multiple of "
            f"num_attention_heads {config.num_attention_heads}"
        )
    return config


def read(source: Path) -> dict[str, np.ndarray]:
    """Every tensor of the source under Google's name, kernels as [in, out]."""
    return _read_tf(source) if _is_tf_checkpoint(source) else _read_safetensors(source)


def load(model, source: Path, *, new: Iterable[str] = ()) -> LoadReport:
    """Fills the model's variables from `source`.

    Args:
      model: a `bert.model.Bert`.
      new: tensors that may be missing and then keep their initial values: the head's own when training starts,
        none for prediction.
    Raises:
      InputError: a tensor is missing that is not in `new`, one is unused that no other head owns, or a shape
        differs.
    """
    variables, tensors = model.named_tensors(), read(source)
    _drop_tied_decoder(tensors)
    report = LoadReport(str(source))
    report.missing = [name for name in variables if name not in tensors]
    report.unused = sorted(name for name in tensors if name not in variables and not UNUSED_PATTERN.search(name))
    refused = [name for name in report.missing if name not in set(new)]
    if refused:
        raise InputError(f"{source}: the model needs tensors that are not there: {_listed(refused)}")
    foreign = {name for names in HEAD_TENSORS.values() for name in names}
    strange = [name for name in report.unused if name not in foreign]
    if strange:
        raise InputError(
            f"{source}: holds tensors that this model has no place for: {_listed(strange)}; "
            "does --bert_config_file (or config.json) belong to these weights?"
        )
    for name, variable in variables.items():
        if name in tensors and tensors[name].shape != tuple(variable.shape):
            if name in set(new) and name in HEAD_TENSORS[model.head_name] and name.startswith("output_"):
                report.missing.append(name)  # a classifier of other labels: this head is new
                continue
            raise InputError(
                f"{source}: {name} has shape {tensors[name].shape}, the configuration needs "
                f"{tuple(variable.shape)}; do --bert_config_file and --vocab_file belong to this checkpoint?"
            )
    for name, variable in variables.items():
        if name not in report.missing:
            variable.assign(tensors[name].astype(variable.dtype))
            report.loaded += 1
    return report


def save(model, folder: Path, tokenizer=None) -> None:
    """Writes `model.safetensors`, `config.json` and the tokenizer's files; `transformers` loads the folder."""
    copied(model, tokenizer)(folder)


def copied(model, tokenizer=None) -> Callable[[Path], None]:
    """Copies the weights; what it returns writes the copy to a folder, as `save` does."""
    values = {name: variable.numpy() for name, variable in model.named_tensors().items()}
    more = {"architectures": [ARCHITECTURES[model.head_name]]} | (
        {"pad_token_id": tokenizer.pad_id} if tokenizer else {}
    )
    config = BertConfig.from_dict(model.config.to_dict() | more)

    def write(folder: Path) -> None:
        from safetensors.numpy import save_file

        tensors = {}
        for name, value in values.items():
            key, transpose = hugging_face_name(name, model.head_name)
            value = value.astype(np.float32, copy=False)
            tensors[key] = np.ascontiguousarray(value.T if transpose else value)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(config.to_json_string(), encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save(folder)

    return write


def _is_tf_checkpoint(path: Path) -> bool:
    return Path(f"{path}.index").is_file() or (path / "checkpoint").is_file()


def _read_tf(source: Path) -> dict[str, np.ndarray]:
    import tensorflow as tf

    prefix = str(source)
    if source.is_dir():
        prefix = tf.train.latest_checkpoint(prefix)
        if prefix is None:
            raise InputError(
                f"{source}: its file `checkpoint` names no checkpoint that exists (--init_checkpoint)"
            )
    try:
        reader = tf.train.load_checkpoint(prefix)
        names = [name for name in reader.get_variable_to_shape_map() if not UNUSED_PATTERN.search(name)]
        return {name: reader.get_tensor(name) for name in names}
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:  # IndexError: a truncated data file
        raise InputError(f"{prefix}: unreadable TensorFlow checkpoint: {str(error).splitlines()[0]}") from error


def _read_safetensors(source: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError, safe_open

    files = [source]
    if source.is_dir():
        index = source / "model.safetensors.index.json"
        files = [source / "model.safetensors"]
        if index.is_file():
            files = _shards(index)
    if not files[0].is_file():
        there = (
            "only a pickle (pytorch_model.bin), which can run code when read"
            if any(source.glob("*.bin"))
            else "no model.safetensors, no TensorFlow checkpoint"
        )
        raise InputError(
            f"{source}: {there}; save it with transformers' save_pretrained first (--model, --init_checkpoint)"
        )
    tensors = {}
    for file in files:
        try:
            with safe_open(file, "numpy") as handle:
                for key in handle.keys():  # noqa: SIM118 (not a dict)
                    name, transpose = google_name(key)
                    value = handle.get_tensor(key)
                    tensors[name] = value.T if transpose else value
        except SafetensorError as error:
            raise InputError(f"{file}: damaged or no safetensors file: {error}") from error
    return tensors


def _shards(index: Path) -> list[Path]:
    """The files that an index names, all of them there."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index}: no index of safetensors files: {error!r} (--model)") from error
    absent = [name for name in names if not (index.parent / name).is_file()]
    if absent or not names:
        raise InputError(f"{index}: names {len(names)} files, of which are not there: {_listed(absent)} (--model)")
    return [index.parent / name for name in names]


def _drop_tied_decoder(tensors: dict[str, np.ndarray]) -> None:
    """Drops Hugging Face's copy of the word embeddings and of the vocabulary bias in the masked-word head."""
    for copy, original in (
        ("cls/predictions/decoder/kernel", "bert/embeddings/word_embeddings"),
        ("cls/predictions/decoder/weight", "bert/embeddings/word_embeddings"),
        ("cls/predictions/decoder/bias", "cls/predictions/output_bias"),
    ):
        value = tensors.pop(copy, None)
        if value is not None and original in tensors and not np.array_equal(value, tensors[original]):
            raise InputError(f"{copy} is not tied to {original}: this is no published BERT")


def _listed(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
