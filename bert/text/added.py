"""Tokens that users add to a vocabulary, such as [E1] or <URL>: which files name them, and how a
text is read with them.

As in `transformers`, each is one token wherever a text has it. The model's own markers, such as
[SEP], are not: written in a text they are text.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, models

from ringbase.errors import InputError
from ringbase.files import read_object
from ringbase.settings import shown

CONFIG, IDS, NAMES = "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"
SPECIAL_KEYS = ("additional_special_tokens", "extra_special_tokens")
NOT_IN_TEXTS = "\0"  # a character that no normalization keeps
FLAGS = ("lstrip", "rstrip", "normalized", "single_word")


class Added(NamedTuple):
    """A token that a file names, and its id if the file has it."""

    token: AddedToken
    number: int | None


def stated_in(folder: Path) -> list[Added]:
    """The tokens that the files beside a vocabulary name, in the order of their ids. Raises
    InputError: a file is damaged."""
    found = dict[str, Added]()
    config = _content(folder / CONFIG)
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, Mapping):
        raise _wrong(folder / CONFIG, "added_tokens_decoder must be an object", decoder)
    for number, value in decoder.items():
        if not str(number).isdecimal():
            raise _wrong(folder / CONFIG, "the keys of added_tokens_decoder must be ids", number)
        token = _token(value, folder / CONFIG)
        found[token.content] = Added(token, int(number))
    special = [*_special_in(folder / CONFIG, config)]
    special += _special_in(folder / NAMES, _content(folder / NAMES))
    are_special = {token.content for token in special}
    for content, number in _content(folder / IDS).items():
        if type(number) is not int:
            raise _wrong(folder / IDS, f"the id of {content!r:.40} must be an integer", number)
        if content not in found:
            is_special = content in are_special
            token = AddedToken(content, special=is_special, normalized=not is_special)
            found[content] = Added(token, number)
    ordered = sorted(found.values(), key=lambda added: added.number or 0)
    for token in special:
        if token.content not in found:
            found[token.content] = Added(token, None)
            ordered.append(found[token.content])
    return ordered


def _content(path: Path) -> dict[str, Any]:
    return read_object(path, f"--model {path}") if path.is_file() else {}


def _special_in(path: Path, content: Mapping[str, Any]) -> Iterable[AddedToken]:
    """The user's special tokens of a file, which lists them or gives each a name."""
    for key in SPECIAL_KEYS:
        values = content.get(key) or []
        if isinstance(values, Mapping):
            values = [*values.values()]
        if not isinstance(values, list):
            raise _wrong(path, f"{key} must be a list of tokens", values)
        for value in values:
            token = _token(value, path)
            token.special = True
            yield token


def _token(value: Any, path: Path) -> AddedToken:
    """A token, written as text or as an object with its flags."""
    is_object = isinstance(value, Mapping)
    content = value.get("content") if is_object else value
    if not isinstance(content, str) or not content:
        raise _wrong(path, "a token must be text, or an object with `content`", value)
    flags = {"special": False, "normalized": False}
    if is_object:
        flags |= {name: bool(value[name]) for name in (*FLAGS, "special") if name in value}
    return AddedToken(content, **flags)


def _wrong(path: Path, needed: str, value: object) -> InputError:
    return InputError(f"--model {path}: {needed}, got {shown(value)}")


def add(backend: Tokenizer, stated: Sequence[Added], source: str) -> None:
    """Adds the tokens that the tokenizer does not have. Those that the vocabulary lacks follow it.
    Raises InputError: a file gives one of these another id."""
    if not stated:
        return
    vocabulary = backend.get_vocab()
    next_id = 1 + max(vocabulary.values())
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for token, number in stated:
        name = token.content
        if name not in known:
            backend.add_tokens([token])
        if name in vocabulary:
            continue
        given = backend.token_to_id(name)
        for found in (given, number):
            if found not in (next_id, None):
                raise InputError(
                    f"--model {source}: the id of the added token {name!r:.40} must be {next_id},"
                    f" the next one of the vocabulary, got {found}"
                )
        vocabulary[name] = next_id
        next_id += 1


def own(backend: Tokenizer, markers: Collection[str]) -> list[AddedToken]:
    """The added tokens that are not the model's markers, in the order of their ids."""
    tokens = backend.get_added_tokens_decoder()
    return [token for _, token in sorted(tokens.items()) if token.content not in markers]


def reader_of(backend: Tokenizer, markers: Sequence[str], unknown: str) -> Tokenizer:
    """The tokenizer that reads texts, in which `markers` are text. It has the same ids.

    `encode_special_tokens` makes all special tokens text, so that the others must not be special
    there. A unigram model may hold the markers as pieces too, which then get a name that no text
    has.
    """
    backend.encode_special_tokens = True
    has_special = any(token.special for token in own(backend, markers))
    pieces = [name for name in markers if name != unknown and _is_read(backend, name)]
    if not (has_special or pieces):
        return backend
    content = json.loads(backend.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] in markers
    if pieces:
        content["added_tokens"] = [
            token for token in content["added_tokens"] if token["content"] not in pieces
        ]
        for piece in content["model"]["vocab"]:
            if piece[0] in pieces:
                piece[0] = NOT_IN_TEXTS + piece[0]
    reader = Tokenizer.from_str(json.dumps(content))
    reader.encode_special_tokens = True
    return reader


def _is_read(backend: Tokenizer, marker: str) -> bool:
    """Whether the marker, written in a text, gives its id."""
    found = backend.encode(marker, add_special_tokens=False)
    return isinstance(backend.model, models.Unigram) and backend.token_to_id(marker) in found.ids
