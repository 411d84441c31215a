"""What `bert-bench start` trains on: a model without weights and texts of made-up words, or the user's own."""

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ringbase.errors import InputError
from ringbase.files import write_json
from ringbase.settings import LONGEST_ROW, MOST_ROWS, Settings, check_at_least, check_at_most, setting
from tasks.bench.load import VOCABULARY, model_config
from tasks.bench.process import ROOT, last_error
from tasks.bench.settings import ModelSize

PROGRAMS = ("squad", "classifier", "pretraining")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
CONTEXT_WORDS, QUESTIONS_PER_CONTEXT, QUESTION_WORDS = 120, 5, 10  # about as in SQuAD
SENTENCE_WORDS, SENTENCES_PER_DOCUMENT = 20, 10


@dataclass(frozen=True, kw_only=True)
class InputSettings(Settings):
    """The model and the data of the measured programs."""

    model_size: ModelSize = setting("minilm", "published model size, without trained weights", "model")
    model: str | None = setting(
        None, "hub name or folder of a model: configuration, vocabulary and weights, instead of --model_size",
        "model",
    )  # fmt: skip
    train_file: str | None = setting(
        None, "SQuAD JSON for squad", "data", shown_default="questions of made-up words"
    )
    data_dir: str | None = setting(
        None, "folder with the files of --task_name for classifier", "data", shown_default="texts of made-up words"
    )
    task_name: str | None = setting(None, "task of bert-classifier whose files are in --data_dir", "data")
    num_examples: int = setting(10_000, "number of made-up questions, labelled texts and sentences", "data")
    seq_length: int | None = setting(
        None, "maximum number of tokens per row", "data", shown_default="384 for squad, else 128"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 2 * SENTENCES_PER_DOCUMENT, "num_examples")  # a next sentence needs two documents
        check_at_least(self, 8, "seq_length")
        check_at_most(self, MOST_ROWS, "num_examples")
        check_at_most(self, LONGEST_ROW, "seq_length")
        for flag in ("train_file", "data_dir"):
            if getattr(self, flag) and not self.model:
                raise ValueError(f"--{flag} needs --model, which has a vocabulary for its texts")
        if bool(self.data_dir) != bool(self.task_name):
            raise ValueError("--data_dir and --task_name need each other: give both")

    def length_of(self, program: str) -> int:
        """The maximum number of tokens per row."""
        return self.seq_length or (384 if program == "squad" else 128)


def write_inputs(settings: InputSettings, program: str, folder: Path) -> list[str]:
    """Writes what the flags leave out into `folder`. Returns the program's flags for its model and data.

    Raises InputError: the corpus for bert-pretraining cannot be built.
    """
    length = settings.length_of(program)
    vocabulary, configuration = [f"--model={settings.model}"], [f"--max_seq_length={length}"]
    if not settings.model:
        vocabulary = [f"--vocab_file={write_vocabulary(folder)}"]
        config = model_config(settings.model_size, max(512, length)).to_dict()
        write_json(folder / "bert_config.json", config, sync=False)
        configuration.append(f"--bert_config_file={folder}/bert_config.json")
    if program == "squad":
        source = settings.train_file or write_squad(folder, settings.num_examples)
        data = [f"--train_file={source}", f"--max_query_length={min(64, length - 4)}"]
    elif program == "pretraining":
        build = [*vocabulary, f"--max_seq_length={length}"]
        data = [f"--input_file={build_corpus(folder, settings.num_examples, build)}/*.arrow"]
    elif settings.data_dir:
        data = [f"--data_dir={settings.data_dir}", f"--task_name={settings.task_name}"]
    else:
        data = [f"--train_file={write_labelled(folder, settings.num_examples)}"]
    return [*vocabulary, *configuration, *data]


def write_vocabulary(folder: Path) -> Path:
    """A WordPiece vocabulary of the published size."""
    path = folder / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in (*SPECIAL_TOKENS, ".", *words())))
    return path


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
    squad = {"version": "1.1", "data": [{"title": "made-up words", "paragraphs": paragraphs}]}
    path = folder / "train.json"
    write_json(path, squad, sync=False)
    return path


def write_labelled(folder: Path, num_texts: int) -> Path:
    """Texts with one of two labels, as JSON lines."""
    rows = enumerate(texts(num_texts, SENTENCE_WORDS))
    lines = [json.dumps({"text": text, "label": ("no", "yes")[number % 2]}) for number, text in rows]
    path = folder / "train.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def build_corpus(folder: Path, num_sentences: int, flags: list[str]) -> Path:
    """The folder of shards that bert-corpus builds with these flags."""
    rows = enumerate(texts(num_sentences, SENTENCE_WORDS), 1)
    text = "".join(f"{sentence} .\n" + "\n" * (n % SENTENCES_PER_DOCUMENT == 0) for n, sentence in rows)
    (folder / "text.txt").write_text(text)
    command = ["build", f"--input_file={folder}/text.txt", f"--output_dir={folder}/shards", *flags]
    done = subprocess.run(
        [sys.executable, "-m", "tasks.corpus", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise InputError(f"the corpus for bert-pretraining cannot be built: {last_error(done)}")
    return folder / "shards"
