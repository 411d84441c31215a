"""Shards: found, opened and checked; Google's format holds the same examples."""

import json
import re
import shutil
from pathlib import Path

import pytest
from corpora import bert_corpus, build, build_with, make_texts, settings_of, write

from bert.corpus.shards import open_table, tokenizer_folder, verify
from bert.text import tokenizer
from ringbert.errors import InputError


@pytest.fixture
def shards(tmp_path):
    write(tmp_path, make_texts(20))
    build(tmp_path, num_shards=3)
    return tmp_path / "shards"


def problems_of(shards: Path) -> str:
    return "; ".join(verify(shards)[1])


def test_an_intact_corpus_verifies(shards):
    assert problems_of(shards) == ""
    table, manifest = open_table(f"{shards}/*")
    assert table.num_rows == manifest["counts"]["examples"]
    some, _ = open_table(f"{shards}/shard-0000[02]-*.arrow")
    assert some.num_rows == sum(manifest["shards"][n]["examples"] for n in (0, 2))
    assert tokenizer_folder(f"{shards}/*") == shards / "tokenizer"
    words = tokenizer.load(folder=tokenizer_folder(str(shards)))
    assert (words.digest, words.vocab_size) == (manifest["tokenizer_digest"], manifest["vocab_size"])


@pytest.mark.parametrize("damage", ["flipped", "missing", "cut", "empty"])
def test_a_damaged_shard_is_named(shards, damage):
    path = shards / "shard-00001-of-00003.arrow"
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    else:
        path.write_bytes(data[:-100] if damage == "cut" else b"")
    words = {
        "flipped": "is damaged",
        "missing": "is missing",
        "cut": "bytes, its manifest says",
        "empty": "is empty",
    }
    assert f"{path} " in problems_of(shards)
    assert words[damage] in problems_of(shards)
    if damage == "flipped":
        done = bert_corpus("verify", f"--input_dir={shards}", folder=shards)
        assert done.returncode == 1
        assert re.fullmatch(rf"bert-corpus verify: error: {path} is damaged: .*\n", done.stderr)
    else:  # opening reads no content
        for patterns in (str(shards), f"{shards}/*", f"{shards}/shard-*.arrow"):
            with pytest.raises(InputError, match=rf"shard-00001-of-00003\.arrow.*{words[damage]}"):
                open_table(patterns)
    others, _ = open_table(f"{shards}/shard-00000-*,{shards}/shard-00002-*")
    assert others.num_rows > 0


def test_ids_beyond_the_vocabulary_are_found(shards):
    manifest = json.loads((shards / "manifest.json").read_text())
    (shards / "manifest.json").write_text(json.dumps(manifest | {"vocab_size": 100}))
    assert "input_ids contains" in problems_of(shards)


def test_shards_that_do_not_belong_together_are_refused(tmp_path, shards):
    build(tmp_path, "other", max_seq_length=64)
    with pytest.raises(InputError, match=r"differ in settings: max_seq_length \(128 and 64\)"):
        open_table(f"{shards}/*.arrow,{tmp_path}/other/*.arrow")
    build(tmp_path, "more", num_shards=2)
    table, manifest = open_table(f"{shards},{tmp_path}/more")
    assert table.num_rows == 2 * json.loads((shards / "manifest.json").read_text())["counts"]["examples"]
    assert len(manifest["shards"]) == 5
    shutil.copy(tmp_path / "other" / "shard-00000-of-00001.arrow", shards)
    with pytest.raises(InputError, match=r"shard-00000-of-00001\.arrow is not in the manifest"):
        open_table(f"{shards}/*")
    assert "is not in the manifest" in problems_of(shards)
    (shards / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"has no manifest\.json"):
        open_table(f"{shards}/*")
    with pytest.raises(InputError, match="no file matches"):
        open_table(f"{tmp_path}/nowhere/*")


# -- Google's files -----------------------------------------------------------------------------------------------


def test_tfrecord_shards_hold_the_same_examples(tmp_path):
    """Read by TensorFlow's own parser, against the Arrow shards of the same settings."""
    import tensorflow as tf

    write(tmp_path, make_texts(10))
    rows, _ = build(tmp_path, "arrow", masking="static", dupe_factor=2, max_seq_length=48, num_shards=2)
    words, output = tokenizer.load(str(tmp_path / "vocab.txt")), tmp_path / "tfrecord"
    settings = {"format": "tfrecord", "dupe_factor": 2, "max_seq_length": 48, "num_shards": 2}
    build_with(settings_of(tmp_path, "tfrecord", **settings), words)
    shape = {"input_ids": 48, "input_mask": 48, "segment_ids": 48, "next_sentence_labels": 1}
    shape |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), 20)
    kinds = {name: tf.float32 if name == "masked_lm_weights" else tf.int64 for name in shape}
    features = {name: tf.io.FixedLenFeature([length], kinds[name]) for name, length in shape.items()}
    files = sorted(str(path) for path in output.glob("shard-*.tfrecord"))
    records = [tf.io.parse_single_example(record, features) for record in tf.data.TFRecordDataset(files)]
    assert len(records) == len(rows)
    for record, row in zip(records, rows, strict=True):
        found = {name: value.numpy().tolist() for name, value in record.items()}
        length, masked = len(row["input_ids"]), len(row["masked_lm_ids"])
        assert found["input_ids"] == row["input_ids"] + [0] * (48 - length)
        assert found["input_mask"] == [1] * length + [0] * (48 - length)
        types = [0] * row["sentence_a_tokens"] + [1] * (length - row["sentence_a_tokens"])
        assert found["segment_ids"] == types + [0] * (48 - length)
        assert found["masked_lm_positions"] == row["masked_lm_positions"] + [0] * (20 - masked)
        assert found["masked_lm_ids"] == row["masked_lm_ids"] + [0] * (20 - masked)
        assert found["masked_lm_weights"] == [1.0] * masked + [0.0] * (20 - masked)
        assert found["next_sentence_labels"] == [row["is_random_next"]]
    assert problems_of(output) == ""
    with pytest.raises(InputError, match="has tfrecord shards, expected arrow"):
        open_table(str(output))
