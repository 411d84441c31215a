"""Makes a small SQuAD v1.1 data set from the documentation that comes with every Python, without a
network.

    python scripts/make_docs_squad.py OUTPUT_DIR [--seed N]

writes `train.json`, `dev.json`, `vocab.txt` and `bert_config.json`, from which `bert-squad` trains
a two-layer BERT from scratch in a few minutes on a CPU.

A context lists three to five functions of the standard library, one per line, as `NAME: SUMMARY.`.
The question is `what does NAME do?`, and the answer is that function's line without its full stop.
Each context has questions about two of its functions, so that the answer depends on the question.
In train.json names and summaries are paired at random: a model has to look the name up, since
learning which summary belongs to it does not help. In dev.json every name stands beside its true
summary, and no summary occurs in train.json (the names do).

The summaries come from the library's source files, which are parsed and never run. The same seed
and the same Python installation give the same files.
"""

import argparse
import ast
import contextlib
import random
import re
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers.pre_tokenizers import BertPreTokenizer

from ringbase.files import write_json, write_text

# Tests, and parts that not every distribution of Python ships.
SKIPPED_FOLDERS = frozenset(
    {
        "test",
        "tests",
        "idle_test",
        "idlelib",
        "lib2to3",
        "distutils",
        "tkinter",
        "turtledemo",
        "ensurepip",
    }
    | {"site-packages", "dist-packages"}
)
NAME = re.compile(r"[a-z]{2,14}")
SUMMARY = re.compile(r"[A-Z][a-z]*( [A-Za-z0-9,'-]+)+")
# A line has at least six tokens with its name, so with --max_answer_length 16 an answer rarely
# spans two lines.
SUMMARY_WORDS = range(4, 8)
ENTRIES = (3, 4, 5)
QUESTIONS_PER_CONTEXT = 2
NUM_TRAIN_QUESTIONS = 12000
NUM_DEV_QUESTIONS = 1000
DEV_FRACTION = 0.2
MIN_FUNCTIONS = 300

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MIN_WORD_COUNT = 2
NUM_PIECES = 400

# The published initializer_range of 0.02 is meant for a width of 768. 0.09 is about 1 / sqrt(128);
# with it, a model this small starts to learn sooner. There is no dropout because it is trained for
# very few steps.
BERT_CONFIG = {
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 128,
    "initializer_range": 0.09,
    "intermediate_size": 512,
    "max_position_embeddings": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
}

Entry = tuple[str, str]  # a function's name and its summary


def summary_of(docstring: str) -> str:
    """Returns the first sentence of a docstring, on one line and without its full stop."""
    first_paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[a-z])\.(?: |$)", first_paragraph)[0]


def documented_functions(root: Path) -> list[Entry]:
    """Returns the sorted names and summaries of the functions under `root` that have a short, plain
    summary.

    Each summary occurs once, with the first of the names that share it.
    """
    name_of: dict[str, str] = {}
    paths = [
        path
        for path in sorted(root.rglob("*.py"))
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts)
    ]
    for path in paths:
        with warnings.catch_warnings(), contextlib.suppress(SyntaxError, UnicodeDecodeError):
            warnings.simplefilter("ignore")
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and NAME.fullmatch(
                    node.name
                ):
                    summary = summary_of(ast.get_docstring(node) or "")
                    if SUMMARY.fullmatch(summary) and len(summary.split()) in SUMMARY_WORDS:
                        name_of.setdefault(summary, node.name)
    return sorted((name, summary) for summary, name in name_of.items())


def paragraph(entries: list[Entry], paragraph_id: str, rng: random.Random) -> dict:
    """Returns one SQuAD paragraph that lists `entries` and asks about QUESTIONS_PER_CONTEXT of
    them."""
    lines = [f"{name}: {summary}." for name, summary in entries]
    starts = [sum(len(line) + 1 for line in lines[:i]) for i in range(len(lines))]
    qas = []
    for index in rng.sample(range(len(entries)), QUESTIONS_PER_CONTEXT):
        name, summary = entries[index]
        answer = {"text": f"{name}: {summary}", "answer_start": starts[index]}
        question = f"what does {name} do?"
        qas.append({"id": f"{paragraph_id}-{index}", "question": question, "answers": [answer]})
    return {"context": "\n".join(lines), "qas": qas}


