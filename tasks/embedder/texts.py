"""The texts of pairs as the model reads them: each once in each of its roles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tasks.embedder.reading import Pairs
from tasks.embedder.settings import DEFAULTS, VectorSettings


class Role(NamedTuple):
    """How the model reads a text: what stands before it, and the most tokens of both."""

    prompt: str
    max_seq_length: int


@dataclass(frozen=True, eq=False)
class Texts:
    """What the model reads of pairs. A place is that of a text in `texts`, and that of its vector;
    a text that is both an anchor and a document has two if these are read differently."""

    texts: Sequence[str]  # without prompts
    roles: Sequence[Role]  # of each text
    rows: Sequence[np.ndarray]  # of each row the places of its texts, int64
    corpus: np.ndarray  # the places of its documents, int64

    @property
    def with_prompts(self) -> list[str]:
        return [role.prompt + text for role, text in zip(self.roles, self.texts, strict=True)]

    @property
    def max_seq_lengths(self) -> np.ndarray:
        """The most tokens of each text, int64."""
        return np.array([role.max_seq_length for role in self.roles], np.int64)

    @property
    def most_in_row(self) -> int:
        return max(map(len, self.rows), default=0)


def texts_of_pairs(pairs: Pairs, settings: VectorSettings) -> Texts:
    """The texts in the order in which they first occur. Anchors are queries, and all others
    documents; texts to embed are what their prompt's name says."""
    longest = settings.max_seq_length or DEFAULTS["max_seq_length"]
    longest_query = min(longest, settings.max_query_length or longest)
    query = Role(settings.query_prompt or "", longest_query)
    document = Role(settings.document_prompt or "", longest)
    first = query
    if all(len(row) == 1 for row in pairs.rows):
        name = pairs.prompt_name or settings.prompt_name or "none"
        first = {"query": query, "document": document, "none": Role("", longest)}[name]
    place_of: dict[tuple[Role, str], int] = {}

    def place(role: Role, text: str) -> int:
        return place_of.setdefault((role, text), len(place_of))

    rows = []
    for anchor, *others in pairs.rows:
        places = [place(first, anchor), *(place(document, text) for text in others)]
        rows.append(np.array(places, np.int64))
    corpus = np.array([place(document, text) for text in pairs.corpus], np.int64)
    roles = [role for role, _ in place_of]
    texts = [text for _, text in place_of]
    return Texts(texts, roles, rows, corpus)
