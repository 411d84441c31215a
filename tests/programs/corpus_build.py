"""Builds a corpus in small units, so that a test can end it in the middle: FOLDER WORKERS."""

import sys
from pathlib import Path

from bert.corpus import build as corpus
from bert.corpus import documents
from bert.corpus import tokens as corpus_tokens
from bert.corpus.workers import Workers
from bert.text import tokenizer


def main() -> None:
    documents.LARGEST_UNIT_BYTES = 1 << 15
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    words = tokenizer.load(str(folder / "vocab.txt"))
    settings = corpus.Settings(max_seq_length=64, num_shards=8, masking="static", dupe_factor=3)
    source = documents.Source(str(folder / "*.txt.part"))
    with Workers(workers, print) as processes:
        corpus.build(source, settings, words, folder / "shards", workers=processes)


assert corpus_tokens.BLOCK_TOKENS > 1 << 15  # so a unit is one block

if __name__ == "__main__":
    main()
