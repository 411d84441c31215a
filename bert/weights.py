"""Reads and writes BERT weights in the usual formats, under Google's tensor names.

Read: a Hugging Face folder or hub name (`model.safetensors`, whole or in shards), a Google TensorFlow 1
checkpoint (`bert_model.ckpt`, `model.ckpt-1000`, or a folder with a `checkpoint` file), our own checkpoints
(which are Hugging Face folders). Written: the Hugging Face layout, which `transformers` loads.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import BertConfig

from bert import hub
from bert.tensor_names import HEAD_TENSORS, NO_WEIGHTS, TIED_COPIES, google_name, hugging_face_name
from ringbase.errors import InputError, shortened
from ringbase.files import is_file_name
from ringbase.json_files import read_object

ARCHITECTURES = {
    "span": "BertForQuestionAnswering",
    "classifier": "BertForSequenceClassification",
    "pretraining": "BertForPreTraining",
    "features": "BertModel",
}
PUBLISHED_PREFIX = "bert_model.ckpt"


class MissingTensors(InputError):
    """The source lacks the tensors `names`, which the model needs, and has others, `unused`, which it has no use
    for; the names are Google's."""

    def __init__(self, source: Path, names: Iterable[str], unused: Iterable[str]):
        self.names, self.unused = tuple(names), tuple(unused)
        super().__init__(f"{source}: tensors that the model needs are missing: {shortened(self.names)}")


@dataclass(frozen=True)
class LoadReport:
    """How many tensors were loaded, which kept their initial values, and which of the source's were unused."""

    source: Path
    loaded: int
    missing: list[str]
    unused: list[str]

    def __str__(self) -> str:
        text = f"{self.loaded} tensors from {self.source}"
        if self.missing:
            text += f"; new, with their initial values: {', '.join(self.missing)}"
        return text + (f"; not used by this model: {shortened(self.unused)}" if self.unused else "")


def find(name_or_path: str, revision: str | None = None) -> Path:
    """The folder or checkpoint prefix that `--model` or `--init_checkpoint` names; downloads a model of the hub,
    at the commit, tag or branch `revision`.

    Raises InputError when there is no file, folder or hub repository of this name, or it has no such revision.
    """
    path = Path(name_or_path).expanduser()
    if revision is not None and path.exists():
        raise InputError(
            f"--model_revision {revision}: {name_or_path} is a folder here; only models of the hub have revisions"
        )
    if (path / f"{PUBLISHED_PREFIX}.index").is_file() and not (path / "model.safetensors").is_file():
        return path / PUBLISHED_PREFIX  # a folder unzipped from Google's archive
    if path.exists() or _is_tf_checkpoint(path):
        return path
    if name_or_path.count("/") > 1 or name_or_path.startswith(("/", ".", "~")) or "ckpt" in name_or_path:
        raise InputError(f"{name_or_path}: no such folder or checkpoint (--model, --init_checkpoint)")
    return hub.download_model(name_or_path, revision)


def load(model, source: Path, *, new: Iterable[str] = ()) -> LoadReport:
    """Fills the model's variables from `source`.

    Args:
      model: a `bert.model.Bert`.
      new: tensors that may be missing and then keep their initial values: the head's own when training starts,
        none for prediction.
    Raises:
      MissingTensors: the source lacks a tensor that is not in `new`.
      InputError: it has a tensor that no head owns, or whose shape differs, or whose values are not finite.
    The model is then unchanged.
    """
    variables, tensors, new = model.named_tensors(), read(source), set(new)
    for copy, original in TIED_COPIES.items():
        value = tensors.pop(copy, None)
        if value is not None and original in tensors and not np.array_equal(value, tensors[original]):
            raise InputError(f"{source}: {copy} differs from {original}, which BERT uses in its place")
    missing = [name for name in variables if name not in tensors]
    unused = sorted(name for name in tensors if name not in variables and not NO_WEIGHTS.search(name))
    if absent := [name for name in missing if name not in new]:
        raise MissingTensors(source, absent, unused)
    if unknown := set(unused).difference(*HEAD_TENSORS.values()):
        raise InputError(
            f"{source}: has tensors that the model does not have: {shortened(sorted(unknown))}; "
            "does --bert_config_file (or config.json) belong to these weights?"
        )
    loaded = {}
    for name, variable in variables.items():
        if name in tensors and tensors[name].shape == tuple(variable.shape):
            loaded[name] = tensors[name]
        elif name in new and name.startswith("output_"):
            missing += [name] * (name in tensors)  # a classifier with another number of labels: this head is new
        elif name in tensors:
            raise InputError(
                f"{source}: {name} has shape {tensors[name].shape}, but the configuration needs "
                f"{tuple(variable.shape)}; do --bert_config_file and --vocab_file belong to this checkpoint?"
            )
    for name, tensor in loaded.items():
        if not np.isfinite(tensor.sum(dtype=np.float64)):  # as fast as reading; isfinite would need a copy
            raise InputError(f"{source}: {name} has values that are not finite: the weights are damaged")
    for name, tensor in loaded.items():
        variables[name].assign(tensor.astype(variables[name].dtype))
    return LoadReport(source, len(loaded), missing, unused)


