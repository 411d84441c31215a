"""A tiny BERT's files, a tokenizer of letters, and generated texts whose label a tiny model soon
learns.

The label of a text is the kind of word, of three, that prevails in it.
"""

import json
import random
from pathlib import Path
from typing import NamedTuple

WORDS = {
    "animal": ["bear", "cat", "cow", "crow", "dog", "fox", "goat", "hare"],
    "colour": ["blue", "brown", "green", "grey", "pink", "red", "violet", "white"],
    "tool": ["axe", "drill", "hammer", "pliers", "rake", "saw", "spade", "wrench"],
}
KINDS = tuple(WORDS)
ALL_WORDS = [word for kind in WORDS.values() for word in kind]
FILLING = ["a", "and", "by", "in", "near", "of", "on", "the", "two", "with"]
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# No dropout, and wider initial values than the published 0.02: it learns in a few dozen steps.
BERT_CONFIG = {
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 64,
    "initializer_range": 0.12,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    "num_attention_heads": 2,
    "type_vocab_size": 2,
}


def letters_tokenizer(folder):
    """A tokenizer whose tokens are single letters and digits: no real vocabulary is needed."""
    from bert.text import tokenizer

    letters, digits = "abcdefghijklmnopqrstuvwxyz", "0123456789"
    inner = [f"##{letter}" for letter in letters + digits]
    words = [*SPECIAL_TOKENS, *letters, *"?.,'()", *inner, *digits]
    return tokenizer.load(write_lines(folder / "letters.txt", *words))


def write_lines(path, *lines):
    """A file of these lines; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return str(path)


class Example(NamedTuple):
    first: str
    second: str
    kind: str


def write_vocabulary(folder, *words, special=SPECIAL_TOKENS):
    """Writes a WordPiece vocabulary: the special tokens and these words."""
    return Path(write_lines(folder / "vocab.txt", *special, *words))


def write_model(folder, num_layers=2):
    """vocab.txt (whole words and letters) and bert_config.json."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,"
    words = [*letters, *(f"##{letter}" for letter in letters), *FILLING[1:], *ALL_WORDS]
    write_vocabulary(folder, *words)
    sizes = {"vocab_size": len(SPECIAL_TOKENS) + len(words), "num_hidden_layers": num_layers}
    (folder / "bert_config.json").write_text(json.dumps(BERT_CONFIG | sizes))


def make_examples(number, seed):
    """Pairs of texts, of 4 to 18 words together; 4 of them or more are of the kind that is the
    label, 2 at most of each other kind."""
    chance = random.Random(seed)
    made = []
    for _ in range(number):
        kind = chance.choice(KINDS)
        words = chance.choices(WORDS[kind], k=chance.randint(4, 6))
        for other in KINDS:
            words += chance.choices(WORDS[other], k=chance.randint(0, 2) * (other != kind))
        words += chance.choices(FILLING, k=chance.randint(0, 8))
        chance.shuffle(words)
        cut = chance.randint(1, len(words) - 1)
        made.append(Example(" ".join(words[:cut]), " ".join(words[cut:]), kind))
    return made
