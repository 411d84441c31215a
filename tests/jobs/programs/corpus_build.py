"""Builds a corpus in small units, so that a test can kill it in the middle: FOLDER WORKERS."""

import sys
from pathlib import Path

from bert.corpus import build as corpus
from bert.corpus import inputs, tokens
from bert.corpus.settings import BuildSettings
from bert.corpus.workers import Workers
from bert.text import tokenizer


def main() -> None:
    inputs.LARGEST_UNIT_BYTES = 1 << 15
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    words = tokenizer.load(str(folder / "vocab.txt"))
    settings = BuildSettings(
        input_file=f"{folder}/*.txt.part", output_dir=str(folder / "shards"), max_seq_length=64, num_shards=8,
        masking="static", dupe_factor=3,
    )  # fmt: skip
    with Workers(workers, print) as processes:
        corpus.build(settings, words, workers=processes)


assert tokens.BLOCK_TOKENS > 1 << 15  # so a unit is one block

if __name__ == "__main__":
    main()
