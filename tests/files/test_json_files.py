"""JSON of any origin is read as what it says, or refused in one line."""

import math
import os

import pytest
from harness.refusals import refused

from ringbase.json_files import parse_json, read_json, read_object


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "9" * 5000, "9" * 400,
     '["b\\ud800"]', '{"\\udfff": 1}', '"\\ud800"', "{'a': 1}", "", "1 2"],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_is_no_json_or_barely_is_refused(text):
    assert len(refused(lambda: parse_json(text))) < 300


def test_what_stays_allowed():
    assert parse_json('["\\ud83d\\ude00"]') == ["\U0001f600"]
    assert parse_json("1" + "0" * 30) == 10**30  # transformers writes it for a length without a limit
    assert parse_json('{"a": "' + "[" * 200 + '"}') == {"a": "[" * 200}
    assert parse_json("[1e999, -Infinity]") == [math.inf, -math.inf]  # Python's own writer writes it


def test_an_object_is_read_from_a_file_with_an_end(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(path) == read_object(path) == {"a": 1}
    for content in ('{"a": 1}'.encode("utf-16"), b'{"a": "\xff"}', b"[1]", b"null", b"1.5", b'{"a"'):
        path.write_bytes(content)
        refused(lambda: read_object(path), path)
        refused(lambda: read_object(path, "--model"), "--model")
    (tmp_path / "large.json").touch()
    os.truncate(tmp_path / "large.json", 1 << 33)  # sparse
    for path in (tmp_path, tmp_path / "large.json", tmp_path.joinpath("/dev/zero")):
        refused(lambda path=path: read_object(path), path)
