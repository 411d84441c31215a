"""Damages files: bytes, words and lines of texts, values of JSON. All choices come from one
`random.Random`."""

import json
import re

# What parsers stumble over: bytes to insert anywhere, values to put in the place of others in JSON,
# and words.
BYTES = (
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\r\n",
    b"\n\n",
    b"\t",
    b'"',
    b"\\ud800",
    b"\\u0000",
    b"{" * 200,
    b"[" * 2000,
    b"NaN",
    b"1e999",
    b"9" * 5000,
    b",,",
    b"}",
    "가".encode(),
    b"\x1f\x8b\x08",
)
VALUES = (
    None,
    True,
    0,
    1,
    -1,
    3.5,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    2**31,
    2**63,
    10**400,
    "",
    " ",
    "64",
    "\ud800",
    "\x00",
    "../../etc/passwd",
    "/dev/zero",
    "[PAD]",
    "x" * 3000,
    [],
    {},
    [0],
    ["a"],
    {"0": "a"},
    [{}],
)
WORDS = (
    "",
    "0",
    "-1",
    "1.5",
    "nan",
    "1e308",
    "1e999",
    "9" * 25,
    "true",
    "null",
    "\x00",
    "é",
    "가나다",
    "[PAD]",
    "\u200b",
    "x" * 300,
    '"',
    "\r",
    "9" * 5000,
    "..",
    "１",
)
LEAF, HOLDER = rb'"[^"\n]*"|[-\w.]+', rb"\{[^{}]*\}|\[[^\[\]]*\]"


def damaged(data, name, chance):
    """One to four random changes of a file."""
    changes = CHANGES.get(name.rpartition(".")[2], [binary])
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        data = chance.choice(changes)(data, chance)
    return data


def binary(data, chance):
    """A flipped bit; a part removed, zeroed, repeated or moved; an extreme integer, strange
    bytes."""
    start = chance.randrange(len(data) + 1)
    stop = min(len(data), start + int(len(data) ** chance.random()))  # more often a short part
    before, part, after = data[:start], data[start:stop], data[stop:]
    if chance.random() < 0.25:
        return (
            before
            + bytes([(data[start:] or b"\0")[0] ^ 1 << chance.randrange(8)])
            + data[start + 1 :]
        )
    number = chance.choice((0, 1, (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1)).to_bytes(
        8, "little"
    )
    others = (
        b"",
        bytes(len(part)),
        chance.randbytes(min(len(part), 64)),
        number,
        part * 20,
        chance.choice(BYTES),
    )
    whole = before, after, before + after + part, chance.choice((b"", b"\n", b"null", b"[]", b"{}"))
    return chance.choice((*whole, *2 * [before + chance.choice(others) + after]))


def text(data, chance):
    """Words or lines replaced, removed, repeated, swapped or joined; another encoding."""
    if chance.random() < 0.1:
        return data.decode("utf-8", "replace").encode(
            chance.choice(("utf-16", "latin-1", "utf-8-sig")), "replace"
        )
    separator = chance.choice((b"\n", b"\n", b"\n", b" ", b"\t", b",", b'"', b"="))
    parts, word = data.split(separator), chance.choice(WORDS).encode()
    at = chance.randrange(len(parts))
    one, two = parts[at], chance.choice(parts)
    parts[at : at + 1] = chance.choice(([word], [word], [], [one, one], [two], [one + two]))
    return separator.join(parts)


def values(data, chance):
    """A value in JSON, a key, or a list or object without others inside becomes another value."""
    found = [*re.finditer(chance.choice((LEAF, LEAF, HOLDER)), data)]
    if not found:
        return binary(data, chance)
    one = chance.choice(found)
    other = chance.choice(found)
    new = json.dumps(chance.choice(VALUES)).encode()
    new = chance.choice(
        (new, new, new, other[0], b"[%b]" % b",".join(300 * [one[0]]), b'{"a": %b}' % one[0])
    )
    return data[: one.start()] + new + data[one.end() :]


TEXT, JSON = (binary, text, text), (binary, text, values, values, values)
# by suffix
CHANGES = dict.fromkeys(("txt", "csv", "tsv", "conll"), TEXT) | dict.fromkeys(
    ("json", "jsonl"), JSON
)
