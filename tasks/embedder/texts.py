"""The texts of pairs, each once, as the model reads them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.embedder.reading import Pairs


@dataclass(frozen=True, eq=False)
class Texts:
    """What the model reads of pairs. A place is that of a text in `texts`, and that of its
    vector."""

    texts: Sequence[str]
    rows: Sequence[np.ndarray]  # of each row the places of its texts, int64
    corpus: np.ndarray  # the places of its documents, int64

    @property
    def most_in_row(self) -> int:
        return max(map(len, self.rows), default=0)


def texts_of_pairs(pairs: Pairs) -> Texts:
    """Each text once, in the order in which they first occur."""
    place_of: dict[str, int] = {}

    def places(texts: Sequence[str]) -> np.ndarray:
        return np.array([place_of.setdefault(text, len(place_of)) for text in texts], np.int64)

    rows = [places(row) for row in pairs.rows]
    corpus = places(pairs.corpus)
    return Texts([*place_of], rows, corpus)
