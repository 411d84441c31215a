"""JSON of any origin is read as what it says, or refused in one line."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringbert.errors import InputError
from ringbert.json_files import MOST_DEPTH, MOST_DIGITS, parse_json, read_json, read_object

QUICK = settings(max_examples=300, deadline=None, database=None, derandomize=True)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


def value_or_refusal(call: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return call(), ""
    except InputError as error:
        return None, str(error)


@QUICK
@given(VALUES, st.booleans())
def test_what_python_writes_is_read_back(value: Any, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii)
    assert parse_json(text) == value
    assert parse_json(text, allow_nan=True) == value


@QUICK
@given(st.text(alphabet=list('[]{}":,0123456789.eE+-\\ud8NaInfity\n \ud83d\ude00truefalsn\x00é'), max_size=60))
def test_any_text_is_a_value_or_one_line(text: str) -> None:
    for allow_nan in (False, True):
        value, refusal = value_or_refusal(lambda allow_nan=allow_nan: parse_json(text, allow_nan=allow_nan))
        assert len(refusal) < 300
        if refusal:
            continue
        json.dumps(value, ensure_ascii=False, allow_nan=allow_nan).encode()
        assert json.loads(text) == value or text.lower().count("nan")


@QUICK
@given(st.binary(max_size=60))
def test_any_file_is_a_value_or_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(data)
    _, refusal = value_or_refusal(lambda: read_json(path))
    assert not refusal or refusal.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, f"nested more than {MOST_DEPTH} levels deep"),
        ("[" * 500 + "]" * 500, f"nested more than {MOST_DEPTH} levels deep"),
        ('{"a":' * 101 + "1" + "}" * 101, f"nested more than {MOST_DEPTH} levels deep"),
        ("9" * 301, "99999999999999999999… is an integer of 301 digits, at most 300"),
        ("9" * 5000, "99999999999999999999… is an integer of 5,000 digits, at most 300"),
        ("[1e999]", "1e999 is too large for a number"),
        ("NaN", "not valid JSON (NaN is not a number)"),
        ("[-Infinity]", "not valid JSON (-Infinity is not a number)"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', 'the key "c" occurs twice in an object'),
        ('{"a": ["x", "b\\ud800"]}', r"a[1] holds half a surrogate pair (\ud800), which is not Unicode"),
        ('{"\\udfff": 1}', r"a key holds half a surrogate pair (\udfff), which is not Unicode"),
        ('"\\ud800"', r"the text holds half a surrogate pair (\ud800), which is not Unicode"),
        ("{'a': 1}", "not valid JSON (Expecting property name"),
        ("", "not valid JSON (Expecting value: line 1 column 1 (char 0))"),
    ],
)
def test_what_json_only_barely_allows(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_json(text)
    assert str(caught.value).startswith(message)


def test_what_stays_allowed() -> None:
    assert parse_json('["\\ud83d\\ude00"]') == ["\U0001f600"]
    assert parse_json("9" * MOST_DIGITS) == int("9" * MOST_DIGITS)
    assert parse_json("1" + "0" * 30) == 10**30  # transformers writes it for a length without a limit
    deep = "[" * MOST_DEPTH + "]" * MOST_DEPTH
    assert json.dumps(parse_json(deep)) == deep
    assert parse_json('{"a": "[[[[' + "[" * 200 + '"}') == {"a": "[" * 204}
    assert math.isnan(parse_json("NaN", allow_nan=True))
    assert parse_json("[1e999, -Infinity]", allow_nan=True) == [math.inf, -math.inf]


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(path) == read_object(path) == {"a": 1}
    for content, message in (
        ('{"a": 1}'.encode("utf-16"), "line 1 is not UTF-8"),
        (b'{"a": "\xff"}', "line 1 is not UTF-8"),
        (b"[1]", "expected a JSON object, got a list"),
        (b"null", "expected a JSON object, got null"),
        (b"1.5", "expected a JSON object, got a number"),
        (b'{"a"', "not valid JSON"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"^{path}: {message}"):
            read_object(path)
    with pytest.raises(InputError, match=f"^--model: {message}"):
        read_object(path, "--model")
    for name, message in ((tmp_path, "Is a directory"), ("/dev/zero", "a device, expected a file")):
        with pytest.raises(InputError, match=f"^{name}: {message}"):
            read_json(Path(name))


def test_a_file_or_pipe_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.touch()
    os.truncate(path, 1 << 33)  # sparse
    with pytest.raises(InputError, match=r"large\.json: more than 64 MiB, the most that this file may have"):
        read_object(path)
