"""Small pairs for bert-embedder, and the loss of a batch of them by hand."""

import numpy as np
from harness.texts import ALL_WORDS


def make_pairs(number, seed):
    """An anchor names two words, which its positive has in a longer text."""
    chance = np.random.default_rng(seed)
    pairs = []
    for _ in range(number):
        one, other = chance.choice(ALL_WORDS, 2, replace=False)
        rest = chance.choice(ALL_WORDS, 3)
        positive = " ".join(chance.permutation([one, other, *rest[:1]]))
        pairs.append({"anchor": f"{one} {other}", "positive": positive, "negative": " ".join(rest)})
    return pairs


def loss_by_hand(rows, queries, documents, temperature):
    """The mean over rows of texts, of which `queries` and `documents` give unit vectors."""
    losses = []
    for anchor, positive, *_ in rows:
        same = {anchor, positive}
        beside = {row[1] for row in rows if row[0] == anchor}
        candidates = [positive]
        for row in rows:
            candidates += [text for text in row[1:2] if text not in same | beside]
            candidates += [text for text in row[2:] if text not in same]
        scores = documents(candidates) @ queries(anchor) / temperature
        losses.append(np.log(np.exp(scores).sum()) - scores[0])
    return np.mean(losses)
