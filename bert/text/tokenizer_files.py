"""Reads the files of a tokenizer: vocabularies, and what a folder says about case."""

import collections
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePath

from ringbase.errors import InputError, one_line
from ringbase.files import read_text
from ringbase.json_files import SMALL_BYTES, kind_of, read_json, read_object

LOWER_CASE_CHECKPOINTS = ("multilingual_l-12_h-768_a-12", "chinese_l-12_h-768_a-12")  # besides "uncased" ones


def read_lines(path: Path) -> list[str]:
    """The lines of a vocabulary, the tokens in the order of their ids. Raises InputError: one is blank."""
    where = f"--vocab_file {path}"
    lines = read_text(path, where, SMALL_BYTES).removesuffix("\n").split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    if "" in lines:
        raise InputError(f"{where}: line {lines.index('') + 1} is blank; each line must hold the token of its id")
    return lines


def read_ids(path: Path) -> list[str]:
    """The pieces in the order of their ids: the lines of a text file up to a tab, as in SentencePiece's `.vocab`
    files, or a list in JSON, perhaps under `idx_to_token` like KoBERT's (GluonNLP's format).

    Raises InputError: unreadable, or a piece is listed twice.
    """
    where = f"--vocab_file {path}"
    is_json = path.suffix == ".json"
    values = read_json(path, where) if is_json else [line.split("\t")[0] for line in read_lines(path)]
    if isinstance(values, dict):
        values = values.get("idx_to_token")
    if not isinstance(values, list) or not values or not all(isinstance(piece, str) for piece in values):
        raise InputError(f"{where}: neither a list of pieces nor an object with one under idx_to_token")
    piece, count = collections.Counter(values).most_common(1)[0]
    if count > 1:
        raise InputError(f"{where}: the piece {piece!r:.40} is listed {count} times")
    return values


def stated_case(folder: Path) -> bool | None:
    """Whether a folder's tokenizer_config.json asks for lower-casing; None: unstated. Raises InputError."""
    path = folder / "tokenizer_config.json"
    stated = read_object(path, f"--model {path}").get("do_lower_case") if path.is_file() else None
    if not isinstance(stated, bool | None):
        raise InputError(f"--model {path}: do_lower_case must be true or false, got {kind_of(stated)}")
    return stated


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
