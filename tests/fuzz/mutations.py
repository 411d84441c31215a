"""Damages files: bytes, words and lines of texts, values of JSON. All choices come from one `random.Random`."""

import copy
import gzip
import json
import random
from collections.abc import Callable
from typing import Any

# What parsers stumble over, as bytes to insert anywhere.
BYTES = (
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\t",
    b'"',
    b"\\",
    b"\\ud800",
    b"\\u0000",
    b"[" * 50,
    b"{" * 200,
    b"[" * 2000,
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 30,
    b"9" * 5000,
    b"-0",
    b"''",
    b",,",
    b"}",
    b"]",
    "\u2028".encode(),
    "\U0001f600".encode(),
    "가".encode(),
    b"\x1f\x8b\x08",
    b"A" * 5000,
    b" " * 100,
    b"\x85",
    "\u00a0".encode(),
)
# Values to put in the place of another one in JSON.
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3.5,
    1e308,
    -1e308,
    1e-320,
    float("nan"),
    float("inf"),
    2**31,
    2**63,
    10**30,
    10**400,
    -(2**63),
    "",
    " ",
    "0",
    "64",
    "true",
    "a",
    "\ud800",
    "\x00",
    "../../etc/passwd",
    "/dev/zero",
    "[PAD]",
    "[SEP]",
    "x" * 3000,
    [],
    {},
    [0],
    ["a"],
    [None],
    {"a": 1},
    {"0": "a"},
    [[]],
    [{}],
    {"": ""},
)
WORDS = (
    "",
    "0",
    "-1",
    "1.5",
    "nan",
    "inf",
    "1e308",
    "1e999",
    "9" * 25,
    "true",
    "null",
    "\x00",
    "é",
    "가나다",
    "[PAD]",
    "[CLS]",
    "\ufffd",
    "\u200b",
    "x" * 300,
    '"',
    "$x_$",
    "\r",
    "9" * 5000,
    "-9223372036854775809",
    "'",
    "//",
    "..",
    "1_000",
    "１",
)


