"""Reads facts from the files of a tokenizer before it is built."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from ringbase.errors import InputError, one_line
from ringbase.files import read_text
from ringbase.json_files import SMALL_BYTES, kind_of, read_object

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_TOKEN = 1000  # characters


def stated_case(folder: Path | None) -> bool | None:
    """Whether a folder's tokenizer_config.json, else its tokenizer.json, asks for lower-casing; None: unstated.

    Raises InputError: one of them is not JSON, or says neither true nor false."""
    for name in ("tokenizer_config.json", "tokenizer.json"):
        if folder is None or not (folder / name).is_file():
            continue
        where = f"--model {folder / name}"
        values = read_object(folder / name, where)
        normalizer = values.get("normalizer")
        if not isinstance(normalizer, dict | None):
            raise InputError(f"{where}: normalizer must be an object or null, got {kind_of(normalizer)}")
        normalizer = normalizer or {}
        stated = values.get("do_lower_case", normalizer.get("lowercase"))
        if stated is None and "normalizers" in normalizer:  # SentencePiece
            stated = '"Lowercase"' in json.dumps(normalizer)
        if not isinstance(stated, bool | None):
            raise InputError(f"{where}: lower-casing must be true or false, got {kind_of(stated)}")
        if stated is not None:
            return stated
    return None


@contextlib.contextmanager
def rust_errors(where: str) -> Iterator[None]:
    """Turns errors of the libraries that read tokenizers into InputError.

    Those of the Rust library have no class of their own, and its panics are no `Exception`."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{where}: unreadable: {one_line(error)[:300]}") from error


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
    values = read_object(path, f"--model {path}")
    model = values.get("model")
    if not isinstance(model, dict):
        raise InputError(f"--model {path}: not a tokenizer file")
    kind = model.get("type", "WordPiece")  # absent in files of old versions
    if kind in ("Unigram", "BPE") and "Metaspace" in json.dumps(values.get("pre_tokenizer")):
        return False
    if kind != "WordPiece":
        raise InputError(f"--model {path}: a {str(kind)[:40]} tokenizer is neither WordPiece nor SentencePiece")
    return True


def check_vocabulary(path: Path) -> None:
    """Raises InputError: the file is missing, or is not a WordPiece vocabulary."""
    where = f"--vocab_file {path}"
    if path.suffix == ".json":
        raise InputError(
            f"{where}: not a WordPiece vocabulary; with the ids of a SentencePiece model give --spm_model_file too"
        )
    lines = read_text(path, where, SMALL_BYTES).splitlines()
    if len(lines) < len(SPECIAL_TOKENS):
        raise InputError(f"{where}: {len(lines)} lines, too few for a WordPiece vocabulary")
    longest = max(range(len(lines)), key=lambda number: len(lines[number]))
    if len(lines[longest]) > LONGEST_TOKEN:
        raise InputError(
            f"{where}: line {longest + 1} has {len(lines[longest]):,} characters, too many for a token: a "
            "WordPiece vocabulary has a token per line"
        )
