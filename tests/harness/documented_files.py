"""A folder with small files and models that have the names which the documentation gives them."""

import json
import random
import shutil

from harness import squad_files, tagger_files, texts
from harness.classifier_runs import write_rows
from harness.models import save_model
from harness.parsing import ROOT

from ringbase.files import write_json

# The names that stand for a published model.
PUBLISHED = """google-bert/bert-base-uncased google-bert/bert-base-cased minilm MINILM
    MINILM_FOLDER FOLDER"""


def write_world(folder):
    """Writes the files and models that command lines of the documentation name, all of them
    small."""
    model = save_model(
        folder / "made", "pretraining", max_position_embeddings=512, num_hidden_layers=4
    )
    for name in PUBLISHED.split():
        shutil.copytree(model, folder / name)
    write_json(
        folder / "google-bert/bert-base-cased/tokenizer_config.json", {"do_lower_case": False}
    )
    for name in ("bert-base-uncased.txt", "bert-base-multilingual-cased.txt"):
        shutil.copy(folder / "made/source/vocab.txt", folder / name)
    for name in ("tiny.json", "small.json", "MODEL.json"):
        shutil.copy(folder / "made/source/bert_config.json", folder / name)
    shutil.copytree(ROOT / "configs", folder / "configs")
    _write_questions(folder)
    _write_labels(folder)
    _write_tags(folder)
    _write_pairs(folder)
    _write_search(folder)
    _write_texts(folder)


def _write_questions(folder):
    for name, number in (("train-v1.1.json", 40), ("dev-v1.1.json", 12)):
        squad_files.write_squad(folder / name, squad_files.make_entries(number, number))
    (folder / "data").mkdir()
    for name in ("vocab.txt", "bert_config.json"):
        shutil.copy(folder / "made/source" / name, folder / "data")
    for name, source in (("train", "train-v1.1"), ("dev", "dev-v1.1")):
        shutil.copy(folder / f"{source}.json", folder / f"data/{name}.json")
    write_json(folder / "pytorch.json", {"scores": {"f1": 88.1}})
    (folder / "context.txt").write_text("the cat sat on a red rake\n")


def _write_labels(folder):
    columns = ["review", "stars", "comment", "toxic", "insult", "threat", "text", "label"]
    for name, number in (("train", 60), ("dev", 20), ("reviews", 80)):
        rows = []
        for example in texts.make_examples(number, number):
            flags = [int(kind == example.kind) for kind in texts.KINDS]
            text = example.first
            rows.append([text, example.kind, text, *flags, text, example.kind])
        write_rows(folder / f"{name}.csv", columns, rows, ",")
    new = [example.first for example in texts.make_examples(6, 3)]
    for name in ("new_reviews.txt", "texts.txt"):
        texts.write_lines(folder / name, *new)

    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    for name, number in (("train", 60), ("dev", 20), ("test", 20)):
        examples = texts.make_examples(number, number)
        pairs = [["01"[e.kind == "animal"], "1", "2", e.first, e.second] for e in examples]
        tests = [["0", *pair[1:]] for pair in pairs]
        rows = tests if name == "test" else pairs
        names = ["index", *header[1:]] if name == "test" else header
        write_rows(folder / f"glue_data/MRPC/{name}.tsv", names, rows)
        sentences = [[e.first, "01"[e.kind == "animal"]] for e in examples]
        write_rows(folder / f"SST-2/{name}.tsv", ["sentence", "label"], sentences)
    for name, number in (("train", 60), ("test", 20)):
        rows = [[n, e.first, n % 2] for n, e in enumerate(texts.make_examples(number, number))]
        for place in (folder, folder / "nsmc"):
            write_rows(place / f"ratings_{name}.txt", ["id", "document", "label"], rows)


def _write_tags(folder):
    tagger_files.write_data(folder / "made/tags")
    for name in ("train.conll", "dev.conll"):
        shutil.copy(folder / "made/tags" / name, folder / name)
    shutil.copy(folder / "dev.conll", folder / "test.conll")
    for name in ("train", "dev"):  # of characters
        lines = [f"{letter}\t{'B-PS' if letter == 'c' else 'O'}" for letter in "the cat sat"]
        texts.write_lines(folder / f"{name}.tsv", *(20 * [*lines, ""]))


def _write_pairs(folder):
    for name, number in (("pairs", 300), ("train", 300), ("dev", 20), ("docs", 20)):
        lines = [
            json.dumps({"anchor": example.first, "positive": example.second})
            for example in texts.make_examples(number, number)
        ]
        texts.write_lines(folder / f"{name}.jsonl", *lines)


def _write_search(folder):
    """Judged searches in the form of BEIR, and what comes of a training with hard negatives."""
    corpus, queries, judged = [], [], ["query-id\tcorpus-id\tscore"]
    rows = []
    for number, example in enumerate(texts.make_examples(40, 4)):
        corpus.append({"_id": f"d{number}", "title": "", "text": example.second})
        queries.append({"_id": f"q{number}", "text": example.first})
        judged.append(f"q{number}\td{number}\t1")
        rows.append([example.first, example.second, number % 2])
    for name, lines in (("corpus", corpus), ("queries", queries)):
        texts.write_lines(folder / f"scifact/{name}.jsonl", *map(json.dumps, lines))
    texts.write_lines(folder / "scifact/qrels/test.tsv", *judged)
    for name in ("documents", "more"):
        texts.write_lines(folder / f"{name}.jsonl", *(json.dumps(each) for each in corpus))
    mined = [
        {"query": query["text"], "pos": [document["text"]], "neg": [other["text"]]}
        for query, document, other in zip(queries, corpus, reversed(corpus), strict=True)
    ]
    texts.write_lines(folder / "first/mined.jsonl", *map(json.dumps, mined))
    for name in ("judged", "judged_dev"):
        named = [
            json.dumps(dict(zip(("question", "document", "relevance"), row, strict=True)))
            for row in rows
        ]
        texts.write_lines(folder / f"{name}.jsonl", *named)


def _write_texts(folder):
    chance = random.Random(1)
    new = ["".join(chance.choices("abdeiklmnorstu", k=7)) for _ in range(150)]
    words = [*texts.ALL_WORDS, *new]

    def document():
        return [" ".join(chance.choices(words, k=9)) for _ in range(8)]

    for name in ("text/a.txt", "train/a.txt", "held_out/a.txt", "train.txt"):
        lines = [line for _ in range(40) for line in (*document(), "")]
        texts.write_lines(folder / name, *lines)
