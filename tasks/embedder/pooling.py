"""What a folder of sentence-transformers says about vectors, in `modules.json` and
`1_Pooling/config.json`."""

from collections.abc import Mapping
from pathlib import Path

from ringbase.errors import InputError
from ringbase.files import read_json, read_object
from ringbase.settings import LONGEST_ROW
from tasks.embedder.settings import Pooling

MODULES, CONFIG = "modules.json", "1_Pooling/config.json"
LENGTHS, TOKENIZER = "sentence_bert_config.json", "tokenizer_config.json"
MODULES_READ = ["Transformer", "Pooling", "Normalize"]
KEYS: Mapping[Pooling, str] = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
# switches of other modes, without which some readers refuse the file
OTHER_KEYS = "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens"
CLASSES = "sentence_transformers.models"


def said_by(folder: Path | None, num_positions: int, pooling: str | None = None) -> dict:
    """The settings of a folder of sentence-transformers, by flag; none of another folder. With
    `pooling` the folder's is not read. Raises InputError: it computes what bert-embedder does
    not."""
    if folder is None:
        return {}
    file = folder / MODULES
    if not file.is_file():
        return {}
    modules = read_json(file)
    try:
        types = [module["type"].rpartition(".")[2] for module in modules]
        paths = [folder / module["path"] for module in modules]
    except (AttributeError, KeyError, TypeError):
        raise InputError(f"{file}: damaged: no list of types and paths") from None
    if types not in (MODULES_READ, MODULES_READ[:2]):
        raise InputError(
            f"{file}: the modules must be {', '.join(MODULES_READ[:2])} and perhaps"
            f" {MODULES_READ[2]}, got {', '.join(types)}"
        )
    return {
        "pooling": pooling or _pooling_in(paths[1] / "config.json"),
        "normalize": MODULES_READ[2] in types,
        "max_seq_length": min(_length_in(folder), num_positions),
    }


def _pooling_in(path: Path) -> Pooling:
    """Newer versions write `pooling_mode`, older ones a switch for each mode."""
    config = read_object(path)
    switches = [name for name in config if name.startswith("pooling_mode_") and config[name]]
    mode = config.get("pooling_mode", switches)
    for pooling, key in KEYS.items():
        if mode in (pooling, [key]):
            return pooling
    raise InputError(f"{path}: pooling must be mean or cls, got {mode}: give --pooling")


def _length_in(folder: Path) -> int:
    """The most tokens of a text. Newer versions write it as the tokenizer's."""
    for name, key in ((LENGTHS, "max_seq_length"), (TOKENIZER, "model_max_length")):
        file = folder / name
        length = read_object(file).get(key) if file.is_file() else None
        if isinstance(length, int):
            return length
    return LONGEST_ROW


def files_of(pooling: Pooling, normalize: bool, width: int, max_seq_length: int) -> dict:
    """What sentence-transformers reads beside a model, by file name."""
    modules = []
    for number, name in enumerate(MODULES_READ if normalize else MODULES_READ[:2]):
        path = f"{number}_{name}" if number else ""
        kind = f"{CLASSES}.{name}"
        modules.append({"idx": number, "name": str(number), "path": path, "type": kind})
    config: dict = {"word_embedding_dimension": width}
    for key in (*KEYS.values(), *OTHER_KEYS):
        config[key] = key == KEYS[pooling]
    return {
        MODULES: modules,
        CONFIG: config,
        LENGTHS: {"max_seq_length": max_seq_length, "do_lower_case": False},
        "config_sentence_transformers.json": {"similarity_fn_name": "cosine"},
    }
