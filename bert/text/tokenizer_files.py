"""Reads the files of a tokenizer: vocabularies, SentencePiece models, and what a folder says about case."""

import collections
import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any

from ringbase.errors import InputError, one_line
from ringbase.files import read_text
from ringbase.json_files import SMALL_BYTES, kind_of, read_json, read_object

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LOWER_CASE_CHECKPOINTS = ("multilingual_l-12_h-768_a-12", "chinese_l-12_h-768_a-12")  # besides "uncased" ones
UNIGRAM, BPE = 1, 2  # types of models in sentencepiece_model.proto
UNUSED = 5  # a type of pieces


@contextlib.contextmanager
def library_errors(where: str) -> Iterator[None]:
    """Turns errors of the libraries that read tokenizers into InputError.

    They have no class in common, and panics of the Rust library are no `Exception`."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{where}: damaged or unusable: {one_line(error)[:300]}") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a vocabulary, which are the tokens in the order of their ids.

    Raises InputError: the file is unreadable, or a line is blank.
    """
    where = f"--vocab_file {path}"
    lines = read_text(path, where, SMALL_BYTES).removesuffix("\n").split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    if "" in lines:
        raise InputError(f"{where}: line {lines.index('') + 1} is blank; each line must hold the token of its id")
    return lines


def read_ids(path: Path) -> list[str]:
    """The pieces of a vocabulary file in the order of their ids: a text file, or JSON.

    JSON is a list, an object piece -> id, or has one of these under `idx_to_token` or `token_to_idx`, like
    KoBERT's (GluonNLP's format). In text, what follows a tab is ignored, as in SentencePiece's `.vocab` files.

    Raises InputError: unreadable, a piece is listed twice, ids are not 0, 1, 2, ….
    """
    where = f"--vocab_file {path}"
    is_json = path.suffix == ".json"
    values = read_json(path, where) if is_json else [line.split("\t")[0] for line in read_lines(path)]
    if isinstance(values, dict):
        values = values.get("idx_to_token") or values.get("token_to_idx") or values
    if isinstance(values, dict) and all(type(number) is int for number in values.values()):
        if sorted(values.values()) != list(range(len(values))):
            raise InputError(f"{where}: the ids of its {len(values)} pieces must be 0 to {len(values) - 1}")
        values = sorted(values, key=values.__getitem__)
    if not isinstance(values, list) or not values or not all(isinstance(piece, str) for piece in values):
        raise InputError(f"{where}: neither a list of pieces nor an object piece -> id")
    piece, count = collections.Counter(values).most_common(1)[0]
    if count > 1:
        raise InputError(f"{where}: the piece {piece!r:.40} is listed {count} times")
    return values


def read_model(path: Path) -> Any:
    """The parsed `.model` file, a `sentencepiece_model_pb2.ModelProto`.

    Raises InputError: the file is missing or damaged, or `tokenizers` cannot represent this kind of model.
    """
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    where = f"--spm_model_file {path}"
    with library_errors(where):
        content = path.read_bytes()
        model = sentencepiece_model_pb2.ModelProto.FromString(content)
        if not model.pieces:
            raise InputError(f"{where}: a SentencePiece model without pieces; is the file truncated?")
        SentencePieceProcessor(model_proto=content)  # checks the pieces
    spec = model.trainer_spec
    if spec.model_type not in (UNIGRAM, BPE):
        raise InputError(f"{where}: model type {spec.model_type} is neither 1 (unigram) nor 2 (BPE)")
    if spec.treat_whitespace_as_suffix or not model.normalizer_spec.escape_whitespaces:
        raise InputError(f"{where}: train it without treat_whitespace_as_suffix and with escape_whitespaces")
    if unused := sum(piece.type == UNUSED for piece in model.pieces):
        raise InputError(f"{where}: {unused} of {len(model.pieces)} pieces are marked unused: train it again")
    return model


def models_of(folder: Path) -> tuple[Path | None, Path | None]:
    """The SentencePiece model and the vocabulary file of a folder without tokenizer.json."""
    models, vocabulary = sorted(folder.glob("*.model")), folder / "vocab.txt"
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise InputError(f"{folder} has {len(models)} SentencePiece models ({names}): give --spm_model_file")
    return (models[0] if models else None), (vocabulary if vocabulary.is_file() or not models else None)


def stated_case(folder: Path) -> bool | None:
    """Whether a folder's tokenizer_config.json, else its tokenizer.json, asks for lower-casing; None: unstated.

    Raises InputError: one of them is not JSON, or says neither true nor false."""
    for path in (folder / "tokenizer_config.json", folder / "tokenizer.json"):
        values = read_object(path, f"--model {path}") if path.is_file() else {}
        normalizer = values.get("normalizer") or {}
        stated = values.get("do_lower_case")
        if stated is None and isinstance(normalizer, dict):
            is_sequence = "normalizers" in normalizer  # SentencePiece's
            stated = '"Lowercase"' in json.dumps(normalizer) if is_sequence else normalizer.get("lowercase")
        if not isinstance(stated, bool | None):
            raise InputError(f"--model {path}: lower-casing must be true or false, got {kind_of(stated)}")
        if stated is not None:
            return stated
    return None


def check_case(do_lower_case: bool, checkpoint_name: str) -> None:
    """Google's `validate_case_matches_checkpoint`: the folder names of published checkpoints tell their case.

    Raises InputError if `do_lower_case` contradicts the name.
    """
    path = PurePath(checkpoint_name)
    name = (path.parent if "ckpt" in path.name else path).name.lower()
    words = re.split("[_-]", name)
    is_uncased = "uncased" in words or name in LOWER_CASE_CHECKPOINTS
    if is_uncased != do_lower_case and (is_uncased or "cased" in words):
        raise InputError(
            f"--do_lower_case={do_lower_case} does not match checkpoint {checkpoint_name}: use "
            f"--do_lower_case={is_uncased}"
        )


def check_special(vocabulary: Iterable[str], source: str) -> None:
    """Raises InputError: a WordPiece vocabulary lacks special tokens."""
    present = set(vocabulary)
    if absent := [token for token in SPECIAL_TOKENS if token not in present]:
        raise InputError(f"{source}: the vocabulary has no {', '.join(absent)} (--vocab_file)")
