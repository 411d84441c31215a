"""What `bert-doctor` trains on: a model without weights, questions of made-up words."""

import itertools
import random
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
    """Writes a configuration, a WordPiece vocabulary of the published size and a SQuAD file of random words, the
    same in every call. Returns the values of bert-squad's flags that name them."""
    made = itertools.chain.from_iterable(itertools.product(SYLLABLES, repeat=length) for length in (1, 2, 3))
    words = ["".join(word) for word in itertools.islice(made, VOCABULARY - len(SPECIAL_TOKENS) - 1)]
    chance, paragraphs = random.Random(0), []
    for first in range(0, num_questions, QUESTIONS_PER_CONTEXT):
        context, qas = chance.choices(words, k=CONTEXT_WORDS), []
        for number in range(first, min(first + QUESTIONS_PER_CONTEXT, num_questions)):
            question = " ".join(chance.choices(words, k=QUESTION_WORDS))
            answers = [{"text": context[0], "answer_start": 0}]
            qas.append({"id": str(number), "question": question, "answers": answers})
        paragraphs.append({"context": " ".join(context), "qas": qas})
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "bert_config.json", config.to_dict())
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in (*SPECIAL_TOKENS, ".", *words)))
    write_json(folder / "train.json", {"version": "1.1", "data": [{"title": "words", "paragraphs": paragraphs}]})
    files = {"bert_config_file": "bert_config.json", "vocab_file": "vocab.txt", "train_file": "train.json"}
    return {flag: str(folder / name) for flag, name in files.items()}
