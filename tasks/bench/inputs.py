"""What `bert-bench start` and `bert-doctor` train on: a model without weights, and texts of made-up words."""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from transformers import BertConfig

from ringbase.files import write_json
from tasks.bench.settings import SIZES, VOCABULARY
from tasks.bench.worlds import run_module

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
CONTEXT_WORDS, QUESTIONS_PER_CONTEXT, QUESTION_WORDS = 120, 5, 10  # about as in SQuAD
SENTENCE_WORDS, SENTENCES_PER_DOCUMENT = 20, 10


def model_config(size: str, seq_length: int = 512, **others: float) -> BertConfig:
    """The configuration of a published size."""
    hidden, layers, heads, intermediate = SIZES[size]
    return BertConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=intermediate, max_position_embeddings=max(512, seq_length), **others,
    )  # fmt: skip


def write_inputs(program: str, size: str, num_examples: int, seq_length: int, folder: Path) -> list[str]:
    """Writes model and data into `folder`. Returns the program's flags for them.

    Raises InputError: the corpus for bert-pretraining cannot be built.
    """
    model = [*write_model(folder, model_config(size, seq_length)), f"--max_seq_length={seq_length}"]
    if program == "squad":
        query = f"--max_query_length={min(64, seq_length - 4)}"
        return [*model, f"--train_file={write_squad(folder, num_examples)}", query]
    if program == "classifier":
        return [*model, f"--train_file={write_labelled(folder, num_examples)}"]
    return [*model, f"--input_file={build_corpus(folder, num_examples, seq_length)}/*.arrow"]


def write_model(folder: Path, config: BertConfig) -> list[str]:
    """Writes a configuration and a WordPiece vocabulary of the published size. Returns the flags for them."""
    write_json(folder / "bert_config.json", config.to_dict(), sync=False)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in (*SPECIAL_TOKENS, ".", *words())))
    return [f"--bert_config_file={folder}/bert_config.json", f"--vocab_file={folder}/vocab.txt"]


def words() -> Iterator[str]:
    """Words of one to three syllables; with the special tokens and a full stop they fill the vocabulary."""
    made = (word for length in (1, 2, 3) for word in itertools.product(SYLLABLES, repeat=length))
    return ("".join(word) for word in itertools.islice(made, VOCABULARY - len(SPECIAL_TOKENS) - 1))


def texts(num_texts: int, num_words: int) -> list[str]:
    """Texts of random words, the same in every call."""
    chance, known = random.Random(0), list(words())
    return [" ".join(chance.choices(known, k=num_words)) for _ in range(num_texts)]


def write_squad(folder: Path, num_questions: int) -> Path:
    """A SQuAD file. The answers are the contexts' first words."""
    questions = iter(enumerate(texts(num_questions, QUESTION_WORDS)))
    paragraphs = []
    for context in texts(-(-num_questions // QUESTIONS_PER_CONTEXT), CONTEXT_WORDS):
        answers = [{"text": context.partition(" ")[0], "answer_start": 0}]
        few = itertools.islice(questions, QUESTIONS_PER_CONTEXT)
        qas = [{"id": str(number), "question": question, "answers": answers} for number, question in few]
        paragraphs.append({"context": context, "qas": qas})
    path = folder / "train.json"
    write_json(path, {"version": "1.1", "data": [{"title": "words", "paragraphs": paragraphs}]}, sync=False)
    return path


def write_labelled(folder: Path, num_texts: int) -> Path:
    """Texts with one of two labels, as JSON lines."""
    rows = enumerate(texts(num_texts, SENTENCE_WORDS))
    lines = [json.dumps({"text": text, "label": ("no", "yes")[number % 2]}) for number, text in rows]
    path = folder / "train.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def build_corpus(folder: Path, num_sentences: int, seq_length: int) -> Path:
    """The folder of shards that bert-corpus builds with the vocabulary of `write_model`."""
    rows = enumerate(texts(num_sentences, SENTENCE_WORDS), 1)
    text = "".join(f"{sentence} .\n" + "\n" * (n % SENTENCES_PER_DOCUMENT == 0) for n, sentence in rows)
    (folder / "text.txt").write_text(text)
    files = [
        f"--input_file={folder}/text.txt",
        f"--output_dir={folder}/shards",
        f"--vocab_file={folder}/vocab.txt",
    ]
    run_module("bert-corpus build", ["tasks.corpus", "build", *files, f"--max_seq_length={seq_length}"])
    return folder / "shards"
