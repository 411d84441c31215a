"""The code of the documentation: its blocks, and the command lines in them."""

import importlib
import re
import shlex
import sys
from typing import NamedTuple

from harness.parsing import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
make_site = importlib.import_module("make_site")  # no package

# The blocks that tests/programs/test_documented.py runs, by their pages and how they begin.
RUN = {
    "README.md": [
        "bert-launch -np 2 -- bert-squad",
        "import ringbert",
        "bert-classifier --train_file train.csv",
    ],
    "docs/continuing.md": ["MODEL=google-bert", "bert-corpus vocab --extend"],
    "docs/languages.md": ["bert-corpus vocab --input_file train.txt --kind unigram"],
    "docs/running.md": [
        "bert-report squad_output",
        "bert-classifier --model published",
        "bert-classifier --train_file train.csv --dev_file dev.csv --text_column comment",
        "bert-launch -np 2 -- bert-tagger",
        "bert-launch -np 2 -- bert-embedder --train_file pairs.jsonl",
        "bert-launch -np 2 -- bert-embedder --model search/model",
        "bert-launch -np 2 -- bert-features",
    ],
    "docs/python.md": [
        "import ringbert\n\nanswers",
        "bert-classifier --do_predict",
        "bert-export",
        "import tensorflow as tf",
    ],
}
# What stands for the three dots of a command line.
MORE = {
    "bert-squad": "--do_train --train_file train-v1.1.json --output_dir squad_more",
    "bert-classifier": "--do_train --do_eval --train_file train.csv --dev_file dev.csv"
    " --model minilm --output_dir reviews_more",
    "bert-embedder": "--train_file train.jsonl --model minilm --output_dir search_more",
    "bert-pretraining": "--do_train --input_file shards/*.arrow --model minilm"
    " --output_dir pretrained_more",
}
VARIABLES = {"$MODEL": "minilm", "$PWD": ".", "%a": "1"}  # of blocks, the shell, Slurm
PROGRAM = re.compile(r"bert-(?!launch)[a-z]+|run_squad\.py|benchmarks\.\w+")


def completed(command):
    """A command line with flags for its three dots, before those that it has; that of a trial of
    bert-search stays as it is."""
    program, *argv = command
    if "…" not in argv or program == "bert-search":
        return [program, *argv]
    more = MORE.get(program, "").split()
    return [program, *more, *(word for word in argv if word != "…")]


class Block(NamedTuple):
    file: str
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Line(NamedTuple):
    """A command line: its words, and the file that is its standard input."""

    words: list[str]
    reads: str | None = None

    def command(self):
        """The program of ours that it starts, with its arguments, and flags for three dots before
        those that it has. What starts it is left out. None: it starts none."""
        for number, word in enumerate(self.words):
            if PROGRAM.fullmatch(word):
                return completed(self.words[number:])
        return None

    def launcher(self):
        """The arguments of bert-launch; None: it is not there."""
        if "bert-launch" in self.words:
            return self.words[self.words.index("bert-launch") + 1 :]
        return None


def blocks():
    """Those of all pages, in their order."""
    found = []
    for file in make_site.PAGES:
        if file.endswith(".md"):
            for first, code in make_site.blocks((ROOT / file).read_text()):
                found.append(Block(file, first + 1, make_site.language_of(code), code))
    return found


def lines_of(code):
    """The command lines of a shell's block, those of a pipe one after the other."""
    found = []
    for line in code.replace("\\\n", " ").splitlines():
        for name, value in VARIABLES.items():
            line = line.replace(name, value)
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>&")
        lexer.whitespace_split = True
        words: list[str] = []
        reads = None
        for word in lexer:
            if re.fullmatch("[|&]+", word):
                found.append(Line(words))
                words = []
            elif word == ">":  # the file has no reader here
                next(lexer)
            elif word == "<":
                reads = next(lexer)
            else:
                words.append(word)
        if words:
            found.append(Line(words, reads))
    return found
