"""The safetensors files of a model's folder, and new entries of its vocabulary. Without
TensorFlow."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ringbase.errors import InputError
from ringbase.files import read_object, write_json

FILE = "model.safetensors"
TYPES = ("F64", "F32", "F16", "BF16")  # of safetensors
# How the keys of tensors end that have a row for each entry of the vocabulary, also those of heads
# that we do not have.
OF_VOCABULARY = (
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "decoder.weight",
    "decoder.bias",
    "predictions.bias",
    "lm_head.weight",
    "lm_head.bias",
    "vocab_projector.weight",
    "vocab_projector.bias",
)


def check_types(file: Path) -> None:
    """Raises InputError for numbers of a kind that the model cannot take over as they are."""
    with safe_open(file, "numpy") as tensors:
        for key in tensors.keys():  # noqa: SIM118
            kind = tensors.get_slice(key).get_dtype()
            # buffers with the places of tokens are no weights
            if kind not in TYPES and not key.endswith("_ids"):
                raise InputError(
                    f"{file}: {key} is stored as {kind}, which needs a scale of its own: save the"
                    f" model in one of {', '.join(TYPES)} (--model)"
                )


def files_of(source: Path) -> list[Path]:
    """The safetensors files of a folder, or the file itself. Raises InputError: some are
    missing."""
    if source.is_file():
        return [source]
    index = source / "model.safetensors.index.json"
    if index.is_file():
        shards = read_object(index, f"{index} (--model)").get("weight_map")
        # Only files in the same folder: an index that was downloaded must not make us read others.
        present = [path.name for path in source.iterdir() if path.is_file()]
        if isinstance(shards, dict) and shards and all(file in present for file in shards.values()):
            return [source / name for name in sorted(set(shards.values()))]
        raise InputError(
            f"{index}: weight_map must name files that are in the same folder (--model)"
        )
    whole = source / "model.safetensors"
    if whole.is_file():
        return [whole]
    content = "no model.safetensors, no TensorFlow checkpoint"
    if any(source.glob("*.bin")):
        content = "only a pickle (pytorch_model.bin), which can run code when read"
    raise InputError(
        f"{source}: {content}; save it with transformers' save_pretrained first (--model,"
        " --init_checkpoint)"
    )


def extend(source: Path, folder: Path, first: int, pieces: Sequence[np.ndarray]) -> None:
    """Writes the model in a folder to another one, with entries `first`, `first` + 1, … of the
    vocabulary that begin as the mean of those of their `pieces` (ids, each int [n]): embeddings,
    and the biases of heads for masked words. All else stays as it is.

    A table that has unused rows behind its vocabulary, as ModernBERT's, becomes longer only when
    they do not suffice. Raises InputError: the folder has no such model.
    """
    path = source / "config.json"
    config = read_object(path, f"{path} (--extend)")
    size: int = config["vocab_size"]  # read_config has checked it
    needed = first + len(pieces)
    written = {}
    num_extended = 0
    for file in files_of(source):
        check_types(file)
        for key, value in load_file(file).items():
            if key.endswith(OF_VOCABULARY) and len(value) == size:
                exact = value.astype(np.float64)
                means = [exact[ids].mean(axis=0) for ids in pieces]
                rows = np.zeros((max(needed, size), *value.shape[1:]), value.dtype)
                rows[:size] = value
                rows[first:needed] = np.array(means)
                value = rows
                num_extended += 1
            written[key] = value
    if not num_extended:
        raise InputError(
            f"{source}: no tensor has a row for each of the {size} entries that config.json states"
            " (--extend)"
        )
    write_json(folder / "config.json", {**config, "vocab_size": max(needed, size)}, indent=2)
    save_file(written, folder / FILE, {"format": "pt"})