def make_data(entries: list[Entry], seed: int) -> tuple[dict, dict]:
    """Returns the training and the development set, in SQuAD v1.1's format."""
    rng = random.Random(seed)
    shuffled = rng.sample(entries, len(entries))
    num_dev = int(len(entries) * DEV_FRACTION)
    dev_entries, train_entries = shuffled[:num_dev], shuffled[num_dev:]
    names = sorted({name for name, _ in entries})
    summaries = [summary for _, summary in train_entries]

    def random_pairs(size: int) -> list[Entry]:
        return list(zip(rng.sample(names, size), rng.sample(summaries, size), strict=True))

    def true_pairs(size: int) -> list[Entry]:
        chosen: dict[str, Entry] = {}  # entries with different names
        while len(chosen) < size:
            entry = rng.choice(dev_entries)
            chosen.setdefault(entry[0], entry)
        return list(chosen.values())

    def squad(
        title: str, prefix: str, num_questions: int, pairs: Callable[[int], list[Entry]]
    ) -> dict:
        numbers = range(num_questions // QUESTIONS_PER_CONTEXT)
        paragraphs = [
            paragraph(pairs(rng.choice(ENTRIES)), f"{prefix}-{i:05}", rng) for i in numbers
        ]
        return {"version": "1.1", "data": [{"title": title, "paragraphs": paragraphs}]}

    train = squad("Python's standard library, shuffled", "train", NUM_TRAIN_QUESTIONS, random_pairs)
    return train, squad("Python's standard library", "dev", NUM_DEV_QUESTIONS, true_pairs)


def words_of(text: str) -> list[str]:
    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(text.lower())]


def pieces_of(word: str) -> Iterator[str]:
    """Yields the beginnings, middles and ends of a word that are two to five letters long."""
    for start in range(len(word)):
        for end in range(start + 2, min(start + 5, len(word)) + 1):
            yield ("##" if start else "") + word[start:end]


def make_vocabulary(names: list[str], summaries: list[str]) -> list[str]:
    """Returns a WordPiece vocabulary: all names as whole words, the frequent words, and pieces for
    all others.

    It does not use the WordPiece trainer of `tokenizers`, which may give different pieces each
    time.
    """
    counts = Counter(word for summary in summaries for word in words_of(summary))
    frequent = {word for word, count in counts.items() if count >= MIN_WORD_COUNT}
    rare = [word for word in sorted(counts) if word not in frequent]
    saved: Counter[str] = Counter()
    for word in rare:
        for piece in pieces_of(word):
            saved[piece] += len(piece.removeprefix("##")) - 1
    pieces = sorted(saved, key=lambda piece: (-saved[piece], piece))[:NUM_PIECES]
    letters = sorted(set("abcdefghijklmnopqrstuvwxyz0123456789.,:;?!'-").union(*counts))
    question = words_of("what does do?")
    tokens = [
        *letters,
        *("##" + letter for letter in letters),
        *question,
        *names,
        *sorted(frequent),
        *pieces,
    ]
    return list(dict.fromkeys([*SPECIAL_TOKENS, *tokens]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output_dir", type=Path, metavar="OUTPUT_DIR")
    parser.add_argument(
        "--seed", type=int, default=0, help="of split, pairs and contexts (default: 0)"
    )
    arguments = parser.parse_args()
    library = Path(sysconfig.get_path("stdlib"))
    entries = documented_functions(library)
    if len(entries) < MIN_FUNCTIONS:
        sys.exit(
            f"make_docs_squad.py: error: {library} has {len(entries)} functions with a usable"
            f" docstring, {MIN_FUNCTIONS} are needed: run it with a Python whose library is"
            " installed as source files"
        )
    train, dev = make_data(entries, arguments.seed)
    vocabulary = make_vocabulary(
        sorted({name for name, _ in entries}), [summary for _, summary in entries]
    )
    config = dict(sorted({**BERT_CONFIG, "vocab_size": len(vocabulary)}.items()))
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    write_text(arguments.output_dir / "vocab.txt", "".join(f"{token}\n" for token in vocabulary))
    write_json(arguments.output_dir / "bert_config.json", config, indent=2)
    write_json(arguments.output_dir / "dev.json", dev, indent=1)
    write_json(arguments.output_dir / "train.json", train, indent=1)
    print(
        f"{arguments.output_dir}: {NUM_TRAIN_QUESTIONS} training and {NUM_DEV_QUESTIONS} dev"
        f" questions about {len(entries)} functions, {len(vocabulary)} tokens"
    )


if __name__ == "__main__":
    main()
