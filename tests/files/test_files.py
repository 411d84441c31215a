"""Folders and files appear whole or not at all, whoever builds them at once and whatever a kill
leaves; JSON is read as what it says, or refused in one line."""

import gzip
import math
import multiprocessing
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from harness.refusals import refused

from ringbase.errors import InputError, one_line
from ringbase.files import (
    build_folder,
    digest,
    parse_json,
    read_json,
    read_object,
    read_standard_input,
    replace_folder,
    replacing,
)
from tasks.runs.rows.reader import Reader, Readings, rows_key


def built_by_job(folder, name):
    """What is in a folder that this job builds when two others do, too."""

    def build(into):
        (into / "first").write_text(name)
        (folder / f"{name} builds").touch()
        while len(list(folder.glob("job* builds"))) < 3:
            time.sleep(0.01)
        (into / "second").write_text(name)

    build_folder(folder / "cache" / "key", build)
    return [(folder / "cache" / "key" / file).read_text() for file in ("first", "second")]


def failing(folder):
    (folder / "data").write_text("half")
    raise OSError("the disk is full")


def test_jobs_that_build_the_same_at_the_same_time_get_one_whole_folder_and_nothing_of_a_killed_one(
    tmp_path,
):
    processes = multiprocessing.get_context("spawn")
    killed = processes.Process(target=built_by_job, args=(tmp_path, "killed"))
    killed.start()
    while not (tmp_path / "killed builds").exists():
        time.sleep(0.01)
    killed.kill()
    killed.join()
    assert len(os.listdir(tmp_path / "cache")) == 1, "the case is about what is left over"
    with processes.Pool(3) as pool:
        found = pool.starmap(
            built_by_job, [(tmp_path, f"job{number}") for number in range(3)], chunksize=1
        )
    assert len({name for names in found for name in names}) == 1, (
        f"files of several builds are mixed: {found}"
    )
    assert os.listdir(tmp_path / "cache") == ["key"]
    assert not build_folder(tmp_path / "cache" / "key", failing)


def test_a_folder_is_replaced_as_a_whole_or_stays(tmp_path):
    final = tmp_path / "model"
    replace_folder(final, lambda folder: (folder / "data").write_text("old"))
    with pytest.raises(OSError, match="the disk is full"):
        replace_folder(final, failing)
    assert os.listdir(tmp_path) == ["model"]
    assert (final / "data").read_text() == "old"
    replace_folder(
        final, lambda folder: (folder / "other").write_text((final / "data").read_text() + " new")
    )
    assert [(path.name, path.read_text()) for path in final.iterdir()] == [("other", "old new")]
    assert os.listdir(tmp_path) == ["model"]


def test_a_file_is_replaced_as_a_whole_or_stays(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half", "no bytes"])
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 3}', '[{"b": {"a": 1, "a": 1}}]'])
def test_json_with_a_key_twice_is_refused(text):
    refused(lambda: parse_json(text, "config.json: "), "config.json", "'a' occurs twice")


def test_what_is_no_json_or_barely_is_refused():
    halves = '["b\\ud800"]', '{"\\udfff": 1}', '"\\ud800"'  # of a surrogate pair
    for text in ("[" * 100_000, "9" * 5000, *halves, "{'a': 1}", "", "1 2"):
        assert len(refused(lambda text=text: parse_json(text))) < 300, text[:20]
    assert parse_json('["\\ud83d\\ude00"]') == ["\U0001f600"]
    # transformers writes it for a length without a limit
    assert parse_json("1" + "0" * 30) == 10**30
    assert parse_json('{"a": "' + "[" * 200 + '"}') == {"a": "[" * 200}
    # Python's own writer writes it
    assert parse_json("[1e999, -Infinity]") == [math.inf, -math.inf]


def test_an_object_is_read_from_a_file_with_an_end(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(path) == read_object(path) == {"a": 1}
    for content in (
        '{"a": 1}'.encode("utf-16"),
        b'{"a": "\xff"}',
        b"[1]",
        b"null",
        b"1.5",
        b'{"a"',
    ):
        path.write_bytes(content)
        refused(lambda: read_object(path), path)
        refused(lambda: read_object(path, "--model"), "--model")
    large, packed = tmp_path / "large.json", tmp_path / "packed.json.gz"
    large.touch()
    os.truncate(large, 1 << 33)  # sparse
    packed.write_bytes(gzip.compress(b'{"a": 1}' + b" " * (1 << 26)))
    for path in (tmp_path, large, packed, Path("/dev/zero")):
        refused(lambda path=path: read_object(path), path)


def test_a_long_message_keeps_its_end():
    line = one_line(InputError(f"one of {'names, ' * 400}got 'x': give another"))
    assert len(line) <= 1500
    assert line.startswith("one of names")
    assert line.endswith("got 'x': give another")


def test_closed_standard_input_is_one_line(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    refused(lambda: read_standard_input("--predict_file -"), "--predict_file -", "closed")


def frame_of(values):
    return pd.DataFrame({"text": ["saw"] * len(values), "stars": values})


@dataclass
class Settings:
    words: Any


LONG = [0.5] * 5000  # numpy and pandas abbreviate what is long


@pytest.mark.parametrize(
    "of",
    [
        np.asarray,
        np.float16,
        partial(np.asarray, dtype=object),
        frame_of,
        pd.Series,
        pa.array,
        lambda values: pa.table({"stars": values}),
        lambda values: Settings({"stars": np.asarray(values)}),
        set,
        lambda values: bytes(map(int, values)),
    ],
)
def test_a_digest_is_of_all_values_in_whatever_container(of):
    other = [*LONG]
    other[2500] = 1.5
    assert digest(of(LONG)) == digest(of([*LONG]))
    assert digest(of(LONG)) != digest(of(other))


def test_a_digest_is_also_of_names_types_and_shapes():
    frame = frame_of(LONG)
    row = np.zeros(6, np.int32)
    different = [
        frame,
        frame.rename(columns={"stars": "votes"}),
        frame.rename(index={0: 7}),
        row,
        row.view(np.float32),
        row.reshape(2, 3),
        {"zero", "one"},
        ["one", "zero"],
    ]
    assert len({digest(value) for value in different}) == len(different)


@pytest.mark.parametrize("value", [object(), print, {(1, 2): 3}])
def test_a_digest_refuses_what_it_cannot_spell(value):
    with pytest.raises(TypeError):
        digest([value])


def test_a_reader_whose_rows_depend_on_what_has_no_digest_is_refused_in_one_line():
    class Stars(Reader):
        name, settings, max_seq_length = "stars", {"words": object()}, 8

        def read(self, source):
            return [1.0]

    tokenizer = SimpleNamespace(digest="of the vocabulary")
    refused(
        lambda: rows_key(Stars(), None, tokenizer, Readings()),
        "stars",
        "no digest",
        "object object",
    )
