"""What a folder of sentence-transformers says about vectors, in `modules.json` and
`1_Pooling/config.json`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringbase.errors import InputError
from ringbase.files import read_json, read_object
from tasks.embedder.settings import Pooling

MODULES, CONFIG = "modules.json", "1_Pooling/config.json"
LENGTHS = "sentence_bert_config.json"
KEYS: Mapping[Pooling, str] = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
CLASSES = "sentence_transformers.models"


def pooling_of(folder: Path | None) -> Pooling | None:
    """The pooling of a model's folder; None if it does not say. Raises InputError: it is another
    than mean or cls."""
    if folder is None or not (folder / MODULES).is_file():
        return None
    config = read_object(folder / CONFIG)
    modes = [name for name, is_on in config.items() if name.startswith("pooling_mode_") and is_on]
    for pooling, key in KEYS.items():
        if modes == [key]:
            return pooling
    raise InputError(f"{folder / CONFIG}: {', '.join(modes)}: give --pooling mean or cls")


def said_by(folder: Path | None) -> dict[str, Any]:
    """The settings of a folder of sentence-transformers, by flag; none of another folder."""
    pooling = pooling_of(folder)
    if folder is None or pooling is None:
        return {}
    types = [str(module.get("type", "")) for module in read_json(folder / MODULES)]
    said: dict[str, Any] = {
        "pooling": pooling,
        "normalize": any(each.endswith("Normalize") for each in types),
    }
    if (folder / LENGTHS).is_file():
        said["max_seq_length"] = read_object(folder / LENGTHS).get("max_seq_length")
    return said


def files_of(
    pooling: Pooling, normalize: bool, width: int, max_seq_length: int
) -> dict[str, object]:
    """What sentence-transformers reads beside a model, by file name."""
    names = ["Transformer", "Pooling", *["Normalize"] * normalize]
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{name}" if number else "",
            "type": f"{CLASSES}.{name}",
        }
        for number, name in enumerate(names)
    ]
    modes = {key: mode == pooling for mode, key in KEYS.items()}
    return {
        MODULES: modules,
        CONFIG: {"word_embedding_dimension": width, **modes},
        LENGTHS: {"max_seq_length": max_seq_length, "do_lower_case": False},
        "config_sentence_transformers.json": {"similarity_fn_name": "cosine"},
    }
