"""Damages files: bytes, words and lines of texts, values of JSON. All choices come from one `random.Random`."""

import copy
import gzip
import json

# What parsers stumble over: bytes to insert anywhere, values to put in the place of others in JSON, and words.
BYTES = (
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r", b"\r\n", b"\n\n", b"\t", b'"', b"\\", b"\\ud800",
    b"\\u0000", b"[" * 50, b"{" * 200, b"[" * 2000, b"NaN", b"1e999", b"9" * 30, b"9" * 5000, b",,", b"}",
    "\u2028".encode(), "\U0001f600".encode(), "가".encode(), b"\x1f\x8b\x08", b"A" * 5000, b" " * 99, b"]",
)  # fmt: skip
VALUES = (
    None, True, False, 0, 1, -1, 3.5, 1e308, -1e308, 1e-320, float("nan"), float("inf"), 2**31, 2**63, 10**30,
    10**400, "", " ", "64", "true", "\ud800", "\x00", "../../etc/passwd", "/dev/zero", "[PAD]", "x" * 3000, [], {},
    [0], ["a"], [None], {"a": 1}, {"0": "a"}, [[]], [{}], {"": ""},
)  # fmt: skip
WORDS = (
    "", "0", "-1", "1.5", "nan", "inf", "1e308", "1e999", "9" * 25, "true", "null", "\x00", "é", "가나다", "[PAD]",
    "\ufffd", "\u200b", "x" * 300, '"', "$x_$", "\r", "9" * 5000, "-9223372036854775809", "..", "1_000", "１",
)  # fmt: skip


def damaged(data, kind, chance):
    """One to four random changes of a file; `kind` is "bytes", "text", "json" or "jsonl", plain or with ".gz"."""
    is_packed = kind.endswith(".gz") and chance.random() < 0.7
    data = gzip.decompress(data) if is_packed else data
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        data = chance.choice(CHANGES[kind.removesuffix(".gz")])(data, chance)
    return gzip.compress(data, 1) if is_packed else data


def binary(data, chance):
    """A flipped bit; a part removed, zeroed, repeated or moved; an extreme integer, strange bytes."""
    start = chance.randrange(len(data) + 1)
    stop = min(len(data), start + int(len(data) ** chance.random()))  # more often a short part
    before, part, after, size = data[:start], data[start:stop], data[stop:], chance.choice((1, 2, 4, 8))
    largest = (1 << 8 * size) - 1
    number = chance.choice((0, 1, largest, largest >> 1, (largest >> 1) + 1)).to_bytes(size, "little")
    flipped = (
        before + bytes([data[start] ^ 1 << chance.randrange(8)]) + data[start + 1 :] if data[start:] else b"\1"
    )
    other = chance.choice(
        (bytes(len(part)), chance.randbytes(min(len(part), 64)), chance.choice(BYTES) + part, b"")
    )
    return chance.choice((
        flipped, flipped, flipped, before, after, before + other + after, before + other + after,
        before + part * chance.choice((2, 3, 20)) + after, part + before + after, before + after + part,
        before + number + data[start + size :], before + number + data[start + size :],
        chance.choice((b"", b"\n", b" ", b"null", b"0", b"[]", b"{}", chance.randbytes(64))),
    ))  # fmt: skip


def text(data, chance):
    """Words or lines replaced, removed, repeated, swapped or joined; another encoding."""
    separator = chance.choice((b"\n", b"\n", b"\n", b" ", b"\t", b",", b'"', b"="))
    parts = data.split(separator)
    at, other = chance.randrange(len(parts)), chance.randrange(len(parts))
    match chance.randrange(7):
        case 0 | 1:
            parts[at] = chance.choice(WORDS).encode()
        case 2:
            del parts[at]
        case 3:
            parts.insert(other, parts[at])
        case 4:
            parts[at], parts[other] = parts[other], parts[at]
        case 5:
            parts[at] += parts[other]
        case 6:
            return data.decode("utf-8", "replace").encode(
                chance.choice(("utf-16", "latin-1", "utf-8-sig")), "replace"
            )
    return separator.join(parts)


def values(data, chance):
    """One value in the JSON of a file becomes another, or its key is lost, renamed or there twice."""
    try:
        holder = [json.loads(data)]
        nodes = [(holder, 0)]
        for parent, key in nodes:  # grows
            node = parent[key]
            nodes += [(node, key) for key in node] if isinstance(node, dict) else []
            nodes += [(node, key) for key in range(len(node))] if isinstance(node, list) else []
        (parent, key), (other, place) = chance.choice(nodes), chance.choice(nodes)
        match chance.randrange(7):
            case 0 | 1 | 2:
                parent[key] = copy.deepcopy(chance.choice(VALUES))
            case 3:
                del parent[key]
            case 4 if isinstance(parent, dict):
                parent[chance.choice(("", "0", "x", f"{key} ", key.upper(), "\ud800"))] = parent.pop(key)
            case 5 if isinstance(parent, list):
                parent[key:key] = [parent[key]] * chance.choice((1, 2, 300))
            case _:
                parent[key] = chance.choice(
                    (copy.deepcopy(other[place]), [parent[key]], {"a": {"a": parent[key]}})
                )
        changed = json.dumps(*holder).encode()
    except (ValueError, TypeError, RecursionError):  # no JSON any more, or a value inside itself
        return binary(data, chance)
    twice = changed.find(b'"', chance.randrange(len(changed)))
    stop = changed.find(b",", twice) + 1
    return changed[:stop] + changed[twice:] if chance.random() < 0.1 and 0 < twice < stop else changed


def line(data, chance):
    rows = data.split(b"\n")
    at = chance.randrange(len(rows))
    return b"\n".join([*rows[:at], values(rows[at], chance), *rows[at + 1 :]])


CHANGES = {"bytes": [binary], "text": [binary, text, text], "json": [binary, text, values, values, values],
           "jsonl": [binary, text, line, line]}  # fmt: skip
