"""Reads facts from the files of a tokenizer before it is built."""

import json
from pathlib import Path

from ringbert.errors import InputError
from ringbert.files import read_json

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def stated_case(folder: Path | None) -> bool | None:
    """Whether a folder's tokenizer_config.json, else its tokenizer.json, asks for lower-casing; None: unstated."""
    for name in ("tokenizer_config.json", "tokenizer.json"):
        if folder is None or not (folder / name).is_file():
            continue
        values = read_json(folder / name, f"--model {folder / name}")
        normalizer = values.get("normalizer") or {}
        stated = values.get("do_lower_case", normalizer.get("lowercase"))
        if stated is None and "normalizers" in normalizer:  # SentencePiece
            stated = '"Lowercase"' in json.dumps(normalizer)
        if stated is not None:
            return bool(stated)
    return None


def models_of(folder: Path) -> tuple[Path | None, Path | None]:
    """The SentencePiece model and the vocabulary file of a folder without tokenizer.json."""
    models, vocabulary = sorted(folder.glob("*.model")), folder / "vocab.txt"
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise InputError(f"{folder} has {len(models)} SentencePiece models ({names}): give --spm_model_file")
    if models and not vocabulary.is_file():
        return models[0], None
    return (models[0] if models else None), vocabulary


def is_wordpiece(path: Path) -> bool:
    """True if a tokenizer.json holds WordPiece, False for SentencePiece. Raises InputError if it holds neither."""
    values = read_json(path, f"--model {path}")
    try:
        kind = values["model"].get("type", "WordPiece")  # absent in files of old versions
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"--model {path}: not a tokenizer file") from error
    if kind in ("Unigram", "BPE") and "Metaspace" in json.dumps(values.get("pre_tokenizer")):
        return False
    if kind != "WordPiece":
        raise InputError(f"--model {path}: a {kind} tokenizer is neither WordPiece nor SentencePiece")
    return True


def check_vocabulary(path: Path) -> None:
    """Raises InputError: the file is missing, or is not a WordPiece vocabulary."""
    if path.suffix == ".json":
        raise InputError(
            f"--vocab_file {path}: not a WordPiece vocabulary; with the ids of a SentencePiece model give "
            "--spm_model_file too"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError(f"--vocab_file {path}: no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"--vocab_file {path}: not UTF-8 text: {error}") from error
    if len(lines) < len(SPECIAL_TOKENS):
        raise InputError(f"--vocab_file {path}: {len(lines)} lines, too few for a WordPiece vocabulary")
