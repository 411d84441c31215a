"""The score of guessing without context on the masks that bert-pretraining evaluates: a baseline for its accuracy.

    python -m benchmarks.unigram_baseline 'shards/*.arrow' 'dev_shards/*.arrow' [EXAMPLES]

The accuracy is that of always guessing the most frequent token of the training shards. The loss is the
cross-entropy of the token frequencies (each count plus one).
"""

import sys

import numpy as np

from bert.corpus.masking import Masking
from bert.corpus.shards import open_table
from bert.text import tokenizer
from distributed.rows import Rows
from tasks.pretraining.evaluation import EVALUATION_SEED
from tasks.pretraining.examples import collate
from tasks.pretraining.settings import MASKS
from tasks.pretraining.shards import tokenizer_of_shards


def main() -> None:
    train, held_out = sys.argv[1:3]
    words = tokenizer.load(None, tokenizer_of_shards(train))
    table, _ = open_table(train)
    ids, _ = Rows(table).column("input_ids")
    counts = np.bincount(ids, minlength=words.vocab_size)
    counts[list(words.special_ids)] = 0  # never masked, so never right
    asked_table, manifest = open_table(held_out)
    rows, built = Rows(asked_table), manifest["settings"]
    numbers = np.arange(min(len(rows), int(sys.argv[3]) if len(sys.argv) > 3 else 800))
    masking = Masking.of(words, **{name: built[name] for name in MASKS})
    fields = rows.take(numbers) | {"row": numbers, "epoch": 0 * numbers}
    asked = collate(fields, masking, EVALUATION_SEED)["masked_ids"]
    frequent = int(counts.argmax())
    loss = -np.log((counts[asked] + 1) / (counts + 1).sum()).mean()
    print(
        f"{len(asked):,} masked tokens: always {words.pieces([frequent])[0]!r} is right in "
        f"{(asked == frequent).mean():.4f}, loss of the frequencies {loss:.4f}"
    )


if __name__ == "__main__":
    main()