def save(model, folder: Path, tokenizer=None) -> None:
    """Writes `model.safetensors`, `config.json` and the tokenizer's files; `transformers` loads the folder."""
    copied(model, tokenizer)(folder)


def copied(model, tokenizer=None) -> Callable[[Path], None]:
    """Copies the weights now and returns a function that writes the copy to a folder, as `save` does."""
    tensors = {}
    for name, variable in model.named_tensors().items():
        key, transpose = hugging_face_name(name, model.head_name)
        tensors[key] = variable.numpy().T if transpose else variable.numpy()
    extra: dict[str, object] = {"architectures": [ARCHITECTURES[model.head_name]]}
    if tokenizer is not None:
        extra["pad_token_id"] = tokenizer.pad_id
    config = BertConfig.from_dict(model.config.to_dict() | extra)

    def write(folder: Path) -> None:
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(config.to_json_string(), encoding="utf-8")
        values = {key: np.ascontiguousarray(value, np.float32) for key, value in tensors.items()}
        save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
        shutil.copymode(folder / "config.json", folder / "model.safetensors")  # else only the owner can read it
        if tokenizer is not None:
            tokenizer.save(folder)

    return write


def read(source: Path) -> dict[str, np.ndarray]:
    """Every weight of the source under Google's name, kernels as [in, out]."""
    if _is_tf_checkpoint(source):
        return _read_tf(source)
    from safetensors import SafetensorError, safe_open

    tensors = {}
    for file in _files(source):
        try:
            with safe_open(file, "numpy") as handle:
                for key in handle.keys():  # noqa: SIM118 (not a dict)
                    name, transpose = google_name(key)
                    value = handle.get_tensor(key)
                    tensors[name] = value.T if transpose else value
        except SafetensorError as error:
            raise InputError(f"{file}: damaged, or not a safetensors file: {error}") from error
    return tensors


def _files(source: Path) -> list[Path]:
    """The safetensors files of a folder, or the file itself. Raises InputError: some are missing."""
    index, whole = source / "model.safetensors.index.json", source / "model.safetensors"
    if source.is_file():
        return [source]
    if index.is_file():
        shards = read_object(index, f"{index} (--model)").get("weight_map")
        # Only names in the same folder: an index that was downloaded must not make us read other files.
        if not isinstance(shards, dict) or not shards or not all(map(is_file_name, shards.values())):
            raise InputError(f"{index}: weight_map must name safetensors files beside it (--model)")
        names = sorted(set(shards.values()))
        if missing := [name for name in names if not (source / name).is_file()]:
            raise InputError(f"{index}: lists {len(names)} files, missing: {shortened(missing)} (--model)")
        return [source / name for name in names]
    if whole.is_file():
        return [whole]
    pickle = "only a pickle (pytorch_model.bin), which can run code when read"
    content = pickle if any(source.glob("*.bin")) else "no model.safetensors, no TensorFlow checkpoint"
    raise InputError(
        f"{source}: {content}; save it with transformers' save_pretrained first (--model, --init_checkpoint)"
    )


def _is_tf_checkpoint(path: Path) -> bool:
    return Path(f"{path}.index").is_file() or (path / "checkpoint").is_file()


def _read_tf(source: Path) -> dict[str, np.ndarray]:
    import tensorflow as tf

    prefix = tf.train.latest_checkpoint(str(source)) if source.is_dir() else str(source)
    if prefix is None:
        raise InputError(f"{source}: its file `checkpoint` names no checkpoint that exists (--init_checkpoint)")
    try:
        reader = tf.train.load_checkpoint(prefix)
        names = [name for name in reader.get_variable_to_shape_map() if not NO_WEIGHTS.search(name)]
        return {name: reader.get_tensor(name) for name in names}
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:  # IndexError: a truncated data file
        raise InputError(f"{prefix}: unreadable TensorFlow checkpoint: {str(error).splitlines()[0]}") from error
