"""The files of a SentencePiece model: the `.model` file, and vocabularies that give its pieces other ids."""

import collections
import math
from pathlib import Path

import numpy as np

from ringbase.errors import InputError
from ringbase.files import read_text
from ringbase.json_files import read_json

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # sentencepiece_model.proto
UNIGRAM, BPE = 1, 2


def read_model(path: Path, flag: str = "--spm_model_file"):
    """The parsed `.model` file, a `sentencepiece_model_pb2.ModelProto`.

    Raises InputError: the file is missing or damaged, or `tokenizers` cannot represent this kind of model.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from sentencepiece import sentencepiece_model_pb2

    model, where = sentencepiece_model_pb2.ModelProto(), f"{flag} {path}"
    try:
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise InputError(f"{where}: {error.strerror or error}") from error
    except DecodeError as error:
        raise InputError(f"{where}: damaged, or not a SentencePiece model: {error}") from error
    spec = model.trainer_spec
    if not model.pieces or not model.IsInitialized():
        raise InputError(f"{where}: a SentencePiece model without pieces; is the file truncated?")
    if spec.model_type not in (UNIGRAM, BPE):
        raise InputError(f"{where}: model type {spec.model_type} is neither 1 (unigram) nor 2 (BPE)")
    if spec.treat_whitespace_as_suffix or not model.normalizer_spec.escape_whitespaces:
        raise InputError(
            f"{where}: a blank must become ▁ before a word: train it without treat_whitespace_as_suffix and with "
            "escape_whitespaces"
        )
    if problem := _problem_of_pieces(model) or problem_of_charsmap(model.normalizer_spec.precompiled_charsmap):
        raise InputError(f"{where}: damaged: {problem}")
    unused = sum(piece.type == UNUSED for piece in model.pieces)
    if unused:
        raise InputError(
            f"{where}: {unused} of {len(model.pieces)} pieces are marked unused: train the model again"
        )
    return model


def _problem_of_pieces(model) -> str:
    """What `tokenizers` could not work with among the pieces; "" if nothing."""
    try:
        counts = collections.Counter(piece.piece for piece in model.pieces)
    except UnicodeDecodeError as error:
        return f"a piece is not UTF-8 ({error.reason})"
    if "" in counts:
        return "an empty piece"
    repeated, count = counts.most_common(1)[0]
    if count > 1:
        return f"the piece {repeated!r:.40} is there {count} times"
    if not all(math.isfinite(piece.score) for piece in model.pieces):
        return "the score of a piece is not a finite number"
    return ""


def problem_of_charsmap(charsmap: bytes) -> str:
    """What is wrong with a normalizer's map of characters; "" if nothing.

    Its format is that of SentencePiece's `normalizer.cc`: the size of a trie in bytes (uint32), the trie (a Darts
    double array: `darts.h`), and texts that end with a zero byte. `tokenizers` follows the trie without looking
    whether its places exist, and panics at one that does not.
    """
    if not charsmap:
        return ""
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 4 or size % 4 or not 0 < size <= len(charsmap) - 4:
        return f"the map of characters has {len(charsmap)} bytes, too few for a trie of {size}"
    units, texts = np.frombuffer(charsmap, "<u4", size // 4, 4), np.frombuffer(charsmap, np.uint8, offset=4 + size)
    try:
        texts.tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the map of characters is not UTF-8 ({error.reason})"
    nodes = np.flatnonzero(units >> 31 == 0)  # the others are values
    offsets = (units[nodes] >> 10) << ((units[nodes] & (1 << 9)) >> 6)
    children = nodes ^ offsets.astype(np.int64)  # the children are at this place ^ a byte
    if (children | 0xFF).max(initial=0) >= len(units):
        return "the trie of the map of characters points outside of itself"
    values = (units[children[(units[nodes] >> 8) & 1 == 1]] & 0x7FFF_FFFF).astype(np.int64)
    if values.max(initial=0) >= max(len(texts), 1) or (texts[values] & 0xC0 == 0x80).any():
        return "the trie of the map of characters points outside of its texts"
    return ""


def read_ids(path: Path) -> list[str]:
    """The pieces of a vocabulary file in the order of their ids.

    A JSON file is a list, an object piece -> id, or has one of these under `idx_to_token` or `token_to_idx`, like
    KoBERT's (GluonNLP's format). A text file has one piece per line; text after a tab is ignored, as in
    SentencePiece's `.vocab` files.

    Raises InputError: the file is unreadable, lists a piece twice, or its ids are not 0, 1, 2, ….
    """
    where = f"--vocab_file {path}"
    if path.suffix == ".json":
        values = read_json(path, where)
        if isinstance(values, dict):
            values = values.get("idx_to_token") or values.get("token_to_idx") or values
    else:
        lines = read_text(path, where).removesuffix("\n").split("\n")
        values = [line.rstrip("\r").split("\t")[0] for line in lines]
    if isinstance(values, dict) and all(type(number) is int for number in values.values()):
        if sorted(values.values()) != list(range(len(values))):
            raise InputError(
                f"{where}: the ids of its {len(values)} pieces must be 0 to {len(values) - 1}, each once; got "
                f"{min(values.values())} to {max(values.values())}"
            )
        values = sorted(values, key=values.__getitem__)
    if not isinstance(values, list) or not values or not all(isinstance(piece, str) for piece in values):
        raise InputError(f"{where}: neither a list of pieces nor an object piece -> id")
    if len(set(values)) < len(values):
        repeated = collections.Counter(values).most_common(1)[0][0]
        raise InputError(f"{where}: {len(values)} lines, but {len(set(values))} pieces: {repeated!r} is repeated")
    return values
