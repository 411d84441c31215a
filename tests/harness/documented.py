"""The code of the documentation: its blocks, the command lines in them, and a folder with small
files and models that have the names which the documentation gives them."""

import csv
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from harness import squad_files, tagger_files, texts
from harness.classifier_runs import write_rows
from harness.models import save_model
from harness.parsing import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import make_site

# Where a name of the documentation stands for a model of the reader's.
MODELS = """google-bert/bert-base-uncased google-bert/bert-base-cased minilm MINILM_FOLDER MINILM
FOLDER pretrained/model"""
PLACES = {"$MODEL": "minilm"}


class Block(NamedTuple):
    file: str
    line: int
    language: str
    code: str

    def __str__(self):
        return f"{self.file}:{self.line}"


def blocks():
    """Those of all pages, in their order."""
    found = []
    for file in make_site.PAGES:
        if file.endswith(".md"):
            for first, code in make_site.blocks((ROOT / file).read_text()):
                found.append(Block(file, first + 1, make_site.language_of(code), code))
    return found


def lines_of(code):
    """The words of each command line of a shell's block, without comments."""
    found = []
    for line in code.replace("\\\n", " ").splitlines():
        for name, value in PLACES.items():
            line = line.replace(name, value)
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|<>&")
        lexer.whitespace_split = True
        words = list(lexer)
        if words:
            found.append(words)
    return found


def write_world(folder):
    """Writes the files and models that commands of the documentation name."""
    model = save_model(folder / "made", "classifier")
    print(model)
