"""What `bert-bench start` and `bert-doctor` train on: a model without weights, questions of made-up words."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import BertConfig

from ringbase.files import write_json
from tasks.bench.settings import SIZES, VOCABULARY

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
CONTEXT_WORDS, QUESTIONS_PER_CONTEXT, QUESTION_WORDS = 120, 5, 10  # about as in SQuAD


def model_config(size: str, seq_length: int = 512, **others: Any) -> BertConfig:
    """The configuration of a published size."""
    hidden, layers, heads, intermediate = SIZES[size]
    return BertConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=intermediate, max_position_embeddings=max(512, seq_length), **others,
    )  # fmt: skip


def write_inputs(folder: Path, config: BertConfig, num_questions: int) -> dict[str, str]:
    """Writes a configuration, a WordPiece vocabulary of the published size and a SQuAD file. Returns the values of
    bert-squad's flags that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "bert_config.json", config.to_dict())
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in (*SPECIAL_TOKENS, ".", *words())))
    write_json(folder / "train.json", squad_file(num_questions))
    files = {"bert_config_file": "bert_config.json", "vocab_file": "vocab.txt", "train_file": "train.json"}
    return {flag: str(folder / name) for flag, name in files.items()}


def words() -> Iterator[str]:
    """Words of one to three syllables; with the special tokens and a full stop they fill the vocabulary."""
    made = (word for length in (1, 2, 3) for word in itertools.product(SYLLABLES, repeat=length))
    return ("".join(word) for word in itertools.islice(made, VOCABULARY - len(SPECIAL_TOKENS) - 1))


def squad_file(num_questions: int) -> dict[str, Any]:
    """SQuAD's format: random words, the same in every call. The answers are the contexts' first words."""
    chance, known = random.Random(0), list(words())
    paragraphs = []
    for first in range(0, num_questions, QUESTIONS_PER_CONTEXT):
        context = chance.choices(known, k=CONTEXT_WORDS)
        answers = [{"text": context[0], "answer_start": 0}]
        numbers = range(first, min(first + QUESTIONS_PER_CONTEXT, num_questions))
        questions = [" ".join(chance.choices(known, k=QUESTION_WORDS)) for _ in numbers]
        named = zip(map(str, numbers), questions, strict=True)
        qas = [{"id": name, "question": question, "answers": answers} for name, question in named]
        paragraphs.append({"context": " ".join(context), "qas": qas})
    return {"version": "1.1", "data": [{"title": "words", "paragraphs": paragraphs}]}