def damaged(data: bytes, kind: str, chance: random.Random) -> bytes:
    """One to four random changes of a file; `kind` is "bytes", "text", "json" or "jsonl", plain or with ".gz"."""
    is_packed = kind.endswith(".gz") and chance.random() < 0.7
    if is_packed:
        data = gzip.decompress(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        data = chance.choice(CHANGES[kind.removesuffix(".gz")])(data, chance)
    return gzip.compress(data, 1) if is_packed else data


# -- bytes --------------------------------------------------------------------------------------------------------


def place(data: bytes, chance: random.Random) -> int:
    return chance.randrange(len(data) + 1)


def span(data: bytes, chance: random.Random) -> tuple[int, int]:
    """The start and end of a part, more often a short one."""
    start = place(data, chance)
    length = int(len(data) ** chance.random()) if data else 0
    return start, min(len(data), start + length)


def flip(data: bytes, chance: random.Random) -> bytes:
    if not data:
        return b"\x01"
    changed = bytearray(data)
    changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def overwrite(data: bytes, chance: random.Random) -> bytes:
    start, stop = span(data, chance)
    return data[:start] + chance.randbytes(min(stop - start, 64)) + data[stop:]


def truncate(data: bytes, chance: random.Random) -> bytes:
    return data[: place(data, chance)]


def cut_start(data: bytes, chance: random.Random) -> bytes:
    return data[place(data, chance) :]


def delete(data: bytes, chance: random.Random) -> bytes:
    start, stop = span(data, chance)
    return data[:start] + data[stop:]


def repeat(data: bytes, chance: random.Random) -> bytes:
    start, stop = span(data, chance)
    return data[:stop] + data[start:stop] * chance.choice((1, 1, 2, 20)) + data[stop:]


def move(data: bytes, chance: random.Random) -> bytes:
    start, stop = span(data, chance)
    rest = data[:start] + data[stop:]
    to = place(rest, chance)
    return rest[:to] + data[start:stop] + rest[to:]


def insert(data: bytes, chance: random.Random) -> bytes:
    at = place(data, chance)
    return data[:at] + chance.choice(BYTES) + data[at:]


def extreme(data: bytes, chance: random.Random) -> bytes:
    """A 32- or 64-bit integer of a binary file becomes an extreme one."""
    size = chance.choice((1, 2, 4, 8))
    at = chance.randrange(max(1, len(data) - size))
    value = chance.choice((0, 1, (1 << 8 * size) - 1, 1 << 8 * size - 1, (1 << 8 * size - 1) - 1))
    return data[:at] + value.to_bytes(size, "little") + data[at + size :]


def nothing(data: bytes, chance: random.Random) -> bytes:
    return chance.choice(
        (b"", b"\n", b" ", b"\xef\xbb\xbf", b"null", b"0", b'""', b"[]", b"{}", chance.randbytes(64))
    )


def recoded(data: bytes, chance: random.Random) -> bytes:
    """The text in another encoding."""
    return data.decode("utf-8", "replace").encode(chance.choice(("utf-16", "latin-1", "utf-8-sig")), "replace")


# -- words and lines ----------------------------------------------------------------------------------------------


def lines(data: bytes, chance: random.Random) -> bytes:
    """Drops, repeats, swaps, joins or splits a line."""
    rows = data.split(b"\n")
    at, other = chance.randrange(len(rows)), chance.randrange(len(rows))
    match chance.randrange(5):
        case 0:
            del rows[at]
        case 1:
            rows.insert(other, rows[at])
        case 2:
            rows[at], rows[other] = rows[other], rows[at]
        case 3:
            rows[at] += rows[other]
            del rows[other]
        case _:
            cut = chance.randrange(len(rows[at]) + 1)
            rows[at : at + 1] = [rows[at][:cut], rows[at][cut:]]
    return b"\n".join(rows)


def words(data: bytes, chance: random.Random) -> bytes:
    """Replaces, drops or repeats a word; words end at a blank, tab, comma or quotation mark."""
    separator = chance.choice((b" ", b"\t", b",", b'"', b"=", b"\n"))
    parts = data.split(separator)
    at = chance.randrange(len(parts))
    match chance.randrange(3):
        case 0:
            parts[at] = chance.choice(WORDS).encode()
        case 1:
            del parts[at]
        case _:
            parts.insert(chance.randrange(len(parts) + 1), parts[at])
    return separator.join(parts)


# -- JSON ---------------------------------------------------------------------------------------------------------


def values(data: bytes, chance: random.Random) -> bytes:
    """Changes one value in the JSON of a whole file: another type, a key lost, renamed or added, and so on."""
    try:
        root = json.loads(data)
    except (ValueError, RecursionError):
        return insert(data, chance)
    holder = [root]
    nodes: list[tuple[Any, Any]] = [(holder, 0)]
    pending = [root]
    while pending:
        node = pending.pop()
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            nodes.append((node, key))
            pending.append(node[key])
    parent, key = chance.choice(nodes)
    _change(parent, key, [node for node in nodes if node[0] is not holder], chance)
    try:
        return json.dumps(holder[0] if holder else None, ensure_ascii=chance.random() < 0.7).encode()
    except UnicodeEncodeError:
        return json.dumps(holder[0]).encode()
    except (ValueError, RecursionError):  # a value inside itself, an integer of too many digits
        return data[: place(data, chance)]


def _change(parent: Any, key: Any, nodes: list[tuple[Any, Any]], chance: random.Random) -> None:
    match chance.randrange(7):
        case 0 | 1 | 2:
            parent[key] = copy.deepcopy(chance.choice(VALUES))
        case 3:
            del parent[key]
        case 4 if isinstance(parent, dict):
            parent[chance.choice(("", "0", "x", f"{key} ", key.upper(), "\ud800"))] = parent.pop(key)
        case 5 if isinstance(parent, list):
            parent[key:key] = [parent[key]] * chance.choice((1, 2, 300))
        case 6 if nodes:
            other, place_of = chance.choice(nodes)
            parent[key] = copy.deepcopy(other[place_of])
        case _:
            for _ in range(chance.choice((1, 3, 150))):
                parent[key] = [parent[key]] if chance.random() < 0.5 else {"a": parent[key]}


def key_twice(data: bytes, chance: random.Random) -> bytes:
    at = data.find(b'"', place(data, chance))
    stop = data.find(b",", at)
    return data if at < 0 or stop < 0 else data[:at] + data[at : stop + 1] + data[at:]


def json_line(data: bytes, chance: random.Random) -> bytes:
    """Changes a value in one line of JSON lines."""
    rows = data.split(b"\n")
    at = chance.randrange(len(rows))
    rows[at] = values(rows[at], chance)
    return b"\n".join(rows)


Change = Callable[[bytes, random.Random], bytes]
BINARY: tuple[Change, ...] = (
    flip,
    flip,
    overwrite,
    truncate,
    cut_start,
    delete,
    repeat,
    move,
    insert,
    extreme,
    nothing,
)
TEXT: tuple[Change, ...] = (*BINARY, recoded, lines, lines, lines, words, words, words, words)
CHANGES: dict[str, tuple[Change, ...]] = {
    "bytes": (*BINARY, extreme, extreme, extreme, flip, flip),
    "text": TEXT,
    "json": (*BINARY, recoded, words, key_twice, *[values] * 14),
    "jsonl": (*TEXT, *[json_line] * 10),
}
