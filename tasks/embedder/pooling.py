"""What a folder of sentence-transformers says about vectors, in `modules.json` and
`1_Pooling/config.json`."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from bert.hub import MODULES, inner_folder
from ringbase.errors import InputError
from ringbase.files import read_json, read_object
from ringbase.settings import LONGEST_ROW, shown
from tasks.embedder.settings import Pooling, PromptName, VectorSettings

CONFIG = "1_Pooling/config.json"
LENGTHS, TOKENIZER = "sentence_bert_config.json", "tokenizer_config.json"
LENGTHS_OF_ALL = "sentence_*_config.json"  # sentence_roberta_config.json of older versions, too
PROMPTS = "config_sentence_transformers.json"
QUERY, DOCUMENT = "query", ("document", "passage", "corpus")  # names of prompts, the first first
# The first module, by the names of versions before 0.3 too.
TRANSFORMERS = ("Transformer", "BERT", "DistilBERT", "RoBERTa", "XLMRoBERTa", "CamemBERT")
MODULES_READ = ["Transformer", "Pooling", "Normalize"]
KEYS: Mapping[Pooling, str] = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
# switches of other modes, without which some readers refuse the file
OTHER_KEYS = "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens"
CLASSES = "sentence_transformers.models"


def said_by(folder: Path | None, num_positions: int, pooling: str | None = None) -> dict:
    """The settings of a folder of sentence-transformers, by flag; none of another folder. With
    `pooling` the folder's is not read. Raises InputError: it computes what bert-embedder does
    not."""
    outer = _with_modules(folder)
    if folder is None or outer is None:
        return {}
    file = outer / MODULES
    modules = read_json(file)
    try:
        types = [module["type"].rpartition(".")[2] for module in modules]
        paths = [outer / module["path"] for module in modules]
    except (AttributeError, KeyError, TypeError):
        raise InputError(f"{file}: damaged: no list of types and paths") from None
    if types[:1] and types[0] in TRANSFORMERS:
        types[0] = MODULES_READ[0]
    if types not in (MODULES_READ, MODULES_READ[:2]):
        raise InputError(
            f"{file}: the modules must be {', '.join(MODULES_READ[:2])} and perhaps"
            f" {MODULES_READ[2]}, got {', '.join(types)}"
        )
    return {
        "pooling": pooling or _pooling_in(paths[1] / "config.json"),
        "normalize": MODULES_READ[2] in types,
        "max_seq_length": min(_length_in(folder), num_positions),
        **prompts_said_by(folder),
    }


class Prompts(NamedTuple):
    """What stands before texts: before queries and before documents, and which of these two before
    texts of which nobody says what they are; `other`, if it is a third."""

    query: str = ""
    document: str = ""
    default: PromptName | None = None
    other: str = ""


def prompts_said_by(folder: Path | None) -> dict:
    """The prompts of a folder of sentence-transformers, by flag; none of another folder."""
    outer = _with_modules(folder)
    if folder is None or outer is None:
        return {}
    query, document, default, _ = _prompts_in(outer)
    said = {"query_prompt": query, "document_prompt": document, "prompt_name": default}
    return {name: value for name, value in said.items() if value}


def _prompts_in(outer: Path) -> Prompts:
    """By the rules of `encode_query`, `encode_document` and `encode` there: without a prompt of its
    name a text has the default."""
    file = outer / PROMPTS
    config = read_object(file) if file.is_file() else {}
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise InputError(f"{file}: prompts must be an object of texts, got {shown(prompts)}")
    name = config.get("default_prompt_name")
    if name is not None and name not in prompts:
        raise InputError(f"{file}: default_prompt_name {shown(name)} is none of its prompts")
    default: str = prompts[name] if name else ""
    query = prompts.get(QUERY, default)
    of_documents = [prompts[each] for each in DOCUMENT if each in prompts]
    document = [*of_documents, default][0]
    if not default:
        return Prompts(query, document)
    if default == query:
        return Prompts(query, document, "query")
    if default == document:
        return Prompts(query, document, "document")
    return Prompts(query, document, other=default)


def prompts_file_of(settings: VectorSettings) -> dict:
    """What sentence-transformers reads of prompts."""
    config: dict = {"similarity_fn_name": "cosine"}
    if settings.has_prompts:
        config["prompts"] = {
            QUERY: settings.query_prompt or "",
            DOCUMENT[0]: settings.document_prompt or "",
        }
        is_named = settings.prompt_name in config["prompts"]
        config["default_prompt_name"] = settings.prompt_name if is_named else None
    return config


def _with_modules(folder: Path | None) -> Path | None:
    """The folder of sentence-transformers that the model in a folder is of: that folder, or the one
    around it; None of another model."""
    if folder is None or (folder / MODULES).is_file():
        return folder
    around = folder.parent
    is_inner = (around / MODULES).is_file() and inner_folder(around) == folder
    return around if is_inner else None


def unheeded_in(folder: Path | None, lower_case: bool) -> list[str]:
    """What sentence-transformers would do with texts before this folder's model sees them, and
    bert-embedder does not: a line for each."""
    outer = _with_modules(folder)
    if folder is None or outer is None:
        return []
    lines = []
    prompts = _prompts_in(outer)
    if prompts.other:
        lines.append(
            f"{outer / PROMPTS}: sentence-transformers puts {prompts.other!r} before every text,"
            " which is neither the query's prompt nor the documents': give it as --query_prompt or"
            " --document_prompt"
        )
    file = outer / CONFIG
    leaves_out = file.is_file() and read_object(file).get("include_prompt") is False
    if leaves_out and any(prompts[:2]):
        lines.append(
            f"{file}: include_prompt is false, but here the tokens of a prompt count for the mean"
        )
    for file in folder.glob(LENGTHS_OF_ALL):
        if read_object(file).get("do_lower_case") and not lower_case:
            lines.append(
                f"{file} says do_lower_case, but the tokenizer keeps capitals: write the"
                " texts in lower case"
            )
    return lines


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
    for name, key in ((LENGTHS_OF_ALL, "max_seq_length"), (TOKENIZER, "model_max_length")):
        for file in folder.glob(name):
            length = read_object(file).get(key)
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
    }
