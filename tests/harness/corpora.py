"""Small corpora whose every token tells where it comes from, and bert-corpus on them."""

import itertools
import random

import pyarrow as pa
from harness.texts import SPECIAL_TOKENS, write_vocabulary

from bert.corpus import build as corpus
from bert.corpus.read import documents
from bert.corpus.settings import BuildSettings, TextSettings
from bert.corpus.shards import find_shards, open_shards
from bert.corpus.units import find_units
from bert.text import tokenizer
from ringbase.settings import made

CLS, SEP, MASK = 2, 3, 4


def make_texts(num_documents):
    """Documents of sentences of token ids. No id occurs twice."""
    draw, number = random.Random(0), itertools.count(len(SPECIAL_TOKENS))

    def sentence():
        return list(itertools.islice(number, draw.randint(1, 25)))

    return [[sentence() for _ in range(draw.randint(1, 40))] for _ in range(num_documents)]


def write(folder, texts, name="a.txt.part"):
    """Writes the texts, each id as a word, and their vocabulary, vocab.txt."""
    last = texts[-1][-1][-1]
    write_vocabulary(folder, *(f"w{n}" for n in range(5, last + 1)), "!")
    lines = ("\n".join(" ".join(f"w{n}" for n in sentence) for sentence in text) for text in texts)
    (folder / name).write_text("\n\n".join(lines))


def open_table(patterns, flag="--input_file"):
    """All rows of the shards, each record batch checked, and the manifest."""
    shards, manifest = open_shards(find_shards(patterns, flag))
    batches = [shard.batch(n) for shard in shards for n in range(len(shard.starts) - 1)]
    return pa.Table.from_batches(batches), manifest


def build(folder, output="shards", *, workers=1, **settings):
    """Builds the corpus that `write` wrote; its examples and its manifest."""
    files = {"input_file": f"{folder}/*.txt.part", "output_dir": str(folder / output)}
    words = tokenizer.load(str(folder / "vocab.txt"))
    built = made(BuildSettings, files | settings)
    corpus.build(built, words, num_workers=workers)
    table, manifest = open_table(str(folder / output))
    return table.to_pylist(), manifest


def halves(row):
    """A and B before static masks were applied, without [CLS] and [SEP], which must be where they
    belong."""
    ids, a = list(row["input_ids"]), row["sentence_a_tokens"]
    for position, original in zip(
        row.get("masked_lm_positions", ()), row.get("masked_lm_ids", ()), strict=True
    ):
        ids[position] = original
    assert (ids[0], ids[a - 1], ids[-1]) == (CLS, SEP, SEP)
    return ids[1 : a - 1], ids[a:-1]


def read_documents(**settings):
    """The documents of all units, as lists of sentences."""
    text = TextSettings(**settings)
    return [document for unit in find_units(text) for document in documents(unit, text)]


def padded(row, length=48, most=6):
    """An example as create_pretraining_data.py's write_instance_to_example_files pads it, written
    out."""
    ids, first, used = row["input_ids"], row["sentence_a_tokens"], len(row["masked_lm_ids"])
    padding, unused = [0] * (length - len(ids)), [0] * (most - used)
    return {
        "input_ids": ids + padding,
        "input_mask": [1] * len(ids) + padding,
        "segment_ids": [0] * first + [1] * (len(ids) - first) + padding,
        "masked_lm_positions": row["masked_lm_positions"] + unused,
        "masked_lm_ids": row["masked_lm_ids"] + unused,
        "masked_lm_weights": [1.0] * used + [0.0] * len(unused),
        "next_sentence_labels": [row["is_random_next"]],
    }


def write_records(path, examples):
    """Writes records, or features as a tf.train.Example; returns the bytes of the file."""
    import tensorflow as tf

    lists = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            if isinstance(example, dict):
                made = {}
                for key, values in example.items():
                    made[key] = {lists[type(values[0])]: {"value": values}}
                example = tf.train.Example(features={"feature": made}).SerializeToString()
            writer.write(example)
    return path.read_bytes()
