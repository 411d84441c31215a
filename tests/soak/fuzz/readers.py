"""Every reader of a user's files, called as the programs call it, and what must hold for what it
accepts."""

import gzip
import io
import json
import math
import os
import pickle
import random
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import sentencepiece
from harness import corpora, weight_files
from harness.classifier_files import read_glue, read_own
from harness.program_runs import files_in
from harness.real_tokenizers import CONTROLS
from harness.squad_files import make_entries, source_of, squad_json
from harness.texts import SPECIAL_TOKENS, write_model
from safetensors.numpy import load

from bert import configuration, hub, weights
from bert.corpus.shards import find_shards, open_shards
from bert.heads import SPAN
from bert.model import Bert
from bert.text import tokenizer
from distributed.order import BlockOrder
from distributed.rows import BatchRows
from distributed.run import Run, Unwritten
from distributed.world import World
from ringbase import manifest
from ringbase.errors import InputError
from tasks.pretraining.shards import Limits, converted
from tasks.runs.report.page import write_page
from tasks.runs.rows.sets import open_set
from tasks.runs.rows.texts import Tokenization
from tasks.squad.reading import read
from tasks.squad.settings import WindowSettings
from tasks.squad.task import SpanTask
from tasks.tagger import reading as tagged
from tasks.tagger.settings import FileSettings


@dataclass
class Reader:
    """A reader and its files, of which one is damaged in a case."""

    name: str
    files: Mapping[str, bytes]  # by name
    # (folder, name of the damaged file); returns, or raises InputError
    read: Callable[[Path, str], object]
    share: float  # of the cases
    others: Mapping[str, bytes] = field(default_factory=dict)  # never damaged
    is_exact: bool = False  # `read` always returns the same
    heals: bool = False  # a cache, which is never refused


def as_json(value):
    return json.dumps(value, indent=1).encode()


