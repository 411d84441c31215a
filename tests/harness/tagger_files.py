"""Tagged sentences that a tiny model soon learns: an entity is a word of the first half of its
kind's words, and up to two of the second half."""

import json
import random

from harness import texts

Tagged = list[tuple[str, str]]  # words and their tags


def sentences(number, seed, longest=14):
    chance, made = random.Random(seed), list[Tagged]()
    for _ in range(number):
        rows: Tagged = []
        for _ in range(chance.randint(2, longest // 2)):
            kind = chance.choice(["animal", "tool"])
            first = chance.choice(texts.WORDS[kind][:4])
            more = chance.choices(texts.WORDS[kind][4:], k=2)
            rows += [(word, "O") for word in chance.choices(texts.FILLING, k=chance.randint(0, 3))]
            rows += [
                (first, f"B-{kind}"),
                *((word, f"I-{kind}") for word in more[: chance.randint(0, 2)]),
            ]
        made.append(rows)
    return made


def write_data(folder):
    """train.conll, dev.conll, test.jsonl and a model's files; `flags` of them."""
    texts.write_model(folder, num_layers=1)
    train, dev = sentences(240, 1), sentences(60, 2, longest=28)
    for name, tagged in ("train", train), ("dev", dev):
        blocks = ("".join(f"{word}\t{tag}\n" for word, tag in rows) for rows in tagged)
        (folder / f"{name}.conll").write_text("\n".join(blocks))
    texts.write_lines(
        folder / "test.jsonl", *(json.dumps({"tokens": [word for word, _ in rows]}) for rows in dev)
    )
    return flags(folder)


def flags(data):
    files = (
        "train_file=train.conll",
        "dev_file=dev.conll",
        "predict_file=test.jsonl",
        "vocab_file=vocab.txt",
    )
    named = [
        f"--{each.replace('=', f'={data}/')}"
        for each in (*files, "bert_config_file=bert_config.json")
    ]
    return [*named, "--max_seq_length=32", "--doc_stride=12"]
