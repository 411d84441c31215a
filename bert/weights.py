"""Reads and writes BERT weights in the usual formats, under Google's tensor names.

Read: a Hugging Face folder or hub name (`model.safetensors`, whole or in shards), a Google TensorFlow 1
checkpoint (`bert_model.ckpt`, `model.ckpt-1000`, or a folder with a `checkpoint` file), our own checkpoints
(which are Hugging Face folders). Written: the Hugging Face layout, which `transformers` loads.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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

    def __init__(self, source: str, names: Iterable[str], unused: Iterable[str]):
        self.names, self.unused = tuple(names), tuple(unused)
        super().__init__(f"{source}: tensors that the model needs are missing: {shortened(self.names)}")


@dataclass
class LoadReport:
    """How many tensors were loaded, which kept their initial values, and which of the source's were unused."""

    source: str
    loaded: int = 0
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.loaded} tensors from {self.source}"
        if self.missing:
            text += f"; new, with their initial values: {', '.join(self.missing)}"
        if self.unused:
            text += f"; not used by this model: {shortened(self.unused)}"
        return text


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


def read(source: Path) -> dict[str, np.ndarray]:
    """Every weight of the source under Google's name, kernels as [in, out]."""
    return _read_tf(source) if _is_tf_checkpoint(source) else _read_safetensors(source)


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
    variables, tensors = model.named_tensors(), read(source)
    _drop_tied_copies(tensors)
    report = LoadReport(str(source))
    report.missing = [name for name in variables if name not in tensors]
    report.unused = sorted(name for name in tensors if name not in variables and not NO_WEIGHTS.search(name))
    _check_names(report, set(new))
    for name, variable in variables.items():
        if name in tensors and tensors[name].shape != tuple(variable.shape):
            if name in set(new) and name in HEAD_TENSORS[model.head_name] and name.startswith("output_"):
                report.missing.append(name)  # a classifier with a different number of labels: this head is new
                continue
            raise InputError(
                f"{source}: {name} has shape {tensors[name].shape}, but the configuration needs "
                f"{tuple(variable.shape)}; do --bert_config_file and --vocab_file belong to this checkpoint?"
            )
    loaded = {name: tensors[name] for name in variables if name not in report.missing}
    for name, tensor in loaded.items():
        if not np.isfinite(tensor.sum(dtype=np.float64)):  # as fast as reading; isfinite would need a copy
            raise InputError(f"{source}: {name} has values that are not finite: the weights are damaged")
    for name, tensor in loaded.items():
        variables[name].assign(tensor.astype(variables[name].dtype))
    report.loaded = len(loaded)
    return report


def _check_names(report: LoadReport, new: set[str]) -> None:
    """Raises InputError for tensors that must not be missing, and for those that no head of BERT has."""
    if absent := [name for name in report.missing if name not in new]:
        raise MissingTensors(report.source, absent, report.unused)
    head_tensors = {name for names in HEAD_TENSORS.values() for name in names}
    if unknown := [name for name in report.unused if name not in head_tensors]:
        raise InputError(
            f"{report.source}: has tensors that the model does not have: {shortened(unknown)}; "
            "does --bert_config_file (or config.json) belong to these weights?"
        )


def save(model, folder: Path, tokenizer=None) -> None:
    """Writes `model.safetensors`, `config.json` and the tokenizer's files; `transformers` loads the folder."""
    copied(model, tokenizer)(folder)


def copied(model, tokenizer=None) -> Callable[[Path], None]:
    """Copies the weights now and returns a function that writes the copy to a folder, as `save` does."""
    values = {name: variable.numpy() for name, variable in model.named_tensors().items()}
    extra: dict[str, object] = {"architectures": [ARCHITECTURES[model.head_name]]}
    if tokenizer is not None:
        extra["pad_token_id"] = tokenizer.pad_id
    config = BertConfig.from_dict(model.config.to_dict() | extra)

    def write(folder: Path) -> None:
        from safetensors.numpy import save_file

        tensors = {}
        for name, value in values.items():
            key, transpose = hugging_face_name(name, model.head_name)
            value = value.astype(np.float32, copy=False)
            tensors[key] = np.ascontiguousarray(value.T if transpose else value)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(config.to_json_string(), encoding="utf-8")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        shutil.copymode(folder / "config.json", folder / "model.safetensors")  # else only the owner can read it
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
        names = [name for name in reader.get_variable_to_shape_map() if not NO_WEIGHTS.search(name)]
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
        content = (
            "only a pickle (pytorch_model.bin), which can run code when read"
            if any(source.glob("*.bin"))
            else "no model.safetensors, no TensorFlow checkpoint"
        )
        raise InputError(
            f"{source}: {content}; save it with transformers' save_pretrained first (--model, --init_checkpoint)"
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
            raise InputError(f"{file}: damaged, or not a safetensors file: {error}") from error
    return tensors


def _shards(index: Path) -> list[Path]:
    """The files that an index lists. Raises InputError: one is missing, or there are none."""
    shards = read_object(index, f"{index} (--model)").get("weight_map")
    # Only names in the same folder: an index that was downloaded must not make us read other files.
    if not isinstance(shards, dict) or not all(is_file_name(name) for name in shards.values()):
        raise InputError(
            f"{index}: not an index of safetensors files: weight_map must name files beside it (--model)"
        )
    names = sorted(set(shards.values()))
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing or not names:
        raise InputError(f"{index}: lists {len(names)} files, missing: {shortened(missing) or 'none'} (--model)")
    return [index.parent / name for name in names]


def _drop_tied_copies(tensors: dict[str, np.ndarray]) -> None:
    """Drops Hugging Face's copies of other tensors. Raises InputError where they differ."""
    for copy, original in TIED_COPIES.items():
        value = tensors.pop(copy, None)
        if value is not None and original in tensors and not np.array_equal(value, tensors[original]):
            raise InputError(f"{copy} differs from {original}, which BERT uses in its place: not a published BERT")
