"""Tagged sentences that a tiny model soon learns: an entity is a word of the first half of its
kind's words, and up to two of the second half."""

import json
import random

from harness import texts
from harness.classifier_runs import model_flags


def sentences(number, seed, longest=14):
    """Lists of words and their tags."""
    chance, made = random.Random(seed), []
    for _ in range(number):
        rows = []
        for _ in range(chance.randint(2, longest // 2)):
            kind = chance.choice(["animal", "tool"])
            first = chance.choice(texts.WORDS[kind][:4])
            more = chance.choices(texts.WORDS[kind][4:], k=2)
            rows += [(word, "O") for word in chance.choices(texts.FILLING, k=chance.randint(0, 3))]
            rows += [(first, f"B-{kind}")]
            rows += [(word, f"I-{kind}") for word in more[: chance.randint(0, 2)]]
        made.append(rows)
    return made


def write_data(folder):
    """train.conll, dev.conll, test.jsonl and a model's files."""
    texts.write_model(folder, num_layers=1)
    dev = sentences(60, 2, longest=28)
    for name, tagged in ("train", sentences(240, 1)), ("dev", dev):
        blocks = ("".join(f"{word}\t{tag}\n" for word, tag in rows) for rows in tagged)
        (folder / f"{name}.conll").write_text("\n".join(blocks))
    lines = [json.dumps({"tokens": [word for word, _ in rows]}) for rows in dev]
    texts.write_lines(folder / "test.jsonl", *lines)
    return folder


def flags(data):
    files = (
        f"--train_file={data}/train.conll",
        f"--dev_file={data}/dev.conll",
        f"--predict_file={data}/test.jsonl",
    )
    return [*files, *model_flags(data), "--doc_stride=12"]