def as_lines(*values):
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def made(by, **given):
    """The files that `by(folder)` adds to a folder of these files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, data in given.items():
            (folder / file).write_bytes(data)
        by(folder)
        return files_in(folder, *given)


def read_shards(folder, name):
    """As bert-pretraining, in the order of its stream."""
    parts, facts = open_shards(find_shards(f"{folder}/arrow"))
    rows = BatchRows(parts)
    numbers = BlockOrder(len(rows), 1).rows_at(0, len(rows))
    return facts["settings"]["max_seq_length"], pickle.dumps(rows.take(numbers))


def read_records(folder, name):
    """A file that ends after a whole record is a whole file: then only the number of rows tells."""
    os.environ["RINGBERT_CACHE"] = str(folder / "cache")
    cached = converted(find_shards(f"{folder}/tf/*"), Limits(48, 20, 1 << 15), "--input_file")
    rows = corpora.open_table(str(cached))[0].to_pylist()
    if len(rows) != NUM_RECORDS[0]:
        raise InputError(f"{folder}: {len(rows)} rows")
    return rows


NUM_RECORDS = []  # of the file that `corpus_readers` makes


def read_texts(folder, name):
    for document in corpora.read_documents(
        input_file=str(folder / name), split_sentences="split" in name
    ):
        assert document
        assert all(sentence.encode() for sentence in document)


def corpus_readers():
    def build(folder):
        corpora.write(folder, corpora.make_texts(40))
        corpora.build(folder, "arrow", max_seq_length=48, num_shards=1, dupe_factor=3)
        rows, _ = corpora.build(
            folder, "static", max_seq_length=48, num_shards=1, dupe_factor=1, masking="static"
        )
        (folder / "tf").mkdir()
        NUM_RECORDS.append(len(rows))
        corpora.write_records(
            folder / "tf/a.tfrecord", [corpora.padded(row, 48, 20) for row in rows]
        )

    files, parquet, draw = made(build), {}, random.Random(0)
    shards, records = (
        {k: v for k, v in files.items() if k.startswith(folder)} for folder in ("arrow/", "tf/")
    )
    table = pa.table(
        {"text": draw.choices(SENTENCES[:3], k=300), "label": draw.choices(["yes", "no"], k=300)}
    )
    for compression in ("none", "zstd"):
        pa.parquet.write_table(
            table, file := io.BytesIO(), row_group_size=100, compression=compression
        )
        parquet[f"{compression}.parquet"] = file.getvalue()
    text = b"The cat sat on the mat.\nA dog ran.\n\nFoxes saw it.\n\n\nThe end came.\n" * 3
    lines = as_lines(
        {"text": "The cat sat.\nA dog ran.", "id": 7},
        {"text": "Foxes.", "id": None},
        {"text": None},
    )
    texts = {"a.txt": text, "split.txt": text, "a.jsonl": lines, "a.txt.gz": gzip.compress(text)}
    return [
        Reader("shards", shards, read_shards, 6, is_exact=True),
        Reader("TFRecord", records, read_records, 4, is_exact=True),
        Reader("texts", texts | parquet, read_texts, 8),
        Reader("classifier", LABELLED | parquet, read_classifier, 16),
        Reader("tagger", TAGGED | {"a.parquet": tagged_parquet()}, read_tagged, 6),
    ]


SENTENCES = (
    "the cat sat on the mat .",
    "a dog ran , and ran",
    "Émile saw 3 foxes [SEP] 가나다",
    "",
    "x" * 300,
)


def read_configuration(folder, name):
    config = configuration.config_from_file(folder / name)
    sizes = [getattr(config, size) for size in (*weight_files.SIZES, "type_vocab_size")]
    assert all(type(size) is int and 0 < size < 1 << 31 for size in sizes)
    assert config.hidden_size % config.num_attention_heads == 0
    rates = [
        config.hidden_dropout_prob,
        config.attention_probs_dropout_prob,
        config.classifier_dropout or 0,
    ]
    assert all(0 <= rate < 1 for rate in rates)


def read_tokenizer(folder, name):
    given = {"spm_model_file" if name.endswith("model") else "vocab_file": str(folder / name)}
    words = tokenizer.load(
        **({"folder": folder} if (folder / "tokenizer_config.json").exists() else given)
    )
    for text, tokens, places in zip(SENTENCES, *words.encode(SENTENCES), strict=True):
        assert len(tokens) == len(places) == len(words.pieces(tokens))
        assert not len(places) or (places.min() >= 0 and places.max() <= len(text))
    assert len({words.pad_id, words.unk_id, words.cls_id, words.sep_id, words.mask_id}) == 5


def save_words(folder):
    write_model(folder)
    tokenizer.load(str(folder / "vocab.txt")).save(folder)


WORDS = made(save_words)


def model_readers():
    """Configurations, tokenizers, and the weights of a tiny model: safetensors in one file and in
    two with an index, and a TensorFlow checkpoint."""

    def read_weights(folder, name):
        weights.load(
            model, hub.find(str(folder / "bert_model.ckpt") if "ckpt" in name else str(folder))
        )
        assert all(
            np.isfinite(variable.numpy()).all() for variable in model.named_tensors().values()
        )

    model, draw, pieces = Bert(weight_files.config(), SPAN), random.Random(1), io.BytesIO()
    tensors = {name: variable.numpy() for name, variable in model.named_tensors().items()}
    whole = made(weights.copied(model))
    parts = made(
        lambda folder: weight_files.write_hf(folder, load(whole["model.safetensors"]), shards=2)
    )
    old = made(
        lambda folder: weight_files.write_tf1(folder / "bert_model.ckpt", tensors, moments=False)
    )
    del old["checkpoint"]
    configurations = {
        "config.json": whole.pop("config.json"),
        "bert_config.json": WORDS["bert_config.json"],
    }
    texts = [
        " ".join(draw.choices(("the", "cat", "dogs", "ran", "보다", "saw"), k=9))
        for _ in range(300)
    ]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=pieces,
        vocab_size=40,
        minloglevel=3,
        hard_vocab_limit=False,
        control_symbols=SPECIAL_TOKENS[2:],
        **CONTROLS,
    )
    saved = made(
        lambda folder: tokenizer.load(spm_model_file=f"{folder}/m").save(folder),
        m=pieces.getvalue(),
    )
    saved = {name: data for name, data in saved.items() if name.endswith("json")}
    words = {name: data for name, data in WORDS.items() if "bert" not in name}
    return [
        Reader("configuration", configurations, read_configuration, 10),
        Reader("vocab.txt", {"vocab.txt": WORDS["vocab.txt"]}, read_tokenizer, 4),
        Reader("folder of words", words, read_tokenizer, 6),
        Reader("folder of pieces", saved, read_tokenizer, 4),
        Reader("SentencePiece", {"a.model": pieces.getvalue()}, read_tokenizer, 2),
        *(
            Reader(*each, read_weights, 2)
            for each in (("safetensors", whole), ("in parts", parts), ("TF1", old))
        ),
    ]


LABELLED = {
    "a.csv": (
        b'text,more,label\nthe cat sat,a dog,yes\n"he said ""no"", twice\nthen",x,no\nfoxes,,yes\n'
    ),
    "a.tsv": (
        'text\tmore\tlabel\nthe cat sat\ta dog\tyes\nhe said "no"\tx\tno\nÉmile\t\tyes\n'.encode()
    ),
    "a.jsonl": as_lines(
        {"text": "cat", "label": "yes", "id": 1}, {"text": "he \u2603", "label": 3}
    ),
    "number.csv": b"text,more,label\na cat,a dog,1.5\na fox,b,-2\nb,c,3e-1\n",
    "number.jsonl": as_lines({"text": "a", "label": 1.5}, {"text": "c", "label": -2}),
    "CoLA/train.tsv": b"gj04\t1\t\tThe cat sat.\ngj04\t0\t*\tSat cat the.\nks08\t1\t\tFoxes ran.\n",
    "MRPC/train.tsv": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tA.\tOne.\n".encode()
    ),
}


def read_classifier(folder, name):
    is_numeric = "number" in name
    if "/" in name:
        texts = read_glue(name.split("/")[0].lower(), folder, "train")
    else:
        texts = read_own(folder / name, regression=is_numeric)
    assert all(map(math.isfinite, texts.labels)) if is_numeric else all(texts.labels)
    assert 0 < len(texts.first) == len(texts.ids) == len(texts.labels)


TAGGED = {
    "a.conll": (
        (
            "-DOCSTART- O\n\nThe DT O\nÉmile NN B-PER\nNoether NN I-PER\n\n\nin IN O\n"
            "Utah NN B-LOC\n"
        ).encode()
    ),
    "comments.conll": b"# id 1\tx=y\nUtah _ B-LOC\n## _ O\n# _ O\n\n# text = a b\nin _ O\n",
    "characters.tsv": "## 주석\n서\tB-LC\n울\tI-LC\n \tO\n갔\tO\n\n나\tO\n".encode(),
    "a.jsonl": as_lines(
        {"tokens": ["in", "Utah"], "ner_tags": ["O", "S-LOC"]}, {"tokens": ["a"], "tags": ["O"]}
    ),
}


def tagged_parquet():
    table = pa.table({"tokens": [["in", "Utah"], ["a"]] * 40, "tags": [["O", "S-LOC"], ["O"]] * 40})
    pa.parquet.write_table(table, file := io.BytesIO(), row_group_size=20)
    return file.getvalue()


def read_tagged(folder, name):
    source = tagged.Source(FileSettings(train_file=str(folder / name)), "train")
    for each in tagged.read(source, characters=name.startswith("characters")):
        assert 0 < len(each.words) == len(each.tags)
        assert all(each.words)
        assert all(tag == "O" or tagged.parted(tag)[1] for tag in each.tags)


def read_squad(folder, name):
    is_cached, is_training, is_v2 = name.startswith("cache/"), "dev" not in name, "v2" in name
    source = source_of(folder / ("train.json" if is_cached else name), is_training)
    examples = read(source, is_v2)
    for question in examples.questions:
        context = examples.paragraphs[question.paragraph]
        assert context.strip()
        for text, start in question.answers[: is_training and not question.is_impossible]:
            assert 0 <= start <= start + len(text) <= len(context)
    if not is_cached and zlib.crc32((folder / name).read_bytes()) % 8:
        return None  # building windows takes ten times as long as reading
    lengths = {"max_seq_length": 24, "doc_stride": 6, "max_query_length": 8}
    settings = WindowSettings(**lengths, version_2_with_negative=is_v2)
    words = tokenizer.load(str(folder / "vocab.txt"))
    os.environ["RINGBERT_CACHE"] = str(folder / "cache")
    tokenization = Tokenization(World(), Unwritten(), words, allow_unknown=True)
    tables = open_set(SpanTask(settings), source, tokenization).tables
    windows, paragraphs = tables["windows"], tables["paragraphs"]
    start, end = windows.column("start_position"), windows.column("end_position")
    assert ((start <= end) & (end < np.diff(windows.column("input_ids")[1]))).all()
    return pickle.dumps([rows.take(np.arange(len(rows))) for rows in (windows, paragraphs)])


def squad_readers():
    entries = [
        *make_entries(4, 0),
        ("émile saw 3 foxes , and \u202f two hares", "who ?", "mile", 1),
    ]
    v1, v2 = (as_json(squad_json(entries, **more)) for more in ({}, {"is_impossible": False}))
    files = {"train-v1.json": v1, "dev-v1.json": v1, "train-v2.json": v2, "dev-v2.json": v2}
    others = {"vocab.txt": WORDS["vocab.txt"], "train.json": v1}
    cache = made(lambda folder: read_squad(folder, "cache/"), **others)
    return [
        Reader("SQuAD", files, read_squad, 10, others),
        Reader("cached windows", cache, read_squad, 4, others, is_exact=True, heals=True),
    ]


METRICS = [{"step": n, "rows": 64 * n, "loss": 4 - n / 20, "time": 1.5} for n in (1, 20, 40)]
METRICS += [{"step": 20, "rows": 1280, "eval_f1": 0.5, "eval_loss": 1.5}]
PLAN = {"steps": 40, "size": 2, "global_batch_size": 64, "learning_rate": 1e-3, "rows": 100}
RUN = {
    "run.json": as_json({"config": {"seed": 42}, "plan": PLAN, "environment": {"command": ["x"]}}),
    "metrics.jsonl": as_lines(*METRICS),
    "result.json": as_json({"scores": {"exact_match": 81.25, "f1": 88.5}, "seconds": 5}),
}


def read_manifest(folder, name):
    try:
        manifest.check_intact(folder)
    except InputError as error:  # its callers name the folder
        raise InputError(f"{folder}: {error}") from error


def read_run(folder, name):
    Run(folder, World()).rewind_metrics(2560)
    write_page([folder])


def run_readers():
    state = {"state.json": as_json({"position": 640})}
    sealed = made(lambda folder: manifest.seal(folder, 640), **state)
    return [Reader("manifest", sealed, read_manifest, 5, state), Reader("run", RUN, read_run, 7)]


def readers(names=()):
    """Those of these names, or all."""
    known = [*run_readers(), *corpus_readers(), *model_readers(), *squad_readers()]
    return [reader for reader in known if not names or reader.name in names]
